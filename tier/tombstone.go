package tier

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
)

// A Tombstone is an upload whose objects are to be deleted.
type Tombstone struct {
	name   string
	Record marker.Record
	// Due is when the grace ends.
	Due time.Time

	inode handle.Handle // of one found at boot
	waits bool          // for a hole or a quarantine in its partition to go
}

// uploadFile is what the record of an upload is called among intents and
// tombstones.
func uploadFile(rec marker.Record) string {
	return fmt.Sprintf("%s-%020d-%s", rec.Incarnation, rec.Start, rec.UploadID)
}

// uploadOf undoes uploadFile, as far as the name goes.
func uploadOf(name string) (marker.Record, error) {
	var rec marker.Record
	parts := strings.Split(name, "-")
	if len(parts) != 3 || len(parts[1]) != 20 {
		return rec, fmt.Errorf("%q is not the name of an upload", name)
	}
	var err1, err2, err3 error
	rec.Incarnation, err1 = marker.ParseIncarnation(parts[0])
	rec.Start, err2 = strconv.ParseUint(parts[1], 10, 64)
	rec.UploadID, err3 = marker.ParseUploadID(parts[2])
	return rec, errors.Join(err1, err2, err3)
}

// IsUpload reports whether an intent or a tombstone can have that name.
func IsUpload(name string) bool {
	_, err := uploadOf(name)
	return err == nil
}

// loadTombstones enters the tombstones on disk, at boot. Their grace goes on where it was,
// by the change time of the file; a clock that jumped can make it start anew, but
// never longer than one grace ahead.
func (v *Volume) loadTombstones() error {
	names, err := readNames(v.dirs.tombstones)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, name := range names {
		rec, err := uploadOf(name)
		if err != nil {
			v.log.Warn("stranger among the tombstones", "file", stateDir+"/tombstones/"+name)
			continue
		}
		var st unix.Stat_t
		if err := fstatat(v.dirs.tombstones, name, &st); err != nil {
			return err
		}
		age := now.Sub(time.Unix(st.Ctim.Unix()))
		due := now.Add(v.opt.DeleteGrace - min(max(age, 0), v.opt.DeleteGrace))
		v.mu.Lock()
		v.tombstones[name] = &Tombstone{name: name, Record: rec, Due: due}
		v.mu.Unlock()
		v.loadUnlinked(name)
	}
	return nil
}

// loadUnlinked notes the inode of a tombstone: that of a segment which was
// unlinked while it was remote is its marker, and a predecessor may have left it
// open. A tombstone that is no such record is the inode of no segment.
func (v *Volume) loadUnlinked(name string) {
	rec, err := marker.Read(v.dirs.tombstones, name)
	if err != nil {
		return
	}
	h, err := handle.At(v.dirs.tombstones, name)
	if err != nil {
		return
	}
	v.mu.Lock()
	v.unlinked[h] = nameless{state: Remote, rec: rec}
	v.tombstones[name].inode = h
	v.mu.Unlock()
}

// rewritten tells that an unlinked file has bytes of its own again.
func (v *Volume) rewritten(f *File) {
	v.unretain(f)
	v.mu.Lock()
	delete(v.unlinked, f.handle)
	v.mu.Unlock()
}

// buried enters a tombstone that is durable on disk.
func (v *Volume) buried(rec marker.Record) {
	name := uploadFile(rec)
	v.mu.Lock()
	v.tombstones[name] = &Tombstone{name: name, Record: rec, Due: time.Now().Add(v.opt.DeleteGrace)}
	v.mu.Unlock()
	v.wakeRetirer()
}

// buryMarker makes a marker in a directory the tombstone of its upload: one
// rename, which needs no space and no store.
func (v *Volume) buryMarker(step string, dir int, marker string, rec marker.Record) error {
	err := v.step(step, func() error {
		err := renameat(dir, marker, v.dirs.tombstones, uploadFile(rec), 0)
		if errors.Is(err, unix.ENOENT) { // an earlier try failed behind the rename
			var st unix.Stat_t
			if fstatat(v.dirs.tombstones, uploadFile(rec), &st) == nil {
				err = nil
			}
		}
		if err != nil {
			return err
		}
		if err := durable.SyncDir(v.dirs.tombstones); err != nil {
			return err
		}
		return durable.SyncDir(dir)
	})
	if err == nil {
		v.buried(rec)
	}
	return err
}

// buryCopy writes a tombstone beside a marker that stays for now.
func (v *Volume) buryCopy(step string, rec marker.Record) error {
	err := v.step(step, func() error { return marker.Write(v.dirs.tombstones, uploadFile(rec), rec) })
	if err == nil {
		v.buried(rec)
	}
	return err
}

// Tombstones lists the uploads that wait for their deletion.
func (v *Volume) Tombstones() []Tombstone {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]Tombstone, 0, len(v.tombstones))
	for _, t := range v.tombstones {
		out = append(out, *t)
	}
	return out
}
