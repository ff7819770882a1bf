package tier

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
)

// upload identifies one upload wherever a record names it.
type uploadKey struct {
	inc marker.Incarnation
	id  marker.UploadID
}

func keyOf(rec marker.Record) uploadKey { return uploadKey{rec.Incarnation, rec.UploadID} }

// Due lists the tombstones whose grace is over, at most limit, and when the next
// one's will be (zero: none waits).
func (v *Volume) Due(now time.Time, limit int) (due []Tombstone, next time.Time) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, t := range v.tombstones {
		switch {
		case t.Due.After(now):
			if next.IsZero() || t.Due.Before(next) {
				next = t.Due
			}
		case len(due) < limit:
			due = append(due, *t)
		default:
			next = now
		}
	}
	return due, next
}

// Retire deletes the objects of tombstones whose grace is over, and then the
// tombstones. It deletes nothing that a marker or an open handle names, nothing of
// a partition with a hole or a quarantined segment, and nothing at all unless the store
// still says that this mount owns the volume. It returns how many uploads went. One
// that the store refuses to delete is left for later, and stops no other.
func (v *Volume) Retire(ctx context.Context, due []Tombstone) (int, error) {
	use := v.inUse(due)
	var ready []doomed
	for _, t := range due {
		if use.names(t.Record) {
			v.postpone(t, usedPause, use.holdsBack(t.Record))
			continue
		}
		keys, err := v.keysOf(t.Record)
		if err != nil {
			v.log.Error("a tombstone names no known partition", "tombstone", t.name, "err", err)
			v.postpone(t, usedPause, false)
			continue
		}
		ready = append(ready, doomed{t, keys})
	}
	if len(ready) == 0 {
		return 0, nil
	}
	if err := v.CheckOwner(ctx); err != nil {
		return 0, err
	}
	gone, err := v.deleteObjects(ctx, ready)
	for i, d := range gone {
		if err := v.removeTombstone(d.Tombstone); err != nil {
			return i, err
		}
	}
	v.forgetIncarnations(append(incarnations(gone), v.takeVacant()...))
	return len(gone), err
}

// doomed is a tombstone with the keys of its objects.
type doomed struct {
	Tombstone
	keys []string
}

