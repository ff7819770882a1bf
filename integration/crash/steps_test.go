package crash

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	stepName   = regexp.MustCompile(`^[a-z]+:[a-z-]+$`)
	stepSuffix = regexp.MustCompile(`^:[a-z-]+$`)
)

// sourceSteps are the names of all durable steps in the sources of package tier: each string that looks like one, what is given
// to step itself, and what empty puts together of the operation that it is a part of.
func sourceSteps(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../../tier/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	found := map[string]bool{}
	var operations, suffixes []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				switch s := literal(n); {
				case stepName.MatchString(s):
					found[s] = true
				case stepSuffix.MatchString(s) && s != ":done":
					suffixes = append(suffixes, s)
				}
			case *ast.CallExpr:
				if called, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 {
					switch s := literal(n.Args[0]); {
					case s == "":
					case called.Sel.Name == "step":
						found[s] = true
					case called.Sel.Name == "empty":
						operations = append(operations, s)
					}
				}
			}
			return true
		})
	}
	for _, op := range operations {
		for _, suffix := range suffixes {
			found[op+suffix] = true
		}
	}
	return found
}

// literal is the value of a string in the sources, "" for everything else.
func literal(n ast.Node) string {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}

// TestReleaseHasNoCrashPoints looks at what a tierfs is built of that somebody runs.
func TestReleaseHasNoCrashPoints(t *testing.T) {
	for tags, want := range map[string]bool{"": false, "crashpoints": true} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-tags", tags, "-f", "{{.GoFiles}}", "../../cmd/tierfs").Output()
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(out), "crashpoints.go"); has != want {
			t.Errorf("with the tags %q the crash points are built in: %v", tags, has)
		}
	}
}

// TestMatrixComplete holds the matrix against the sources: each step has its place, and each place a step.
func TestMatrixComplete(t *testing.T) {
	sources, matrix := sourceSteps(t), map[string]bool{}
	for _, p := range allPoints() {
		if p != "" {
			matrix[p.step()] = true
		}
	}
	for step := range sources {
		if !matrix[step] {
			t.Errorf("the durable step %s of package tier is in no scenario", step)
		}
	}
	for step := range matrix {
		if !sources[step] {
			t.Errorf("package tier has no durable step %s", step)
		}
	}
}
