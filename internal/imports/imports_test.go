package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tierfs/tierfs/"

// listed is what `go list` says of one package. XTestImports belong to package foo_test.
type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func (l listed) name() string { return strings.TrimPrefix(l.ImportPath, module) }

func TestOrder(t *testing.T) {
	floor := map[string]int{}
	for i, names := range floors {
		for _, name := range names {
			floor[name] = i
		}
	}
	for _, p := range packages(t) {
		own, ok := floor[p.name()]
		if !ok {
			t.Errorf("%s has no place in the order of packages", p.name())
			continue
		}
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			name, inside := strings.CutPrefix(path, module)
			if !inside || name == p.name() {
				continue
			}
			// An external test may use the packages below its own path, such as a fake that implements its interface.
			if strings.HasPrefix(name, p.name()+"/") && !slices.Contains(p.Imports, path) && !slices.Contains(p.TestImports, path) {
				continue
			}
			other, ok := floor[name]
			switch {
			case !ok:
				t.Errorf("%s imports %s, which has no place in the order of packages", p.name(), name)
			case other > own:
				t.Errorf("%s imports %s, which stands above it", p.name(), name)
			case other == own:
				t.Errorf("%s imports %s, which stands beside it", p.name(), name)
			}
		}
	}
}

func TestOutsideModules(t *testing.T) {
	for _, p := range packages(t) {
		for _, path := range p.Imports {
			for prefix, allowed := range onlyFor {
				if strings.HasPrefix(path, prefix) && !slices.Contains(allowed, p.name()) {
					t.Errorf("%s imports %s, which is for %s only", p.name(), path, strings.Join(allowed, ", "))
				}
			}
			name := strings.TrimPrefix(path, module)
			if slices.Contains(testOnly, name) && !slices.Contains(testOnly, p.name()) && !strings.HasPrefix(p.name(), "integration") {
				t.Errorf("%s imports %s outside its tests", p.name(), name)
			}
		}
	}
}

// packages returns every package of the module that has Go files.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list printed no JSON: %v", err)
		}
		all = append(all, p)
	}
	if len(all) < 2 {
		t.Fatalf("go list found %d packages", len(all))
	}
	return all
}
