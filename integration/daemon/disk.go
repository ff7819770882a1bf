package daemon

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
)

// DiskUsage is what `du` would say: the bytes allocated to all regular files below dir, each inode once. A file that goes away
// meanwhile is left out.
func DiskUsage(dir string) (int64, error) {
	var total int64
	seen := map[[2]uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				st := info.Sys().(*syscall.Stat_t)
				if id := [2]uint64{st.Dev, st.Ino}; !seen[id] {
					seen[id] = true
					total += st.Blocks * 512
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return total, err
}
