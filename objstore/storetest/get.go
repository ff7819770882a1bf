package storetest

import (
	"io"
	"math"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

const objectSize = 1<<20 + 7

var getCases = []testCase{
	{"range_edges", func(t *testing.T, s objstore.Store) {
		all := data(3, objectSize)
		mustPut(t, s, "d/k", all)
		for _, r := range [][2]int{{0, 1}, {0, objectSize}, {objectSize - 1, 1}, {1, objectSize - 1}, {1, 1}, {65535, 2}, {4096, 4096}, {objectSize - 4096, 4096}} {
			wantRange(t, s, "d/k", int64(r[0]), all[r[0]:r[0]+r[1]])
		}
	}},
	{"range_past_the_end", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(1, 100))
		for _, r := range [][2]int64{{0, 101}, {99, 2}, {100, 1}, {100, 100}, {1000, 1}, {50, math.MaxInt64 - 50}, {1 << 40, 1}} {
			_, err := get(t.Context(), s, "k", r[0], r[1])
			wantErr(t, "range", err, objstore.ErrRange)
		}
	}},
	{"range_of_nothing", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(1, 100))
		for _, r := range [][2]int64{{0, 0}, {0, -1}, {-1, 1}, {-1, 0}, {math.MaxInt64, math.MaxInt64}} {
			_, err := get(t.Context(), s, "k", r[0], r[1])
			wantErr(t, "range", err, objstore.ErrRange)
		}
	}},
	{"range_of_an_empty_object", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", nil)
		_, err := get(t.Context(), s, "k", 0, 1)
		wantErr(t, "range", err, objstore.ErrRange)
	}},
	{"get_missing", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 1))
		for _, key := range []string{"x", "d/x", "d", "e/x", "d/k/x"} {
			_, err := get(t.Context(), s, key, 0, 1)
			wantErr(t, "get "+key, err, objstore.ErrNotFound)
		}
	}},
	{"get_small_reads", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(3, 3000))
		r, err := s.GetRange(t.Context(), "k", 10, 2000)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := iotest.TestReader(r, data(3, 3000)[10:2010]); err != nil {
			t.Fatal(err)
		}
	}},
	{"get_ends_with_eof_for_ever", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(3, 10))
		r, err := s.GetRange(t.Context(), "k", 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if n, err := r.Read(make([]byte, 10)); n != 0 || err != io.EOF {
				t.Fatalf("after the end: %d, %v", n, err)
			}
		}
	}},
	{"get_closed_early", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(3, 4<<20))
		for range 5 {
			r, err := s.GetRange(t.Context(), "k", 0, 4<<20)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d > 2*time.Second {
				t.Fatalf("close took %v", d)
			}
			if n, err := r.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Fatalf("read after close: %d, %v", n, err)
			}
		}
		wantRange(t, s, "k", 5, data(3, 4<<20)[5:])
	}},
	{"get_in_parallel", func(t *testing.T, s objstore.Store) {
		all := data(3, objectSize)
		mustPut(t, s, "d/k", all)
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				off := i * 65536
				got, err := get(t.Context(), s, "d/k", int64(off), 65536+7)
				if err != nil || string(got) != string(all[off:off+65536+7]) {
					t.Errorf("range at %d: %d bytes, %v", off, len(got), err)
				}
			})
		}
		wg.Wait()
	}},
	{"get_while_replaced", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(1, 100_000))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					mustPut(t, s, "k", data(1+i%2, 100_000))
				}
			}
		})
		a, b := data(1, 100_000), data(2, 100_000)
		for range 20 {
			got, err := get(t.Context(), s, "k", 0, 100_000)
			if err != nil || string(got) != string(a) && string(got) != string(b) {
				t.Errorf("a mixture, or %v", err)
				break
			}
		}
		close(stop)
		wg.Wait()
	}},
}

var headCases = []testCase{
	{"head", func(t *testing.T, s objstore.Store) {
		before := time.Now().Add(-2 * time.Second)
		body := objstore.BytesBody(data(1, 12345))
		if err := s.Put(t.Context(), "d/k", body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		info, err := s.Head(t.Context(), "d/k")
		if err != nil {
			t.Fatal(err)
		}
		if info.Key != "d/k" || info.Size != 12345 || len(info.Metadata) != 0 {
			t.Fatalf("%+v", info)
		}
		if info.Modified.Before(before) || info.Modified.After(time.Now().Add(2*time.Second)) {
			t.Fatalf("modified %v", info.Modified)
		}
		if !info.HasCRC || info.CRC64NVME != body.CRC64NVME {
			t.Fatalf("checksum %+v, want %016x", info, body.CRC64NVME)
		}
	}},
	{"head_missing", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 1))
		for _, key := range []string{"x", "d", "d/", "d/kk", "d/k/x"} {
			_, err := s.Head(t.Context(), key)
			if key == "d/" {
				wantErr(t, "head "+key, err, objstore.ErrInvalid)
				continue
			}
			wantErr(t, "head "+key, err, objstore.ErrNotFound)
		}
	}},
	{"verify", func(t *testing.T, s objstore.Store) {
		enforced := objstore.Features{EnforcesChecksum: true}
		mustPut(t, s, "k", data(1, 5000))
		for _, f := range []objstore.Features{{}, enforced} {
			for _, always := range []bool{false, true} {
				if err := objstore.Verify(t.Context(), s, "k", objstore.BytesBody(data(1, 5000)), f, always); err != nil {
					t.Fatal(err)
				}
				err := objstore.Verify(t.Context(), s, "k", objstore.BytesBody(data(2, 5000)), f, always)
				wantErr(t, "other bytes", err, objstore.ErrChecksum)
				err = objstore.Verify(t.Context(), s, "k", objstore.BytesBody(data(1, 4999)), f, always)
				wantErr(t, "other size", err, objstore.ErrChecksum)
				err = objstore.Verify(t.Context(), s, "x", objstore.BytesBody(data(1, 5000)), f, always)
				wantErr(t, "missing", err, objstore.ErrNotFound)
			}
		}
	}},
	{"probe", func(t *testing.T, s objstore.Store) {
		for _, prefix := range []string{"", "a/b"} {
			r, err := objstore.Probe(t.Context(), s, prefix)
			if err != nil {
				t.Fatal(err)
			}
			want := objstore.Features{EnforcesChecksum: true, ReturnsChecksum: true, ConditionalPut: true, Metadata: true}
			if r.Features != want || len(r.Steps) != 7 {
				t.Fatalf("%+v", r)
			}
		}
		if keys := list(t, s, ""); len(keys) > 0 {
			t.Fatalf("left behind: %q", keys)
		}
	}},
}
