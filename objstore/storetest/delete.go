package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

var deleteCases = []testCase{
	{"delete_one", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 10))
		mustPut(t, s, "d/l", data(2, 10))
		if err := s.Delete(t.Context(), "d/k"); err != nil {
			t.Fatal(err)
		}
		wantMissing(t, s, "d/k")
		wantRange(t, s, "d/l", 0, data(2, 10))
	}},
	{"delete_missing", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 10))
		for _, keys := range [][]string{{"x"}, {"e/x"}, {"d/x", "y"}, {"d/k/x"}, {"d/k", "d/x", "d/k"}, {"d/k"}} {
			if err := s.Delete(t.Context(), keys...); err != nil {
				t.Fatalf("delete %q: %v", keys, err)
			}
		}
		wantMissing(t, s, "d/k")
	}},
	{"delete_nothing", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", nil)
		if err := s.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		if keys := list(t, s, ""); len(keys) != 1 {
			t.Fatalf("%q", keys)
		}
	}},
	{"delete_bad_key", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", nil)
		for _, key := range []string{"", "d/", "../d/k", "d//k"} {
			wantErr(t, "delete "+key, s.Delete(t.Context(), "d/k", key), objstore.ErrInvalid)
		}
		if keys := list(t, s, ""); len(keys) != 1 {
			t.Fatalf("something was deleted: %q", keys)
		}
	}},
	{"delete_beside_puts", deleteBesidePuts},
	{"delete_and_list_1500", func(t *testing.T, s objstore.Store) {
		var keys []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := w; i < 1500; i += 8 {
					key := fmt.Sprintf("p/%d/%04d", i%3, i)
					mustPut(t, s, key, nil)
					mu.Lock()
					keys = append(keys, key)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		slices.Sort(keys)
		page, err := s.List(t.Context(), "p/", "")
		if err != nil || len(page.Objects) != objstore.PageSize || !page.More {
			t.Fatalf("first page: %d objects, more %v, %v", len(page.Objects), page.More, err)
		}
		if got := list(t, s, ""); !slices.Equal(got, keys) {
			t.Fatalf("%d keys listed, %d there", len(got), len(keys))
		}
		if err := s.Delete(t.Context(), keys[:1400]...); err != nil {
			t.Fatal(err)
		}
		if got := list(t, s, "p/"); !slices.Equal(got, keys[1400:]) {
			t.Fatalf("%d keys are left of 100", len(got))
		}
	}},
}

