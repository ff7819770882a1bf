package tier

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
)

// openBeside opens the files beside the segment.
func (u *Upload) openBeside(s Segment) error {
	dir, err := u.v.openDir(u.p.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	rules := u.v.Layout()
	for _, suffix := range rules.SideSuffixes() {
		if err := u.openSideFile(dir, segment.Stem(s.Start), suffix); err != nil {
			return err
		}
	}
	if anchor := rules.AnchorSuffix(); anchor != "" {
		var st unix.Stat_t
		err := fstatat(dir, segment.Stem(s.Next)+anchor, &st)
		u.anchored = err == nil
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// openSideFile opens one of them. What is no regular file is none of the broker's: it
// is left out, and never waited for.
func (u *Upload) openSideFile(dir int, stem, suffix string) error {
	name := stem + suffix
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a symbolic link, a socket
		u.v.log.Warn("a file beside a segment is no regular file; it is not uploaded", "file", name)
		return nil
	case err != nil:
		return err
	}
	u.fds = append(u.fds, fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pathError("stat", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		u.v.log.Warn("a file beside a segment is no regular file; it is not uploaded", "file", name)
		return nil
	}
	if st.Size == 0 || st.Size > maxSideFile {
		return nil
	}
	body, err := objstore.NewBody(fdReader(fd), st.Size)
	if err != nil {
		return err
	}
	u.Objects = append(u.Objects, UploadObject{Body: body, suffix: suffix})
	return nil
}

// indexProof holds a segment's index against the batches as a walk meets them: an
// index that points anywhere else would make good bytes look bad later.
type indexProof struct {
	starts []int64 // positions still to be met
	size   int64   // of the index file; 0: there is none, or it is no index
	bad    bool    // it is no index
}

// newIndexProof decodes the index that stands beside the segment.
func (u *Upload) newIndexProof(size int64) *indexProof {
	rules := u.v.Layout()
	for _, o := range u.Objects {
		if o.suffix != rules.IndexSuffix() {
			continue
		}
		raw := make([]byte, o.Body.Size)
		if _, err := o.Body.R.ReadAt(raw, 0); err != nil {
			return &indexProof{}
		}
		starts, err := segment.Boundaries(raw, size, rules.Format())
		if err != nil {
			return &indexProof{bad: true}
		}
		return &indexProof{starts: starts, size: o.Body.Size}
	}
	return &indexProof{}
}

func (p *indexProof) see(b segment.Batch) error {
	if len(p.starts) > 0 && p.starts[0] == b.Position {
		p.starts = p.starts[1:]
	}
	return nil
}

// useIndex notes the index in the record if it fits. One that does not is left
// out: reads then go by plain offsets.
func (u *Upload) useIndex(p *indexProof) {
	suffix := u.v.Layout().IndexSuffix()
	if p.size > 0 && len(p.starts) == 0 {
		u.Record.IndexSize = p.size
		return
	}
	if p.size > 0 || p.bad {
		u.v.log.Warn("an index does not fit its segment; it is not used", "segment", u.home.name)
	}
	kept := u.Objects[:0]
	for _, o := range u.Objects {
		if o.suffix != suffix {
			kept = append(kept, o)
		}
	}
	u.Objects = kept
}