// keysOf are the keys of all objects that an upload may have put.
func (v *Volume) keysOf(rec marker.Record) ([]string, error) {
	var keys []string
	for _, suffix := range v.suffixes(rec.Incarnation) {
		key, err := v.key(rec, suffix)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// deleteObjects deletes the objects of all, and returns those whose objects are
// gone. If the store refuses, it is asked upload by upload: a lock or a policy may
// keep one object for years, which is no reason to keep the others.
func (v *Volume) deleteObjects(ctx context.Context, all []doomed) (gone []doomed, err error) {
	var keys []string
	for _, d := range all {
		keys = append(keys, d.keys...)
	}
	err = v.deleteKeys(ctx, keys)
	if err == nil {
		return all, nil
	}
	refused := 0
	for _, d := range all {
		if ctx.Err() != nil || !refusal(err) || len(gone) == 0 && refused == maxRefused {
			return gone, err
		}
		one := v.deleteKeys(ctx, d.keys)
		if one == nil {
			gone = append(gone, d)
			continue
		}
		if err = one; !refusal(err) {
			return gone, err
		}
		refused++
		v.opt.Metrics.RetireRefused()
		v.log.Warn("the store refuses to delete the objects of an upload", "object", d.keys[len(d.keys)-1], "err", err)
		v.postpone(d.Tombstone, refusedPause, false)
	}
	return gone, nil
}

func (v *Volume) deleteKeys(ctx context.Context, keys []string) error {
	return v.point("retire:delete", func() error { return v.opt.Store.Delete(ctx, keys...) })
}

// maxRefused is how many uploads in a row are asked for one by one when the store
// refuses each: then it is not about one of them.
const maxRefused = 8

// refusal reports whether a failure may be about one key only.
func refusal(err error) bool {
	return !objstore.Retryable(err) && !errors.Is(err, objstore.ErrConfig) && !errors.Is(err, context.Canceled)
}

// suffixes are those of all files that an upload of the partition may have put; the
// segment's own comes last, so that a listing never shows a file beside nothing.
func (v *Volume) suffixes(inc marker.Incarnation) []string {
	v.mu.RLock()
	kind := v.registry[inc].Layout
	v.mu.RUnlock()
	var out []string
	if rules, err := layout.New(kind, 0); err == nil {
		out = append(out, rules.SideSuffixes()...)
	}
	return append(out, logSuffix)
}

// use is what the records of a volume name.
type use struct {
	live map[uploadKey]bool // by a marker or an open handle
	// waits are incarnations of partitions with a hole, or in which a segment's record
	// cannot be read; all: it may be of any.
	waits map[marker.Incarnation]bool
	all   bool
}

// names reports whether a record's object may be needed.
func (u use) names(rec marker.Record) bool {
	return u.live[keyOf(rec)] || u.holdsBack(rec)
}

// holdsBack reports whether a record's object may be the only copy of what is
// missing.
func (u use) holdsBack(rec marker.Record) bool { return u.all || u.waits[rec.Incarnation] }

// inUse looks at the whole catalog, and at the directories of the partitions that
// the tombstones are of.
func (v *Volume) inUse(due []Tombstone) use {
	v.mu.RLock()
	files := make([]*File, 0, len(v.files))
	for _, f := range v.files {
		files = append(files, f)
	}
	v.mu.RUnlock()
	u := use{live: map[uploadKey]bool{}, waits: map[marker.Incarnation]bool{}}
	for _, f := range files {
		f.mu.RLock()
		switch {
		case f.hasRecord() && (len(f.links) > 0 || f.opens.Load() > 0):
			u.live[keyOf(f.rec)] = true
		case f.state == Quarantined:
			v.wait(&u, f.links)
		}
		f.mu.RUnlock()
	}
	v.waitForHoles(&u, due)
	return u
}

// wait notes the partitions of a quarantined file. Where one cannot be told, its
// object may be anybody's.
func (v *Volume) wait(u *use, links []link) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, l := range links {
		var inc marker.Incarnation
		if p := v.partitions[l.dir]; p != nil {
			inc = p.state.incarnation()
		}
		if inc.IsZero() {
			u.all = true
			continue
		}
		u.waits[inc] = true
	}
}

const (
	// usedPause is after how long, at most, a tombstone is looked at again whose
	// upload something names, refusedPause one that the store refused to delete.
	usedPause    = time.Minute
	refusedPause = 10 * time.Minute
)

// postpone looks at a tombstone again later: what stands against it may go. One that
// waits is looked at as soon as a hole or a quarantine went.
func (v *Volume) postpone(t Tombstone, pause time.Duration, waits bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if have := v.tombstones[t.name]; have != nil {
		have.Due = time.Now().Add(min(max(v.opt.DeleteGrace, time.Second), pause))
		have.waits = waits
	}
}

func (v *Volume) removeTombstone(t Tombstone) error {
	if v.opt.Cache != nil {
		if key, err := v.key(t.Record, logSuffix); err == nil {
			v.opt.Cache.Drop(key)
		}
	}
	err := v.step("retire:tombstone", func() error { return durable.Unlink(v.dirs.tombstones, t.name) })
	if err != nil && !errors.Is(err, unix.ENOENT) { // two may retire it at once
		return err
	}
	v.mu.Lock()
	n := v.unlinked[t.inode]
	delete(v.tombstones, t.name)
	delete(v.unlinked, t.inode)
	v.mu.Unlock()
	v.retained.drop(v.log, n.retained)
	return nil
}

func incarnations(ts []doomed) []marker.Incarnation {
	out := make([]marker.Incarnation, len(ts))
	for i, t := range ts {
		out[i] = t.Record.Incarnation
	}
	return out
}

// takeVacant takes the incarnations of removed directories. Those that a record still
// names are asked for again when that goes.
func (v *Volume) takeVacant() []marker.Incarnation {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := v.vacant
	v.vacant = nil
	return out
}

// forgetIncarnations removes those of the registry's entries whose partitions are
// gone and of which no record is left.
func (v *Volume) forgetIncarnations(of []marker.Incarnation) {
	if of = v.placeless(of); len(of) == 0 {
		return
	}
	// In this order no record is missed on its way: an intent becomes a record or a
	// tombstone, a record a tombstone.
	used := map[marker.Incarnation]bool{}
	if err := addUploads(used, v.dirs.intents); err != nil {
		return
	}
	u := v.inUse(nil)
	if u.all || len(u.waits) > 0 {
		return
	}
	for k := range u.live {
		used[k.inc] = true
	}
	if err := addUploads(used, v.dirs.tombstones); err != nil {
		return
	}
	for _, inc := range of {
		if used[inc] {
			continue
		}
		used[inc] = true
		err := v.step("retire:registry", func() error { return durable.Unlink(v.dirs.partitions, inc.String()) })
		if err != nil {
			v.log.Warn("cannot remove a registry entry", "incarnation", inc, "err", err)
			continue
		}
		v.mu.Lock()
		delete(v.registry, inc)
		v.mu.Unlock()
	}
}

// addUploads adds the incarnations of the intents or tombstones of a directory.
func addUploads(to map[marker.Incarnation]bool, dir int) error {
	names, err := readNames(dir)
	for _, name := range names {
		if rec, err := uploadOf(name); err == nil {
			to[rec.Incarnation] = true
		}
	}
	return err
}

// placeless leaves out the incarnations that a partition or a tombstone has, or may
// have.
func (v *Volume) placeless(of []marker.Incarnation) []marker.Incarnation {
	used := map[marker.Incarnation]bool{}
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, t := range v.tombstones {
		used[t.Record.Incarnation] = true
	}
	for _, p := range v.partitions {
		if p.unread {
			return nil
		}
		used[p.state.incarnation()] = true
	}
	return slices.DeleteFunc(of, func(inc marker.Incarnation) bool { return used[inc] })
}
