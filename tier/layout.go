package tier

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/layout"
)

// LayoutOf gives the rules of a source: those of kind, or, where that is empty, of
// the broker that its names are signs of; nil while there are none. root is a
// descriptor of its directory below.
func LayoutOf(root int, kind layout.Kind, quiet time.Duration) (layout.Rules, error) {
	if kind == "" {
		var ok bool
		if kind, ok = layout.Detect(func(dir string) ([]string, error) { return visibleNames(root, dir) }); !ok {
			return nil, nil
		}
	}
	return layout.New(kind, quiet)
}

// decideLayout takes the configured layout, or looks for signs of a broker.
func (v *Volume) decideLayout() error {
	rules, err := LayoutOf(v.root, v.opt.Layout, v.opt.QuietTime)
	if rules == nil || err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rules = rules
	for _, p := range v.partitions {
		p.classify()
		v.markDirty(p)
	}
	return nil
}

// Layout is the volume's layout, nil while it is undecided.
func (v *Volume) Layout() layout.Rules {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.rules
}

// visibleNames lists a directory of a source as the broker sees it.
func visibleNames(root int, dir string) ([]string, error) {
	if dir == "" {
		dir = "."
	}
	fd, err := unix.Openat(root, dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	names, err := readNames(fd)
	if err != nil {
		return nil, err
	}
	out := names[:0]
	for _, n := range names {
		if vis, ok := Visible(n); ok {
			out = append(out, vis)
		}
	}
	return out, nil
}
