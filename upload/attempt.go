package upload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// attempt is the upload of one segment. What the store failed is tried again with
// the same keys and bytes, so that an outage costs neither a second reading of the
// segment nor a tombstone for each try.
type attempt struct {
	p       *tier.Partition
	s       tier.Segment
	changes int64        // of the file when the attempt began
	ahead   *ahead       // a proof that the attempt can begin with; may be nil
	up      *tier.Upload // nil until it is prepared
	sent    []bool       // for each object of it: put and proved
}

// isOf reports whether the attempt is of a segment's present bytes.
func (a *attempt) isOf(s tier.Segment) bool {
	return a.s.File == s.File && a.s.Start == s.Start && a.changes == s.File.Changes()
}

// abort leaves what was put to the retirer.
func (a *attempt) abort() error {
	if a.up == nil {
		return nil
	}
	defer a.close()
	return a.up.Abort()
}

func (a *attempt) close() {
	a.up.Close()
	a.up = nil
}

// result is how an attempt ended.
type result struct {
	l    *lane
	a    *attempt
	err  error
	took time.Duration
	// store: the store failed, and the attempt can go on where it was.
	store    bool
	prepared bool          // there was an upload, not only a look
	record   marker.Record // of it
	ahead    *ahead        // of the segment behind it; may be nil
}

// carry takes an attempt as far as it goes. A result without store has left no
// upload behind.
func (u *uploader) carry(ctx context.Context, l *lane, a *attempt) (r result) {
	began := time.Now()
	r = result{l: l, a: a}
	defer func() { r.took = time.Since(began) }()
	if a.up == nil {
		up, err := u.prepare(ctx, a)
		if err != nil {
			r.err = err
			return r
		}
		a.up, a.sent = up, make([]bool, len(up.Objects))
	}
	r.prepared, r.record = true, a.up.Record
	r.ahead = u.lookAhead(ctx, l, a)
	if r.err = u.send(ctx, a); r.err == nil {
		r.err = a.up.Commit()
		a.close()
		return r
	}
	if r.store = ctx.Err() == nil && !hopeless(r.err); !r.store {
		if err := a.abort(); err != nil {
			r.err = fmt.Errorf("%w; and its intent stays until the next mount: %v", r.err, err)
		}
	}
	return r
}

// prepare begins with what was proved ahead. What could not be taken then, or is
// not what it was, may be now.
func (u *uploader) prepare(ctx context.Context, a *attempt) (*tier.Upload, error) {
	if h := a.ahead; h != nil {
		a.ahead = nil
		up, err := h.begin()
		if _, refused := errors.AsType[*tier.Refused](err); !refused {
			return up, err
		}
	}
	return u.b.opt.Volume.Prepare(ctx, a.p, a.s)
}

// hopeless reports whether the same bytes under the same key cannot succeed: the
// file is not what it was when the attempt began, or cannot be read.
func hopeless(err error) bool {
	for _, e := range []error{objstore.ErrChecksum, objstore.ErrExists, objstore.ErrInvalid, objstore.ErrTooLarge, unix.EIO, unix.ESTALE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// send puts each object and proves that the store has it: the files beside the
// segment all at once, because each costs a small file's latency, and then the
// segment, so that no listing shows a segment without what belongs to it.
func (u *uploader) send(ctx context.Context, a *attempt) error {
	opt := &u.b.opt
	features := opt.Features()
	var bytes int64
	for i, o := range a.up.Objects {
		if !a.sent[i] {
			bytes += o.Body.Size
		}
	}
	ctx, cancel := context.WithTimeout(ctx, opt.deadline(bytes, opt.VerifyAlways || !features.EnforcesChecksum))
	defer cancel()
	beside, each := errgroup.WithContext(ctx)
	for i, o := range a.up.Objects {
		if !o.Log && !a.sent[i] {
			beside.Go(func() error { return u.sendObject(each, a, i, features) })
		}
	}
	if err := beside.Wait(); err != nil {
		return err
	}
	for i, o := range a.up.Objects {
		if o.Log && !a.sent[i] {
			return u.sendObject(ctx, a, i, features)
		}
	}
	return nil
}

func (u *uploader) sendObject(ctx context.Context, a *attempt, i int, features objstore.Features) error {
	opt, o := &u.b.opt, a.up.Objects[i]
	put := objstore.PutOptions{IfAbsent: opt.ConditionalWrites && features.ConditionalPut, Metadata: o.Metadata}
	if o.Log {
		put.StorageClass = opt.StorageClass
	}
	body := o.Body
	body.R = throttle(ctx, u.limiter, body.R)
	if err := opt.Store.Put(ctx, o.Key, body, put); err != nil {
		return err
	}
	if err := objstore.Verify(ctx, opt.Store, o.Key, o.Body, features, opt.VerifyAlways); err != nil {
		return err
	}
	a.sent[i] = true
	return nil
}

// deadline is the time that the upload of so many bytes may take: the leaves are
// the deadlines of single requests, around the store.
func (o *Options) deadline(bytes int64, readBack bool) time.Duration {
	d := o.SegmentTimeout + transfer(bytes, FloorRate(o.Bandwidth, o.Concurrency))
	if readBack {
		d += transfer(bytes, FloorRate(Unlimited, 1))
	}
	return d
}

func transfer(bytes, rate int64) time.Duration {
	return time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
}
