package tier

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/minio/crc64nvme"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
)

// Why a segment is not uploaded.
const (
	ReasonNotWhole layout.Reason = "does not verify"
	ReasonSideFile layout.Reason = "a file beside it is being written"
	ReasonUploaded layout.Reason = "uploaded already"
	ReasonWriting  layout.Reason = "being written"
	ReasonTooLarge layout.Reason = "larger than a single object may be"
	ReasonNoPlace  layout.Reason = "a directory stands where its record belongs"
)

const (
	maxObject       = 5 << 30 // bytes in one PUT, by S3's limit
	maxSideFile     = 64 << 20
	metadataVersion = "1"
)

// UploadObject is one object of an upload.
type UploadObject struct {
	Key      string
	Body     objstore.Body
	Metadata map[string]string
	Log      bool // the segment itself, not a file beside it

	suffix string
}

// Upload is a segment on its way to the store: its intent is durable, its objects
// are yet to be put. End it with Commit or Abort, then Close it.
type Upload struct {
	Record  marker.Record
	Objects []UploadObject // the segment itself last

	v        *Volume
	p        *Partition
	file     *File
	home     link
	changes  int64
	anchored bool // the next segment's start has an anchor beside it
	fds      []int
	cold     ColdPages // of the segment, before anything read it for this upload
}

// NotWhole says that a sealed segment is not what its broker writes.
type NotWhole struct{ Err error }

func (e *NotWhole) Error() string { return "segment does not verify: " + e.Err.Error() }
func (e *NotWhole) Unwrap() error { return e.Err }

// Prepare is Prove and Begin: it proves a sealed segment whole and writes the
// intent of its upload.
func (v *Volume) Prepare(ctx context.Context, p *Partition, s Segment) (*Upload, error) {
	proof, err := v.Prove(ctx, p, s)
	if err != nil {
		return nil, err
	}
	return proof.Begin()
}

// roomForIntent fails with ENOSPC where the intent would, before the segment is
// read for nothing: there is neither room on the disk nor in the reserve.
func (v *Volume) roomForIntent() error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(v.dirs.intents, &st); err != nil {
		return pathError("statfs", stateDir+"/intents", err)
	}
	v.reserve.take()
	if (st.Blocks > 0 && st.Bfree == 0 || st.Files > 0 && st.Ffree == 0) && !v.reserve.any() {
		return pathError("write", stateDir+"/intents", unix.ENOSPC)
	}
	return nil
}

// openLog opens the segment and makes it durable: not every broker does.
func (u *Upload) openLog() (int, error) {
	fd, err := u.file.open(unix.O_RDONLY)
	if err != nil {
		return -1, err
	}
	u.fds = append(u.fds, fd)
	return fd, u.v.point("upload:fsync", func() error { return pathError("fsync", u.home.name, unix.Fsync(fd)) })
}

// prove walks the segment once and computes all that is known of its bytes.
func (u *Upload) prove(ctx context.Context, fd int, s Segment) error {
	rules := u.v.Layout()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pathError("stat", u.home.name, err)
	}
	if st.Size > maxObject {
		return refuse(ReasonTooLarge)
	}
	// A time ahead of the clock is no sign of a write just now.
	if age := time.Since(time.Unix(st.Mtim.Unix())); age >= 0 && age < rules.QuietTime() {
		return refuse(ReasonWriting)
	}
	u.cold = FindCold(fd, st.Size)
	sums := &sums{xx: xxh3.New(), crc: crc64nvme.New()}
	index := u.newIndexProof(st.Size)
	r := io.TeeReader(&contextReader{ctx, io.NewSectionReader(fdReader(fd), 0, st.Size)}, sums)
	sum, err := segment.Walk(r, st.Size, s.Start, rules.Format(), index.see)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, unix.EIO):
		return err
	case u.file.changes.Load() != u.changes:
		return refuse(ReasonWriting)
	case err != nil:
		return &NotWhole{err}
	}
	if why := rules.Follows(sum.End, s.Next, u.anchored); why != "" {
		return &NotWhole{fmt.Errorf("%s: it ends at offset %d, the next segment starts at %d", why, sum.End, s.Next)}
	}
	u.Record = marker.Record{
		Start: s.Start, End: sum.End, Size: st.Size,
		FirstTimestamp: sum.FirstTimestamp, MaxTimestamp: sum.MaxTimestamp,
		LogHash: sums.xx.Sum128().Bytes(),
	}
	u.useIndex(index)
	u.Objects = append(u.Objects, UploadObject{
		Log: true, suffix: logSuffix,
		Body: objstore.Body{R: fdReader(fd), Size: st.Size, CRC64NVME: sums.crc.Sum64()},
	})
	return nil
}

