package storetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tierfs/tierfs/objstore"
)

var absent = objstore.PutOptions{IfAbsent: true}

var conditionalCases = []testCase{
	{"if_absent_new", func(t *testing.T, s objstore.Store) {
		if err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(1, 1000)), absent); err != nil {
			t.Fatal(err)
		}
		wantRange(t, s, "d/k", 0, data(1, 1000))
	}},
	{"if_absent_same", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 3<<20))
		if err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(1, 3<<20)), absent); err != nil {
			t.Fatal(err)
		}
		wantRange(t, s, "d/k", 0, data(1, 3<<20))
	}},
	{"if_absent_other", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 1000))
		err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(2, 1000)), absent)
		wantErr(t, "same size", err, objstore.ErrExists)
		err = s.Put(t.Context(), "d/k", objstore.BytesBody(data(1, 999)), absent)
		wantErr(t, "other size", err, objstore.ErrExists)
		err = s.Put(t.Context(), "d/k", objstore.BytesBody(nil), absent)
		wantErr(t, "empty", err, objstore.ErrExists)
		wantRange(t, s, "d/k", 0, data(1, 1000))
	}},
	{"if_absent_other_large", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 1000))
		for range 3 {
			err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(2, 8<<20)), absent)
			wantErr(t, "put", err, objstore.ErrExists)
		}
		wantRange(t, s, "d/k", 0, data(1, 1000))
	}},
	{"if_absent_after_delete", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 1000))
		if err := s.Delete(t.Context(), "d/k"); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(2, 10)), absent); err != nil {
			t.Fatal(err)
		}
		wantRange(t, s, "d/k", 0, data(2, 10))
	}},
	{"if_absent_16_at_once", func(t *testing.T, s objstore.Store) {
		var won atomic.Int32
		winner := make(chan int, 16)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(i, 200_000)), absent)
				switch {
				case err == nil:
					won.Add(1)
					winner <- i
				case !errors.Is(err, objstore.ErrExists):
					t.Errorf("put %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d puts won", won.Load())
		}
		wantRange(t, s, "d/k", 0, data(<-winner, 200_000))
	}},
	{"if_absent_16_the_same", func(t *testing.T, s objstore.Store) {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(1, 200_000)), absent); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		wantRange(t, s, "d/k", 0, data(1, 200_000))
	}},
}
