package dirstore_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/dirstore"
	"golang.org/x/sys/unix"
)

func put(t *testing.T, s objstore.Store, key, body string) {
	t.Helper()
	opts := objstore.PutOptions{Metadata: map[string]string{"endoffset": "41"}}
	if err := s.Put(t.Context(), key, objstore.BytesBody([]byte(body)), opts); err != nil {
		t.Fatal(err)
	}
}

// tree lists everything below dir, temporary files included.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func wantTree(t *testing.T, dir, want string) {
	t.Helper()
	if got := tree(t, dir); got != want {
		t.Errorf("on disk: %q, want %q", got, want)
	}
}

// TestForm: what lies on disk is what the package documents.
func TestForm(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "a/b/x.log", "bytes of x")
	put(t, s, "owner", "")
	wantTree(t, dir, ".tierfs-tmp a a/b a/b/x.log owner")
	if b, err := os.ReadFile(filepath.Join(dir, "a/b/x.log")); err != nil || string(b) != "bytes of x" {
		t.Errorf("%q, %v", b, err)
	}
	buf := make([]byte, 1000)
	n, err := unix.Getxattr(filepath.Join(dir, "a/b/x.log"), "user.tierfs", buf)
	want := fmt.Sprintf(`{"crc64nvme":"%016x","metadata":{"endoffset":"41"}}`, objstore.BytesBody([]byte("bytes of x")).CRC64NVME)
	if err != nil || string(buf[:n]) != want {
		t.Errorf("attribute %q, %v; want %q", buf[:max(n, 0)], err, want)
	}
	if err := s.Delete(t.Context(), "a/b/x.log"); err != nil {
		t.Fatal(err)
	}
	wantTree(t, dir, ".tierfs-tmp owner")
}

// TestReopen: metadata and checksum survive; a leftover of a crash does not, and
// a file that is being written does.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "a/x", "bytes")
	if err := os.WriteFile(filepath.Join(dir, ".tierfs-tmp/LEFTOVER"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	half, done := make(chan struct{}), make(chan error, 1)
	src := sourceFunc(func(b []byte, off int64) (int, error) {
		half <- struct{}{} // Put is reading
		<-half             // the store was opened again
		return len(b), nil
	})
	body := objstore.Body{R: src, Size: 1000, CRC64NVME: objstore.BytesBody(make([]byte, 1000)).CRC64NVME}
	go func() { done <- s.Put(t.Context(), "b/y", body, objstore.PutOptions{}) }()
	<-half
	again := open(t, dir)
	if got := strings.Count(tree(t, dir), ".tierfs-tmp/"); got != 1 || strings.Contains(tree(t, dir), "LEFTOVER") {
		t.Errorf("after the sweep: %q", tree(t, dir))
	}
	half <- struct{}{}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantTree(t, dir, ".tierfs-tmp a a/x b b/y")
	info, err := again.Head(t.Context(), "a/x")
	if err != nil || info.Metadata["endoffset"] != "41" || !info.HasCRC {
		t.Errorf("%+v, %v", info, err)
	}
}

type sourceFunc func(b []byte, off int64) (int, error)

func (f sourceFunc) ReadAt(b []byte, off int64) (int, error) { return f(b, off) }

// TestCopied: a copy without attributes still serves its bytes.
func TestCopied(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "copied"), []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := s.Head(t.Context(), "copied")
	if err != nil || info.Size != 5 || info.HasCRC || len(info.Metadata) > 0 {
		t.Fatalf("%+v, %v", info, err)
	}
	body := objstore.BytesBody([]byte("bytes"))
	if err := s.Put(t.Context(), "copied", body, objstore.PutOptions{IfAbsent: true}); err != nil {
		t.Errorf("the same bytes: %v", err)
	}
	if err := unix.Setxattr(filepath.Join(dir, "copied"), "user.tierfs", []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Head(t.Context(), "copied"); err == nil || errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("a damaged attribute: %v", err)
	}
}

// TestCovered: the store's path may lead elsewhere; its descriptor does not.
func TestCovered(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	put(t, s, "a/x", "bytes")
	if err := os.Rename(dir, filepath.Join(parent, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, s, "a/y", "more")
	page, err := s.List(t.Context(), "", "")
	if err != nil || len(page.Objects) != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	wantTree(t, dir, "")
}

// TestLinks: symbolic links are no objects and lead nowhere.
func TestLinks(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	s := open(t, dir)
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"dir": outside, "file": filepath.Join(outside, "secret"), "top": "/"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"file", "dir/secret", "top/etc/passwd"} {
		if _, err := s.GetRange(t.Context(), key, 0, 1); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("get %s: %v", key, err)
		}
		if _, err := s.Head(t.Context(), key); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("head %s: %v", key, err)
		}
	}
	if err := s.Put(t.Context(), "dir/x", objstore.BytesBody(nil), objstore.PutOptions{}); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("put through a link: %v", err)
	}
	if err := s.Delete(t.Context(), "dir/secret"); err != nil {
		t.Error(err)
	}
	wantTree(t, outside, "secret")
	if page, err := s.List(t.Context(), "", ""); err != nil || len(page.Objects) > 0 {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestConflicts: a key that is the directory of another is refused, not lost.
func TestConflicts(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, "a/b", "bytes")
	for _, opts := range []objstore.PutOptions{{}, {IfAbsent: true}} {
		for _, key := range []string{"a", "a/b/c", ".tierfs-tmp/x", ".tierfs-tmp"} {
			err := s.Put(t.Context(), key, objstore.BytesBody([]byte("x")), opts)
			if !errors.Is(err, objstore.ErrInvalid) {
				t.Errorf("put %s %+v: %v", key, opts, err)
			}
		}
	}
	wantTree(t, dir, ".tierfs-tmp a a/b")
}

func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"missing": filepath.Join(dir, "missing"), "file": file, "no_attributes": "/proc/self"} {
		t.Run(name, func(t *testing.T) {
			s, err := dirstore.Open(path)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q does not name %s in one line", err, path)
			}
		})
	}
}

// TestRemoved: a store whose directory is gone does not say that objects are.
func TestRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	put(t, s, "a/x", "bytes")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, headErr := s.Head(t.Context(), "a/x")
	_, getErr := s.GetRange(t.Context(), "a/x", 0, 1)
	_, listErr := s.List(t.Context(), "", "")
	for op, err := range map[string]error{
		"head": headErr, "get": getErr, "list": listErr, "delete": s.Delete(t.Context(), "a/x"),
		"put": s.Put(t.Context(), "a/y", objstore.BytesBody(nil), objstore.PutOptions{}),
	} {
		if !errors.Is(err, objstore.ErrTransient) || errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// TestDescriptors: nothing stays open after a mixture of failures.
func TestDescriptors(t *testing.T) {
	s := open(t, t.TempDir())
	before := fds(t)
	for i := range 50 {
		key := fmt.Sprintf("a/b%d/x", i%3)
		put(t, s, key, "bytes")
		s.Head(t.Context(), key+"/y")
		s.Head(t.Context(), "a")
		s.Put(t.Context(), key+"/y", objstore.BytesBody(nil), objstore.PutOptions{})
		s.Put(t.Context(), key, objstore.Body{R: strings.NewReader(""), Size: 9}, objstore.PutOptions{})
		s.GetRange(t.Context(), key, 3, 100)
		r, err := s.GetRange(t.Context(), key, 0, 5)
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		s.List(t.Context(), "a", "")
		s.Delete(t.Context(), key, "a/none/x", "a")
	}
	if after := fds(t); after != before {
		t.Fatalf("%d descriptors before, %d after", before, after)
	}
}

func fds(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
