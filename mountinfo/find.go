package mountinfo

import (
	"fmt"
	"os"
	"path/filepath"
)

// At returns what is mounted on top at a path, if anything is.
func At(path string) (m Mount, ok bool, err error) {
	on, err := Stack(path)
	if err != nil || len(on) == 0 {
		return Mount{}, false, err
	}
	return on[len(on)-1], true, nil
}

// Stack returns all mounts at a path, the one on top last.
func Stack(path string) ([]Mount, error) {
	mounts, err := Mounts()
	if err != nil {
		return nil, err
	}
	point, err := Clean(path)
	if err != nil {
		return nil, err
	}
	return stack(mounts, point), nil
}

func stack(mounts []Mount, point string) []Mount {
	var on []Mount
	for _, m := range mounts {
		if m.Point == point {
			on = append(on, m)
		}
	}
	return on
}

// Find returns the tierfs mount in which path lies, and the path below its mount
// point ("" for the mount point itself).
func Find(path string) (m Mount, below string, err error) {
	mounts, err := Mounts()
	if err != nil {
		return Mount{}, "", err
	}
	clean, err := Clean(path)
	if err != nil {
		return Mount{}, "", err
	}
	for at := clean; ; at = filepath.Dir(at) {
		if on := stack(mounts, at); len(on) > 0 {
			m = on[len(on)-1]
			if m.Type != FSType {
				break
			}
			below, err = filepath.Rel(at, clean)
			if below == "." {
				below = ""
			}
			return m, below, err
		}
		if at == "/" {
			break
		}
	}
	return Mount{}, "", fmt.Errorf("%s: no tierfs is mounted there; `findmnt -t %s` lists the mounts", path, FSType)
}

// maxLinks is how many links one path may lead through, as for the kernel.
const maxLinks = 40

// Clean is the absolute path without symbolic links, as the table has it. Links
// that go round in circles are left as they are.
func Clean(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	at := abs
	for range maxLinks {
		if at == "/" {
			return at, nil
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(at))
		if err != nil {
			return at, nil // below a dead mount, or not there: the names have to do
		}
		at = filepath.Join(dir, filepath.Base(at))
		target, err := os.Readlink(at)
		if err != nil {
			return at, nil // no link, or a mount that answers nobody
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		at = filepath.Clean(target)
	}
	return abs, nil
}
