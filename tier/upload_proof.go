package tier

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
)

// Proof is a sealed segment that is durable and was proved whole, with all that an
// upload needs to know of its bytes. It holds descriptors and has left nothing on
// the disk. End it with Begin or Close.
type Proof struct {
	u      *Upload
	beside []besideFile
}

// Prove makes sure that the kernel holds nothing of a sealed segment, makes it durable
// and proves it whole in one pass over its bytes, if the disk has room for an intent:
// with ENOSPC it fails before it reads anything. It fails with a [*Refused] when the segment is not to be uploaded now,
// and with a [*NotWhole] when its bytes do not verify: it is then left alone.
func (v *Volume) Prove(ctx context.Context, p *Partition, s Segment) (_ *Proof, err error) {
	u := &Upload{v: v, p: p, file: s.File, home: link{p.dir, s.Name()}}
	defer func() {
		if err != nil {
			u.Close()
		}
	}()
	if s.Active {
		return nil, refuse(ReasonActive)
	}
	if reason := u.barred(); reason != "" {
		return nil, refuse(reason)
	}
	if err := v.roomForIntent(); err != nil {
		return nil, err
	}
	if err := u.flushed(ctx, s); err != nil {
		return nil, err
	}
	var settled bool
	if u.changes, settled = s.File.settled(); !settled {
		return nil, refuse(ReasonWriting)
	}
	if err := u.placeForRecord(); err != nil {
		return nil, err
	}
	log, err := u.openLog()
	if err != nil {
		return nil, err
	}
	beside, err := u.lookBeside(s.Start)
	if err != nil {
		return nil, err
	}
	if err := u.openBeside(s); err != nil {
		return nil, err
	}
	if err := u.prove(ctx, log, s); err != nil {
		return nil, err
	}
	return &Proof{u, beside}, nil
}

// Begin mints what names the segment's objects and writes the intent. However it
// ends, the proof is used up. It fails with a [*Refused] when the segment or a file
// beside it is not what was proved: it may be proved again.
func (p *Proof) Begin() (_ *Upload, err error) {
	u := p.u
	defer func() {
		if err != nil {
			u.Close()
		}
	}()
	if reason := u.barred(); reason != "" {
		return nil, refuse(reason)
	}
	if changes, settled := u.file.settled(); !settled || changes != u.changes {
		return nil, refuse(ReasonChanged)
	}
	switch beside, err := u.lookBeside(u.Record.Start); {
	case err != nil:
		return nil, err
	case !slices.Equal(beside, p.beside):
		return nil, refuse(ReasonChanged)
	}
	if u.Record.Incarnation, err = u.p.ensureIncarnation(); err != nil {
		return nil, err
	}
	u.Record.UploadID = marker.NewUploadID()
	if err := u.name(); err != nil {
		return nil, err
	}
	return u, u.v.step("upload:intent", func() error {
		return marker.Write(u.v.dirs.intents, uploadFile(u.Record), u.Record)
	})
}

// Close gives the descriptors of a proof back that Begin was not called for.
func (p *Proof) Close() { p.u.Close() }

// barred says why the partition or the segment's state rules an upload out.
func (u *Upload) barred() layout.Reason {
	if reason := u.p.Reason(); reason != "" {
		return reason
	}
	if u.file.State() != Local {
		return ReasonUploaded
	}
	return ""
}

// placeForRecord fails with a [*Refused] if the record could not be written where it
// belongs: then the segment would be put again and again.
func (u *Upload) placeForRecord() error {
	dir, err := u.v.openDir(u.p.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	err = fstatat(dir, uploadedName(u.home.name), &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return refuse(ReasonNoPlace)
	}
	return err
}

// besideFile tells whether a file beside a segment is still the one that was read.
type besideFile struct {
	suffix       string
	inode        uint64
	size         int64
	mtime, ctime unix.Timespec
}

// lookBeside notes which files are beside the segment, and fails with a [*Refused]
// while one is being written.
func (u *Upload) lookBeside(start uint64) (found []besideFile, err error) {
	dir, err := u.v.openDir(u.p.dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	for _, suffix := range u.v.Layout().SideSuffixes() {
		f, there, err := u.v.lookBesideFile(dir, segment.Stem(start), suffix)
		if err != nil {
			return nil, err
		}
		if there {
			found = append(found, f)
		}
	}
	return found, nil
}

func (v *Volume) lookBesideFile(dir int, stem, suffix string) (f besideFile, there bool, err error) {
	var st unix.Stat_t
	err = fstatat(dir, stem+suffix, &st)
	if errors.Is(err, unix.ENOENT) {
		return f, false, nil
	}
	if err != nil {
		return f, false, err
	}
	dirty, err := v.dirty(dir, stem+suffix)
	if err != nil {
		return f, false, err
	}
	if dirty {
		return f, false, refuse(ReasonSideFile)
	}
	return besideFile{suffix, st.Ino, st.Size, st.Mtim, st.Ctim}, true, nil
}

// dirty reports whether a file was written through the mount since its last fsync
// or close, or is being written now.
func (v *Volume) dirty(dir int, name string) (bool, error) {
	h, err := handle.At(dir, name)
	if err != nil {
		return false, err
	}
	f := v.known(h)
	return f != nil && (f.dirty.Load() || f.mutating.Load() > 0), nil
}
