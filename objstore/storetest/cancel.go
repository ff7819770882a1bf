package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

var cancelCases = []testCase{
	{"cancel_before", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(1, 10))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, "put", s.Put(ctx, "l", objstore.BytesBody(nil), objstore.PutOptions{}), context.Canceled)
		wantErr(t, "put if absent", s.Put(ctx, "l", objstore.BytesBody(nil), absent), context.Canceled)
		_, err := s.GetRange(ctx, "k", 0, 1)
		wantErr(t, "get", err, context.Canceled)
		_, err = s.Head(ctx, "k")
		wantErr(t, "head", err, context.Canceled)
		wantErr(t, "delete", s.Delete(ctx, "k"), context.Canceled)
		_, err = s.List(ctx, "", "")
		wantErr(t, "list", err, context.Canceled)
		if c := objstore.Class(err); c != "canceled" {
			t.Fatalf("class %q", c)
		}
		wantMissing(t, s, "l")
		wantRange(t, s, "k", 0, data(1, 10))
	}},
	{"cancel_put_at_the_start", func(t *testing.T, s objstore.Store) { cancelPut(t, s, 0) }},
	{"cancel_put_half_way", func(t *testing.T, s objstore.Store) { cancelPut(t, s, cancelSize/2) }},
	{"cancel_put_near_the_end", func(t *testing.T, s objstore.Store) { cancelPut(t, s, cancelSize-1<<20) }},
	{"cancel_put_that_goes_on", cancelPutGoesOn},
	{"cancel_put_keeps_old", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(9, 500))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := s.Put(ctx, "d/k", cancelingBody(cancelSize/2, cancel), objstore.PutOptions{})
		wantCanceled(t, err)
		wantRange(t, s, "d/k", 0, data(9, 500))
	}},
	{"cancel_get_half_way", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(1, cancelSize))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := s.GetRange(ctx, "k", 0, cancelSize)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		cancel()
		_, err = io.Copy(io.Discard, r)
		wantErr(t, "read", err, context.Canceled)
		wantRange(t, s, "k", 0, data(1, cancelSize))
	}},
	{"canceled_put_waits_for_its_source", canceledPutWaits},
	{"deadline", func(t *testing.T, s objstore.Store) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		src := readerAt(func(b []byte, off int64) (int, error) {
			if off > 1<<20 {
				<-ctx.Done()
			}
			return pattern(1).ReadAt(b, off)
		})
		body := objstore.Body{R: src, Size: cancelSize, CRC64NVME: objstore.BytesBody(data(1, cancelSize)).CRC64NVME}
		err := s.Put(ctx, "d/k", body, objstore.PutOptions{})
		wantErr(t, "put", err, context.DeadlineExceeded)
		if c := objstore.Class(err); c != "retry" {
			t.Fatalf("class %q", c)
		}
		wantMissing(t, s, "d/k")
	}},
}

const cancelSize = 6 << 20

var errStopped = errors.New("source stopped")

// cancelingBody calls cancel when it is read beyond at, and gives nothing more.
func cancelingBody(at int64, cancel func()) objstore.Body {
	src := readerAt(func(b []byte, off int64) (int, error) {
		if off+int64(len(b)) > at {
			cancel()
			return 0, errStopped
		}
		return pattern(1).ReadAt(b, off)
	})
	return objstore.Body{R: src, Size: cancelSize, CRC64NVME: objstore.BytesBody(data(1, cancelSize)).CRC64NVME}
}

// wantCanceled accepts either of the two things that happened.
func wantCanceled(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, context.Canceled) && !errors.Is(err, errStopped) {
		t.Fatalf("put: got error %v, want one that says canceled", err)
	}
}

func cancelPut(t *testing.T, s objstore.Store, at int64) {
	for _, opts := range []objstore.PutOptions{{}, absent} {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		err := s.Put(ctx, "d/k", cancelingBody(at, cancel), opts)
		cancel()
		wantCanceled(t, err)
		if d := time.Since(start); d > 5*time.Second {
			t.Fatalf("took %v to end", d)
		}
		wantMissing(t, s, "d/k")
	}
}

// cancelPutGoesOn: a source that gives all its bytes while the Put is canceled may
// leave the whole object or none.
func cancelPutGoesOn(t *testing.T, s objstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := readerAt(func(b []byte, off int64) (int, error) {
		if off > cancelSize/2 {
			cancel()
		}
		return pattern(1).ReadAt(b, off)
	})
	body := objstore.Body{R: src, Size: cancelSize, CRC64NVME: objstore.BytesBody(data(1, cancelSize)).CRC64NVME}
	if err := s.Put(ctx, "d/k", body, objstore.PutOptions{}); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	got, err := get(t.Context(), s, "d/k", 0, cancelSize)
	if errors.Is(err, objstore.ErrNotFound) {
		return
	}
	if err != nil || !bytes.Equal(got, data(1, cancelSize)) {
		t.Fatalf("part of an object, or %v", err)
	}
}

// canceledPutWaits: while somebody reads the source, its owner must not be told
// that the Put is over.
func canceledPutWaits(t *testing.T, s objstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reading, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	src := readerAt(func(b []byte, off int64) (int, error) {
		if off > cancelSize/2 {
			once.Do(func() { close(reading) })
			<-release
		}
		return pattern(1).ReadAt(b, off)
	})
	body := objstore.Body{R: src, Size: cancelSize, CRC64NVME: objstore.BytesBody(data(1, cancelSize)).CRC64NVME}
	done := make(chan error, 1)
	go func() { done <- s.Put(ctx, "d/k", body, objstore.PutOptions{}) }()
	<-reading
	cancel()
	select {
	case err := <-done:
		close(release)
		t.Fatalf("put ended while its source was being read: %v", err)
	case <-time.After(100 * time.Millisecond): // for what must not happen
	}
	close(release)
	wantErr(t, "put", <-done, context.Canceled)
	wantMissing(t, s, "d/k")
}