type sums struct {
	xx  *xxh3.Hasher
	crc hash.Hash64
}

func (s *sums) Write(p []byte) (int, error) {
	_, _ = s.xx.Write(p) // hashes do not fail
	return s.crc.Write(p)
}

// name gives each object its key.
func (u *Upload) name() (err error) {
	for i := range u.Objects {
		o := &u.Objects[i]
		if o.Log {
			o.Metadata = metadata(u.Record)
		}
		if o.Key, err = u.v.key(u.Record, o.suffix); err != nil {
			return err
		}
	}
	return nil
}

// metadata lets a listing plus HEADs rebuild a partition. Keys are plain letters
// and digits: stores change everything else.
func metadata(rec marker.Record) map[string]string {
	return map[string]string{
		"formatversion":  metadataVersion,
		"startoffset":    strconv.FormatUint(rec.Start, 10),
		"endoffset":      strconv.FormatUint(rec.End, 10),
		"starttimestamp": strconv.FormatInt(rec.FirstTimestamp, 10),
		"maxtimestamp":   strconv.FormatInt(rec.MaxTimestamp, 10),
		"size":           strconv.FormatInt(rec.Size, 10),
		"indexsize":      strconv.FormatInt(rec.IndexSize, 10),
		"incarnation":    rec.Incarnation.String(),
		"uploadid":       rec.UploadID.String(),
		"loghash":        fmt.Sprintf("%x", rec.LogHash),
	}
}

// Commit makes the record of the upload durable beside the segment, if the segment
// is still exactly what was put: otherwise it fails with a [*Refused]. Whenever it
// fails the objects have a tombstone. Call it when every object is verified.
func (u *Upload) Commit() error {
	if err := u.commit(); err != nil {
		return errors.Join(err, u.Abort())
	}
	return u.v.step("upload:intent-gone", func() error {
		return durable.Unlink(u.v.dirs.intents, uploadFile(u.Record))
	})
}

func (u *Upload) commit() error {
	f := u.file
	dir, err := u.v.openDir(u.home.dir)
	if errors.Is(err, unix.ESTALE) {
		return refuse(ReasonGone)
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != Local || f.changes.Load() != u.changes {
		return refuse(ReasonChanged)
	}
	if !slices.Contains(f.links, u.home) {
		return refuse(ReasonGone)
	}
	name := uploadedName(u.home.name)
	if old, err := marker.Read(dir, name); err == nil { // of a segment that was there before: see holesOf
		if err := u.v.buryMarker("upload:tombstone", dir, name, old); err != nil {
			return err
		}
	}
	err = u.v.step("upload:record", func() error { return marker.Write(dir, name, u.Record) })
	if err != nil {
		// It may be there all the same; the tombstone that follows says that it does
		// not count.
		_ = durable.Unlink(dir, name)
		return err
	}
	f.state, f.rec, f.home, f.found = Uploaded, u.Record, u.home, false
	u.v.touchedLocked(f)
	return nil
}

// Abort turns the intent into a tombstone: whatever was put is deleted later.
func (u *Upload) Abort() error {
	return u.v.buryMarker("upload:abort", u.v.dirs.intents, uploadFile(u.Record), u.Record)
}

// Close gives the upload's descriptors back, and the memory that its reading took.
func (u *Upload) Close() {
	u.cold.Drop()
	u.cold = ColdPages{}
	for _, fd := range u.fds {
		_ = unix.Close(fd)
	}
	u.fds = nil
}
