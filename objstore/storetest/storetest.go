// Package storetest is the contract of objstore.Store as tests, run by every
// backend:
//
//	func TestStore(t *testing.T) { storetest.Run(t, "fs", open) }
//
// gives subtests TestStore/fs/<case>. Each case gets an empty store of its own.
// That no goroutine stays behind is for the caller's TestMain (goleak) to check.
package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/tierfs/tierfs/objstore"
)

// Open returns an empty store, and arranges for its end with t.Cleanup.
type Open func(t testing.TB) objstore.Store

type testCase struct {
	name string
	run  func(t *testing.T, s objstore.Store)
}

// Run runs the suite against stores that open gives.
func Run(t *testing.T, name string, open Open) {
	t.Run(name, func(t *testing.T) {
		for _, group := range [][]testCase{putCases, conditionalCases, getCases, headCases, deleteCases, listCases, cancelCases} {
			for _, c := range group {
				t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
			}
		}
	})
}

// pattern is an endless source of bytes that depend on their position, in no memory.
type pattern uint64

func (p pattern) ReadAt(b []byte, off int64) (int, error) {
	var word [8]byte
	for i := 0; i < len(b); {
		pos := off + int64(i)
		x := (uint64(pos)>>3 + uint64(p)) * 0x9e3779b97f4a7c15
		x ^= x >> 29
		binary.LittleEndian.PutUint64(word[:], x*0xbf58476d1ce4e5b9)
		i += copy(b[i:], word[pos&7:])
	}
	return len(b), nil
}

// data returns n bytes of a pattern.
func data(seed, n int) []byte {
	b := make([]byte, n)
	pattern(seed).ReadAt(b, 0) // never fails
	return b
}

// readerAt is a source that a test programs.
type readerAt func(b []byte, off int64) (int, error)

func (f readerAt) ReadAt(b []byte, off int64) (int, error) { return f(b, off) }

func mustPut(t *testing.T, s objstore.Store, key string, b []byte) {
	t.Helper()
	if err := s.Put(t.Context(), key, objstore.BytesBody(b), objstore.PutOptions{}); err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
}

// get reads a range to its end.
func get(ctx context.Context, s objstore.Store, key string, off, n int64) ([]byte, error) {
	r, err := s.GetRange(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	return b, errors.Join(err, r.Close())
}

func wantRange(t *testing.T, s objstore.Store, key string, off int64, want []byte) {
	t.Helper()
	got, err := get(t.Context(), s, key, off, int64(len(want)))
	if err != nil {
		t.Fatalf("get %s [%d,+%d): %v", key, off, len(want), err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("get %s [%d,+%d): other bytes", key, off, len(want))
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("%s: got error %v, want one that is %q", what, got, want)
	}
}

// wantMissing checks that every way of looking says that there is no such object.
func wantMissing(t *testing.T, s objstore.Store, key string) {
	t.Helper()
	_, err := s.Head(t.Context(), key)
	wantErr(t, "head "+key, err, objstore.ErrNotFound)
	_, err = get(t.Context(), s, key, 0, 1)
	wantErr(t, "get "+key, err, objstore.ErrNotFound)
	if keys := list(t, s, key); len(keys) > 0 {
		t.Fatalf("list shows %q", keys)
	}
}

// list reads all pages below prefix and checks what holds for every page.
func list(t *testing.T, s objstore.Store, prefix string) []string {
	t.Helper()
	var keys []string
	after := ""
	for {
		page, err := s.List(t.Context(), prefix, after)
		if err != nil {
			t.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		if err := checkPage(page, after); err != nil {
			t.Fatalf("list %q after %q: %v", prefix, after, err)
		}
		for _, o := range page.Objects {
			keys = append(keys, o.Key)
		}
		if !page.More {
			return keys
		}
		after = keys[len(keys)-1]
	}
}

func checkPage(p objstore.Page, after string) error {
	if len(p.Objects) > objstore.PageSize {
		return fmt.Errorf("%d objects in a page", len(p.Objects))
	}
	if p.More && len(p.Objects) == 0 {
		return errors.New("more, but an empty page")
	}
	for _, o := range p.Objects {
		if o.Key <= after {
			return fmt.Errorf("%q does not come after %q", o.Key, after)
		}
		after = o.Key
	}
	return nil
}
