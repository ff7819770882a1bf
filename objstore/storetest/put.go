package storetest

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/tierfs/tierfs/objstore"
)

var putCases = []testCase{
	{"put_empty", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", nil)
		info, err := s.Head(t.Context(), "k")
		if err != nil || info.Size != 0 {
			t.Fatalf("head: %+v, %v", info, err)
		}
	}},
	{"put_one_byte", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", []byte("x"))
		wantRange(t, s, "k", 0, []byte("x"))
	}},
	{"put_streamed", func(t *testing.T, s objstore.Store) {
		const size = 9<<20 + 12345
		body, err := objstore.NewBody(pattern(1), size)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), "a/b/c.log", body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		wantRange(t, s, "a/b/c.log", 0, data(1, size))
		if err := objstore.Verify(t.Context(), s, "a/b/c.log", body, objstore.Features{}, true); err != nil {
			t.Fatal(err)
		}
	}},
	{"put_replaces", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "d/k", data(1, 5000))
		mustPut(t, s, "d/k", data(2, 100))
		wantRange(t, s, "d/k", 0, data(2, 100))
		_, err := get(t.Context(), s, "d/k", 0, 101)
		wantErr(t, "range of the old size", err, objstore.ErrRange)
	}},
	{"put_replaces_concurrently", putReplacesConcurrently},
	{"put_source_shorter", func(t *testing.T, s objstore.Store) {
		body := objstore.BytesBody(data(1, 200_000)) // and then the file shrank:
		body.R = bytes.NewReader(data(1, 100_000))
		err := s.Put(t.Context(), "k", body, objstore.PutOptions{})
		wantErr(t, "put", err, objstore.ErrInvalid)
		wantErr(t, "put", err, io.ErrUnexpectedEOF)
		wantMissing(t, s, "k")
	}},
	{"put_source_longer", func(t *testing.T, s objstore.Store) {
		body, err := objstore.NewBody(pattern(1), 70_000)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), "k", body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		info, err := s.Head(t.Context(), "k")
		if err != nil || info.Size != 70_000 {
			t.Fatalf("head: %+v, %v", info, err)
		}
	}},
	{"put_source_fails", putSourceFails},
	{"put_source_fails_keeps_old", func(t *testing.T, s objstore.Store) {
		mustPut(t, s, "k", data(7, 300))
		errDisk := errors.New("disk failed")
		src := readerAt(func([]byte, int64) (int, error) { return 0, errDisk })
		err := s.Put(t.Context(), "k", objstore.Body{R: src, Size: 1000}, objstore.PutOptions{})
		wantErr(t, "put", err, errDisk)
		wantRange(t, s, "k", 0, data(7, 300))
	}},
	{"put_wrong_checksum", func(t *testing.T, s objstore.Store) {
		body := objstore.BytesBody(data(1, 100_000))
		body.CRC64NVME++
		err := s.Put(t.Context(), "k", body, objstore.PutOptions{})
		wantErr(t, "put", err, objstore.ErrChecksum)
		wantMissing(t, s, "k")
	}},
	{"put_bad_keys", func(t *testing.T, s objstore.Store) {
		long := strings.Repeat("x", 256)
		for _, key := range []string{"", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\x00b", "a\nb", "\xff", long, strings.Repeat("x/", 600) + "x"} {
			err := s.Put(t.Context(), key, objstore.BytesBody(nil), objstore.PutOptions{})
			wantErr(t, "put "+key, err, objstore.ErrInvalid)
		}
	}},
	{"put_long_key", func(t *testing.T, s objstore.Store) {
		key := strings.Repeat(strings.Repeat("d", 200)+"/", 4) + strings.Repeat("k", 200)
		mustPut(t, s, key, data(1, 10))
		wantRange(t, s, key, 0, data(1, 10))
	}},
	{"put_metadata", func(t *testing.T, s objstore.Store) {
		want := map[string]string{"start": "42", "endoffset": "99", "x": `a "b" <c> & d=e; f`, "long": strings.Repeat("v", 1000)}
		if err := s.Put(t.Context(), "k", objstore.BytesBody([]byte("1")), objstore.PutOptions{Metadata: want}); err != nil {
			t.Fatal(err)
		}
		info, err := s.Head(t.Context(), "k")
		if err != nil || !maps.Equal(info.Metadata, want) {
			t.Fatalf("metadata %q, %v; want %q", info.Metadata, err, want)
		}
		mustPut(t, s, "k", []byte("2"))
		if info, err := s.Head(t.Context(), "k"); err != nil || len(info.Metadata) > 0 {
			t.Fatalf("metadata of the object before is there: %q, %v", info.Metadata, err)
		}
	}},
	{"put_bad_metadata", func(t *testing.T, s objstore.Store) {
		for k, v := range map[string]string{"Upper": "v", "under_score": "v", "da-sh": "v", "": "v", "k": "line\nbreak", "l": " space", "m": "é", "n": strings.Repeat("v", 2048)} {
			opts := objstore.PutOptions{Metadata: map[string]string{k: v}}
			wantErr(t, "metadata "+k, s.Put(t.Context(), "k", objstore.BytesBody(nil), opts), objstore.ErrInvalid)
		}
		wantMissing(t, s, "k")
	}},
	{"put_unusual_characters", putUnusual},
}

