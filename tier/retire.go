package tier

import (
	"context"
	"time"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
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
// a partition with a quarantined segment, and nothing at all unless the store
// still says that this mount owns the volume. It returns how many uploads went.
func (v *Volume) Retire(ctx context.Context, due []Tombstone) (int, error) {
	live, quarantined := v.inUse()
	var ready []Tombstone
	var keys []string
	for _, t := range due {
		if live[keyOf(t.Record)] || quarantined[t.Record.Incarnation] {
			v.postpone(t)
			continue
		}
		for _, suffix := range v.suffixes(t.Record.Incarnation) {
			key, err := v.key(t.Record, suffix)
			if err != nil {
				v.log.Error("a tombstone names no known partition", "tombstone", t.name, "err", err)
				v.postpone(t)
				break
			}
			keys = append(keys, key)
			if suffix == logSuffix {
				ready = append(ready, t)
			}
		}
	}
	if len(ready) == 0 {
		return 0, nil
	}
	if err := v.CheckOwner(ctx); err != nil {
		return 0, err
	}
	if err := v.step("retire:delete", func() error { return v.opt.Store.Delete(ctx, keys...) }); err != nil {
		return 0, err
	}
	for i, t := range ready {
		if err := v.removeTombstone(t); err != nil {
			return i, err
		}
	}
	v.forgetIncarnations(ready)
	return len(ready), nil
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

// inUse collects the uploads that a marker or an open handle names, and the
// incarnations of partitions in which a segment's record cannot be read.
func (v *Volume) inUse() (map[uploadKey]bool, map[marker.Incarnation]bool) {
	v.mu.RLock()
	files := make([]*File, 0, len(v.files))
	for _, f := range v.files {
		files = append(files, f)
	}
	v.mu.RUnlock()
	live, bad := map[uploadKey]bool{}, map[marker.Incarnation]bool{}
	for _, f := range files {
		f.mu.RLock()
		switch {
		case f.hasRecord() && (len(f.links) > 0 || f.opens.Load() > 0):
			live[keyOf(f.rec)] = true
		case f.state == Quarantined:
			for _, inc := range v.incarnationsOf(f.links) {
				bad[inc] = true
			}
		}
		f.mu.RUnlock()
	}
	return live, bad
}

func (v *Volume) incarnationsOf(links []link) []marker.Incarnation {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []marker.Incarnation
	for _, l := range links {
		if p := v.partitions[l.dir]; p != nil {
			if inc, err := marker.ParseIncarnation(p.state.Incarnation); err == nil {
				out = append(out, inc)
			}
		}
	}
	return out
}

// postpone looks at a tombstone again later: what names its upload may go.
func (v *Volume) postpone(t Tombstone) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if have := v.tombstones[t.name]; have != nil {
		have.Due = time.Now().Add(min(max(v.opt.DeleteGrace, time.Second), time.Minute))
	}
}

func (v *Volume) removeTombstone(t Tombstone) error {
	if v.opt.Cache != nil {
		if key, err := v.key(t.Record, logSuffix); err == nil {
			v.opt.Cache.Drop(key)
		}
	}
	err := v.step("retire:tombstone", func() error { return durable.Unlink(v.dirs.tombstones, t.name) })
	if err != nil {
		return err
	}
	v.mu.Lock()
	delete(v.tombstones, t.name)
	v.mu.Unlock()
	return nil
}

// forgetIncarnations removes the registry's entries of partitions that are gone
// and of which no record is left.
func (v *Volume) forgetIncarnations(retired []Tombstone) {
	live, _ := v.inUse()
	used := map[marker.Incarnation]bool{}
	intents, err := readNames(v.dirs.intents)
	if err != nil {
		return
	}
	for _, name := range intents {
		if rec, err := uploadOf(name); err == nil {
			used[rec.Incarnation] = true
		}
	}
	for k := range live {
		used[k.inc] = true
	}
	v.mu.RLock()
	for _, t := range v.tombstones {
		used[t.Record.Incarnation] = true
	}
	for _, p := range v.partitions {
		if inc, err := marker.ParseIncarnation(p.state.Incarnation); err == nil {
			used[inc] = true
		}
	}
	v.mu.RUnlock()
	for _, t := range retired {
		inc := t.Record.Incarnation
		if used[inc] {
			continue
		}
		used[inc] = true
		if err := durable.Unlink(v.dirs.partitions, inc.String()); err != nil {
			v.log.Warn("cannot remove a registry entry", "incarnation", inc, "err", err)
			continue
		}
		v.mu.Lock()
		delete(v.registry, inc)
		v.mu.Unlock()
	}
}