// deleteBesidePuts: directories that come and go below must not show. (A store may
// ask to try again.)
func deleteBesidePuts(t *testing.T, s objstore.Store) {
	s = objstore.WithRetry(s, objstore.RetryOptions{Base: time.Millisecond})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			key := fmt.Sprintf("a/b/c/k%d", w)
			for i := range 30 {
				if err := s.Put(t.Context(), key, objstore.BytesBody(data(i, 10)), objstore.PutOptions{IfAbsent: i%2 == 0}); err != nil {
					t.Errorf("put: %v", err)
					return
				}
				if _, err := s.Head(t.Context(), key); err != nil {
					t.Errorf("head: %v", err)
				}
				if err := s.Delete(t.Context(), key); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if keys := list(t, s, ""); len(keys) > 0 {
		t.Fatalf("%q", keys)
	}
}

var listCases = []testCase{
	{"list_nothing", func(t *testing.T, s objstore.Store) {
		for _, prefix := range []string{"", "a", "a/", "a/b/c"} {
			page, err := s.List(t.Context(), prefix, "")
			if err != nil || len(page.Objects) != 0 || page.More {
				t.Fatalf("list %q: %+v, %v", prefix, page, err)
			}
		}
	}},
	{"list_fields", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 777))
		page, err := s.List(t.Context(), "", "")
		if err != nil || len(page.Objects) != 1 || page.More {
			t.Fatalf("%+v, %v", page, err)
		}
		if o := page.Objects[0]; o.Key != "d/k" || o.Size != 777 || o.Modified.IsZero() {
			t.Fatalf("%+v", o)
		}
	}},
	{"list_order", func(t *testing.T, s objstore.Store) {
		keys := orderKeys()
		for _, key := range keys {
			mustPut(t, s, key, nil)
		}
		slices.Sort(keys)
		if got := list(t, s, ""); !slices.Equal(got, keys) {
			t.Fatalf("got  %q\nwant %q", got, keys)
		}
	}},
	{"list_after_is_exclusive", func(t *testing.T, s objstore.Store) {
		keys := orderKeys()
		for _, key := range keys {
			mustPut(t, s, key, nil)
		}
		slices.Sort(keys)
		afters := append([]string{"a/", "a/x", "a/x/", "a/x/zz", "a/y", "b", "zzz", "!"}, keys...)
		for _, after := range afters {
			checkList(t, s, keys, "", after)
			checkList(t, s, keys, "a/", after)
			checkList(t, s, keys, "a/x", after)
		}
	}},
	{"list_prefixes_of_prefixes", func(t *testing.T, s objstore.Store) {
		keys := []string{"t-1/a", "t-1/b/c", "t-10/a", "t-10/b", "t-1.x", "t-11", "t/1", "t-1/b-/d"}
		for _, key := range keys {
			mustPut(t, s, key, nil)
		}
		slices.Sort(keys)
		for _, prefix := range []string{"t", "t-", "t-1", "t-1/", "t-10", "t-10/", "t-1/b", "t-1/b/", "t-1/b/c", "t-1/b/cc", "t-1/a/", "t/", "u", "t-2/"} {
			checkList(t, s, keys, prefix, "")
		}
	}},
	{"list_hides_unfinished", listHidesUnfinished},
}

// orderKeys sort otherwise by name within directories than as bytes.
func orderKeys() []string {
	return []string{
		"a-b", "a.b", "a/x/1", "a/x/2", "a/x-1", "a/x.1", "a/x0", "a/x!", "a0", "a ", "A", "Z/z", "b/1", "b-/1", "b./1", "b!/1", "b0/1", "~", "é/1", "é-", "0",
	}
}

func checkList(t *testing.T, s objstore.Store, keys []string, prefix, after string) {
	t.Helper()
	var want []string
	for _, key := range keys {
		if key > after && strings.HasPrefix(key, prefix) {
			want = append(want, key)
		}
	}
	page, err := s.List(t.Context(), prefix, after)
	if err != nil {
		t.Fatalf("list %q after %q: %v", prefix, after, err)
	}
	var got []string
	for _, o := range page.Objects {
		got = append(got, o.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("list %q after %q:\ngot  %q\nwant %q", prefix, after, got, want)
	}
}

// listHidesUnfinished looks while a body is half sent.
func listHidesUnfinished(t *testing.T, s objstore.Store) {
	const size = 6 << 20
	half, finish := make(chan struct{}), make(chan struct{})
	var once sync.Once
	src := readerAt(func(b []byte, off int64) (int, error) {
		if off > size/2 {
			once.Do(func() { close(half); <-finish })
		}
		return pattern(1).ReadAt(b, off)
	})
	body := objstore.Body{R: src, Size: size, CRC64NVME: objstore.BytesBody(data(1, size)).CRC64NVME}
	done := make(chan error, 1)
	go func() { done <- s.Put(t.Context(), "d/k", body, objstore.PutOptions{}) }()
	select {
	case <-half:
	case err := <-done:
		t.Fatalf("put ended before its body did: %v", err)
	}
	keys := list(t, s, "")
	_, headErr := s.Head(t.Context(), "d/k")
	close(finish)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(keys) > 0 {
		t.Fatalf("listed while unfinished: %q", keys)
	}
	wantErr(t, "head while unfinished", headErr, objstore.ErrNotFound)
	wantRange(t, s, "d/k", 0, data(1, size))
}