func putReplacesConcurrently(t *testing.T, s objstore.Store) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := s.Put(t.Context(), "d/k", objstore.BytesBody(data(i, 300_000+i)), objstore.PutOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	info, err := s.Head(t.Context(), "d/k")
	if err != nil {
		t.Fatal(err)
	}
	i := int(info.Size - 300_000)
	if i < 0 || i >= 8 {
		t.Fatalf("size %d", info.Size)
	}
	wantRange(t, s, "d/k", 0, data(i, 300_000+i))
	if info.HasCRC && info.CRC64NVME != objstore.BytesBody(data(i, 300_000+i)).CRC64NVME {
		t.Fatal("the checksum is another Put's")
	}
}

func putSourceFails(t *testing.T, s objstore.Store) {
	errDisk := errors.New("disk failed")
	const size = 4 << 20
	src := readerAt(func(b []byte, off int64) (int, error) {
		if off+int64(len(b)) > size/2 {
			return 0, errDisk
		}
		return pattern(1).ReadAt(b, off)
	})
	err := s.Put(t.Context(), "d/k", objstore.Body{R: src, Size: size}, objstore.PutOptions{})
	wantErr(t, "put", err, errDisk)
	if c := objstore.Class(err); c != "fail" {
		t.Fatalf("class %q", c)
	}
	wantMissing(t, s, "d/k")
}

func putUnusual(t *testing.T, s objstore.Store) {
	keys := []string{
		"dir with space/a b", "plus+plus/1+1", "percent%41/100%", "amp&amp;/<x>", `quote'"/\back\`, "question?x=1#frag",
		"star*[a]{b}|~^`", "eq=uals;semi,comma:colon@at$dollar!", ".hidden/.file", "..a/b..", "ümlaut/日本語/🙂", "-dash/--", "a.log.deleted", "e%2Fscaped/%2e%2e",
	}
	for i, key := range keys {
		mustPut(t, s, key, data(i, 50+i))
	}
	for i, key := range keys {
		wantRange(t, s, key, 0, data(i, 50+i))
		if got := list(t, s, key); len(got) != 1 || got[0] != key {
			t.Errorf("list %q: %q", key, got)
		}
	}
	if got := list(t, s, ""); len(got) != len(keys) {
		t.Errorf("list: %d keys of %d: %q", len(got), len(keys), got)
	}
	if err := s.Delete(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	if got := list(t, s, ""); len(got) > 0 {
		t.Errorf("after delete: %q", got)
	}
}
