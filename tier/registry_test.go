package tier

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An entry of the registry that cannot be read costs what it explains, and nothing
// else; when it is back, so is all that it explains.
func TestDamagedRegistry(t *testing.T) {
	w := newWorld(t, 3)
	next := uint64(0)
	w.mkdir("u-0")
	for range 2 {
		w.addSegment("u-0", &next)
	}
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		w.write(name, []byte("0\n2\nt 0 1000000\nu 0 1000000\n"))
	}
	w.reopen()
	start := w.starts[0]
	w.remote(start)
	w.do(w.upload("t-0", w.starts[1]))
	w.do(w.upload("u-0", start))
	w.do(w.evict("u-0", start))
	inc := w.partition("t-0").state.Incarnation
	path := filepath.Join(w.path, ".tierfs", "partitions", inc)
	good, err := os.ReadFile(path)
	w.do(err)
	objects := len(w.logObjects())
	for what, bad := range map[string]string{"nothing": "", "cut": string(good[:20]), "empty": "{}", "another": `{"prefix":"p/v/t-0/` + strings.Repeat("a", 32) + `"}`} {
		t.Run(what, func(t *testing.T) {
			w.do(os.WriteFile(path, []byte(bad), 0o600))
			w.reopen()
			w.wantState("t-0", start, Quarantined)
			w.wantContent(w.dir("t-0"), name(w.starts[1]), w.logs[w.starts[1]])
			w.wantContent(w.dir("u-0"), name(start), w.logs[start])
			w.retireAll()
			if n := len(w.logObjects()); n != objects {
				t.Errorf("%d objects of %d are left", n, objects)
			}
		})
	}
	w.do(os.WriteFile(path, good, 0o600))
	w.reopen()
	w.wantState("t-0", start, Remote)
	w.wantContent(w.dir("t-0"), name(start), w.logs[start])
}

// A volume is not minted anew over what it had.
func TestLostIdentity(t *testing.T) {
	w := newWorld(t, 3)
	w.remote(w.starts[0])
	path := filepath.Join(w.path, ".tierfs", "volume")
	good, err := os.ReadFile(path)
	w.do(err)
	for what, lose := range map[string]func() error{
		"missing":     func() error { return os.Remove(path) },
		"empty":       func() error { return os.WriteFile(path, nil, 0o600) },
		"no identity": func() error { return os.WriteFile(path, []byte("{}"), 0o600) },
		"a directory": func() error { _ = os.Remove(path); return os.Mkdir(path, 0o700) },
	} {
		t.Run(what, func(t *testing.T) {
			w.close()
			w.do(lose())
			if err := w.tryOpen(); err == nil || !strings.Contains(err.Error(), ".tierfs/volume") || !strings.Contains(err.Error(), "backup") {
				t.Errorf("got %v", err)
			}
			w.do(os.RemoveAll(path))
			w.do(os.WriteFile(path, good, 0o600))
		})
	}
	w.reopen()
	w.wantContent(w.dir("t-0"), name(w.starts[0]), w.logs[w.starts[0]])
}
