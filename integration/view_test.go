package integration

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// attributes are what must not change about a segment when it is evicted.
type attributes struct {
	size  int64
	mtime syscall.Timespec
	inode uint64
	mode  uint32
	uid   uint32
	links uint64
}

// walk calls each for everything below dir, by its path within dir.
func (f *fixture) walk(dir string, each func(path string, e fs.DirEntry)) {
	f.t.Helper()
	f.must(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // a checkpoint's temporary file
		}
		if err == nil {
			var within string
			if within, err = filepath.Rel(dir, path); err == nil {
				each(within, e)
			}
		}
		return err
	}))
}

// segments are the attributes of all segments that the broker sees.
func (f *fixture) segments() map[string]attributes {
	f.t.Helper()
	all := map[string]attributes{}
	f.walk(f.View(), func(path string, e fs.DirEntry) {
		if segment.MatchString(e.Name()) {
			var st syscall.Stat_t
			err := syscall.Lstat(filepath.Join(f.View(), path), &st)
			if os.IsNotExist(err) {
				return // the broker has just deleted it
			}
			f.must(err)
			all[path] = attributes{st.Size, st.Mtim, st.Ino, st.Mode, st.Uid, uint64(st.Nlink)}
		}
	})
	return all
}

// sealed are the segments without the last one of each partition, which is being written.
func sealed(all map[string]attributes) map[string]attributes {
	kept := map[string]attributes{}
	paths := slices.Sorted(maps.Keys(all))
	for i, path := range paths {
		if i+1 < len(paths) && filepath.Dir(paths[i+1]) == filepath.Dir(path) {
			kept[path] = all[path]
		}
	}
	return kept
}

// remote are the segments of which only the marker is left, as the broker names them, with the marker's size.
func (f *fixture) remote() map[string]int64 {
	f.t.Helper()
	all := map[string]int64{}
	f.walk(f.Below(), func(path string, e fs.DirEntry) {
		if stem, ok := strings.CutSuffix(path, ".remote"); ok {
			info, err := e.Info()
			if os.IsNotExist(err) {
				return // the broker has just deleted it
			}
			f.must(err)
			all[stem+".log"] = info.Size()
		}
	})
	return all
}

// checkHidden looks through the mount for anything that belongs to tierfs alone.
func (f *fixture) checkHidden() {
	f.t.Helper()
	own := func(name string) bool {
		return strings.HasPrefix(name, ".tierfs") || strings.HasSuffix(name, ".remote") || strings.HasSuffix(name, ".uploaded")
	}
	f.walk(f.View(), func(path string, e fs.DirEntry) {
		if own(e.Name()) {
			f.t.Errorf("%s is visible in the mount", path)
		}
	})
	f.walk(f.Below(), func(path string, e fs.DirEntry) {
		if own(e.Name()) {
			if _, err := os.Lstat(filepath.Join(f.View(), path)); !os.IsNotExist(err) {
				f.t.Errorf("%s can be looked up through the mount: %v", path, err)
			}
			if file, err := os.OpenFile(filepath.Join(f.View(), path), os.O_RDONLY, 0); err == nil {
				f.must(file.Close())
				f.t.Errorf("%s can be opened through the mount", path)
			}
		}
	})
	for _, name := range []string{".tierfs-x", "a.remote", "a.uploaded"} {
		if file, err := os.Create(filepath.Join(f.View(), name)); err == nil {
			f.must(file.Close())
			f.t.Errorf("%s can be made through the mount", name)
		}
	}
}
