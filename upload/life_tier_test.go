package upload

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// What the background does, each thing to its end before the next: the loops decide
// nothing but when.

// lifeUpload is an upload that the broker overtakes.
type lifeUpload struct {
	proof *tier.Proof
	up    *tier.Upload
	sent  int
}

func (u *lifeUpload) close() {
	if u.proof != nil {
		u.proof.Close()
	}
	if u.up != nil {
		u.up.Close()
	}
}

// background does one thing for which nothing that the broker sees may change.
func (m *life) background(what string, run func() error) {
	m.tolerate(what, m.try(what, run))
}

// tolerate ends the life for an error that nothing explains.
func (m *life) tolerate(what string, err error) {
	refused, notWhole := (*tier.Refused)(nil), (*tier.NotWhole)(nil)
	switch {
	case err == nil, errors.As(err, &refused), errors.As(err, &notWhole):
	case errors.Is(err, unix.ESTALE), errors.Is(err, unix.ENOENT): // the broker has deleted it
	case m.weather != fair && (objstore.Retryable(err) || errors.Is(err, objstore.ErrAuth) || errors.Is(err, tier.ErrUnavailable)):
	default:
		m.must(what, err)
	}
}

func (m *life) claim() {
	m.background("claim", func() error { return m.v.CheckOwner(context.Background()) })
}

// catalogued draws one of the partitions that the catalog knows.
func (m *life) catalogued(t *rapid.T) *tier.Partition {
	var paths []string
	for _, p := range m.v.Partitions() {
		paths = append(paths, p.Path())
	}
	p, _ := m.v.PartitionOf(pick(t, "partition", paths))
	return p
}

// segment draws one of all segments that the catalog knows.
func (m *life) segment(t *rapid.T, ok func(tier.Segment) bool) (*tier.Partition, tier.Segment) {
	p := m.catalogued(t)
	var segs []tier.Segment
	for _, s := range p.Segments() {
		if ok == nil || ok(s) {
			segs = append(segs, s)
		}
	}
	if len(segs) == 0 {
		t.Skip("nothing there")
	}
	s := segs[rapid.IntRange(0, len(segs)-1).Draw(t, "segment")]
	t.Logf("%s/%d", p.Path(), s.Start)
	return p, s
}

// uploadNext is one turn of a partition's lane, as the uploader starts and ends it;
// false: the lane has nothing to do now.
func (m *life) uploadNext(p *tier.Partition) bool {
	u := m.b.uploader
	if !m.b.mayAct() {
		return false
	}
	m.background("look", func() error { u.refresh(p, true); return nil })
	l := u.lanes[p]
	if l == nil || !l.ready(time.Now()) {
		return false
	}
	a := l.held
	if a == nil {
		a = &attempt{p: l.p, s: l.next, changes: l.next.File.Changes()}
	} else {
		l.held = nil
		u.held--
	}
	l.busy, l.waiting = true, 1 // nothing is proved ahead: that would be another goroutine
	u.running++
	m.background("upload", func() error {
		r := u.carry(context.Background(), l, a)
		l.waiting = len(l.wanted(p.Segments()))
		u.backlog = l.waiting
		u.finish(context.Background(), r)
		if m.weather == fair || objstore.Retryable(r.err) {
			return r.err
		}
		return nil
	})
	return true
}

func (m *life) upload(t *rapid.T) {
	if !m.uploadNext(m.catalogued(t)) {
		t.Skip("nothing to upload")
	}
}

func (m *life) uploadAll() {
	for _, p := range m.v.Partitions() {
		for range 30 {
			if !m.uploadNext(p) {
				break
			}
		}
	}
}

// uploadStep takes an upload one step further, or begins one.
func (m *life) uploadStep(t *rapid.T) {
	if m.v.Owner() != nil {
		t.Skip("not claimed")
	}
	ctx := context.Background()
	i := rapid.IntRange(0, 2).Draw(t, "which")
	if i >= len(m.under) {
		p, s := m.segment(t, nil)
		m.background("prove", func() error {
			proof, err := m.v.Prove(ctx, p, s)
			if err == nil {
				m.under = append(m.under, &lifeUpload{proof: proof})
			}
			return err
		})
		return
	}
	u := m.under[i]
	done := func() { m.under = slices.DeleteFunc(m.under, func(o *lifeUpload) bool { return o == u }) }
	switch {
	case u.proof != nil:
		proof := u.proof
		u.proof = nil
		m.background("begin", func() (err error) {
			if u.up, err = proof.Begin(); err != nil {
				done()
			}
			return err
		})
	case u.sent < len(u.up.Objects):
		m.background("put", func() error {
			o := u.up.Objects[u.sent]
			err := m.store.Put(ctx, o.Key, o.Body, objstore.PutOptions{Metadata: o.Metadata})
			if err == nil {
				u.sent++
				return nil
			}
			if hopeless(err) { // changed meanwhile
				defer u.up.Close()
				done()
				return u.up.Abort()
			}
			return err
		})
	default:
		defer done()
		m.background("commit", func() error {
			defer u.up.Close()
			return u.up.Commit()
		})
	}
}

// evict asks for any segment, whether it may go or not.
func (m *life) evict(t *rapid.T) {
	p, s := m.segment(t, nil)
	m.background("evict", func() error { return m.v.Evict(context.Background(), p, s) })
}

// evictBackwards asks for all segments, in the order in which the fewest may go.
func (m *life) evictBackwards(*rapid.T) {
	for _, p := range m.v.Partitions() {
		for _, s := range slices.Backward(p.Segments()) {
			m.background("evict", func() error { return m.v.Evict(context.Background(), p, s) })
		}
	}
}

// undermine makes one segment local below others that are uploaded, and asks for these.
func (m *life) undermine(t *rapid.T) {
	m.uploadAll()
	m.overwrite(t)
	m.evictBackwards(t)
}

func (m *life) evictByRule(r Rule) {
	m.b.opt.Retention.For = func(string) Rule { return r }
	m.background("evict by rule", func() error {
		m.b.evictor.changed(context.Background(), m.v.Partitions())
		return nil
	})
	m.b.opt.Retention = keepAll()
}

// tierOut makes everything remote that may be.
func (m *life) tierOut(*rapid.T) {
	m.checkpoint()
	m.uploadAll()
	m.evictByRule(Rule{Tiered: true})
}

func (m *life) rehydrate(t *rapid.T) {
	_, s := m.segment(t, func(s tier.Segment) bool { return s.State == tier.Remote || s.State == tier.Filling })
	m.background("rehydrate", func() error { return m.v.Rehydrate(context.Background(), s.File) })
}

// retire lets time pass, and deletes what is due.
func (m *life) retire(wait time.Duration) {
	time.Sleep(wait)
	m.background("retire", func() error {
		m.b.retirer.pass(context.Background())
		return nil
	})
}
