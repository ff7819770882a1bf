package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
)

// TestVerifyCorrupt: a store that enforces nothing is not believed.
func TestVerifyCorrupt(t *testing.T) {
	body := objstore.BytesBody(bytes.Repeat([]byte("segment"), 1000))
	flip := func(b []byte) []byte { b[3000] ^= 1; return b }
	cut := func(b []byte) []byte { return b[:6999] }
	cases := []struct {
		name   string
		opts   sim.Options
		f      objstore.Features
		always bool
		change func([]byte) []byte
		want   error
		gets   int
	}{
		{"enforced", sim.Options{}, objstore.Features{EnforcesChecksum: true}, false, nil, nil, 0},
		{"enforced_always", sim.Options{}, objstore.Features{EnforcesChecksum: true}, true, nil, nil, 1},
		{"enforced_always_flipped", sim.Options{}, objstore.Features{EnforcesChecksum: true}, true, flip, objstore.ErrChecksum, 1},
		{"enforced_cut", sim.Options{}, objstore.Features{EnforcesChecksum: true}, false, cut, objstore.ErrChecksum, 0},
		{"enforced_hidden", sim.Options{HideChecksum: true}, objstore.Features{EnforcesChecksum: true}, false, nil, nil, 0},
		{"ignored", sim.Options{IgnoreChecksum: true}, objstore.Features{}, false, nil, nil, 1},
		{"ignored_flipped", sim.Options{IgnoreChecksum: true}, objstore.Features{}, false, flip, objstore.ErrChecksum, 1},
		{"hidden_flipped", sim.Options{HideChecksum: true}, objstore.Features{}, false, flip, objstore.ErrChecksum, 1},
		{"hidden_cut", sim.Options{HideChecksum: true}, objstore.Features{}, false, cut, objstore.ErrChecksum, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := sim.New(c.opts)
			if err := s.Put(t.Context(), "k", body, objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				s.Corrupt("k", c.change)
			}
			if err := objstore.Verify(t.Context(), s, "k", body, c.f, c.always); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if n := s.Count("get"); n != c.gets {
				t.Fatalf("%d gets, want %d", n, c.gets)
			}
		})
	}
}

func TestSame(t *testing.T) {
	for _, opts := range []sim.Options{{}, {HideChecksum: true}} {
		s := sim.New(opts)
		put(t, s, "k", []byte("abc"))
		put(t, s, "empty", nil)
		for _, c := range []struct {
			key, body string
			want      bool
		}{{"k", "abc", true}, {"k", "abd", false}, {"k", "ab", false}, {"k", "", false}, {"empty", "", true}, {"empty", "x", false}} {
			same, err := objstore.Same(t.Context(), s, c.key, objstore.BytesBody([]byte(c.body)))
			if same != c.want || err != nil {
				t.Errorf("%+v %+v: %v, %v", opts, c, same, err)
			}
		}
		if same, err := objstore.Same(t.Context(), s, "missing", objstore.BytesBody(nil)); same || !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("missing: %v, %v", same, err)
		}
	}
}

func TestProbeFeatures(t *testing.T) {
	cases := map[string]struct {
		opts sim.Options
		want objstore.Features
	}{
		"all":            {sim.Options{}, objstore.Features{EnforcesChecksum: true, ReturnsChecksum: true, ConditionalPut: true, Metadata: true}},
		"no_checksum":    {sim.Options{IgnoreChecksum: true, HideChecksum: true}, objstore.Features{ConditionalPut: true, Metadata: true}},
		"no_conditional": {sim.Options{NoConditional: true}, objstore.Features{EnforcesChecksum: true, ReturnsChecksum: true, Metadata: true}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := sim.New(c.opts)
			r, err := objstore.Probe(t.Context(), s, "p")
			if err != nil || r.Features != c.want {
				t.Fatalf("%+v, %v", r, err)
			}
			if keys := s.Keys(); len(keys) > 0 {
				t.Fatalf("left behind: %q", keys)
			}
			if n := s.Count("delete"); n != 1 {
				t.Fatalf("%d deletes", n)
			}
		})
	}
}

// agedStore is a store that has had some keys for two hours.
type agedStore struct {
	objstore.Store
	aged map[string]bool
}

func (s agedStore) List(ctx context.Context, prefix, after string) (objstore.Page, error) {
	page, err := s.Store.List(ctx, prefix, after)
	for i, o := range page.Objects {
		if s.aged[o.Key] {
			page.Objects[i].Modified = o.Modified.Add(-2 * time.Hour)
		}
	}
	return page, err
}

// TestProbeSweeps: what killed probes left goes with the first probe after an hour, and nothing else.
func TestProbeSweeps(t *testing.T) {
	scratch := strings.Repeat("ab2", 9)[:26]
	for _, dir := range []string{"", "p/"} {
		aged := []string{dir + "probe-" + scratch, dir + "probe-" + scratch + "-bad"}
		others := []string{
			dir + "probe-" + scratch[1:] + "q", // of a probe that may be under way
			dir + "probe-" + scratch + "-worse", dir + "probe-1/" + scratch, dir + "q/probe-" + scratch,
		}
		s := agedStore{sim.New(sim.Options{}), map[string]bool{}}
		for i, key := range slices.Concat(aged, others) {
			s.aged[key] = i != len(aged)
			if err := s.Put(t.Context(), key, objstore.BytesBody([]byte("x")), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := objstore.Probe(t.Context(), s, strings.TrimSuffix(dir, "/")); err != nil {
			t.Fatal(err)
		}
		slices.Sort(others)
		if left := s.Store.(*sim.Store).Keys(); !slices.Equal(left, others) {
			t.Errorf("left %q, should be %q", left, others)
		}
	}
}

// TestProbeRefusals: a store that refuses what not every store can do, in its own
// words, is one without that feature.
func TestProbeRefusals(t *testing.T) {
	for _, c := range []struct {
		refused string
		is      func(key string, n int) bool // of the n-th put
		want    objstore.Features
	}{
		{"conditional put", func(_ string, n int) bool { return n == 2 },
			objstore.Features{EnforcesChecksum: true, ReturnsChecksum: true, Metadata: true}},
		{"wrong checksum", func(key string, _ int) bool { return strings.HasSuffix(key, "-bad") },
			objstore.Features{ConditionalPut: true, ReturnsChecksum: true, Metadata: true}},
	} {
		t.Run(c.refused, func(t *testing.T) {
			s := sim.New(sim.Options{})
			s.SetHook(func(_ context.Context, op, key string) error {
				if op == "put" && c.is(key, s.Count("put")) {
					return errors.New("InvalidRequest")
				}
				return nil
			})
			if r, err := objstore.Probe(t.Context(), s, "p"); err != nil || r.Features != c.want {
				t.Fatalf("%+v, %v", r, err)
			}
			s.SetHook(func(_ context.Context, op, key string) error {
				if op == "put" && c.is(key, s.Count("put")-3) {
					return objstore.ErrTransient
				}
				return nil
			})
			if _, err := objstore.Probe(t.Context(), s, "p"); !errors.Is(err, objstore.ErrTransient) {
				t.Fatalf("%v", err)
			}
		})
	}
}

// TestProbeFails: whatever fails is named, and nothing stays behind.
func TestProbeFails(t *testing.T) {
	for _, op := range []string{"put", "head", "get", "read", "list", "delete"} {
		t.Run(op, func(t *testing.T) {
			s := sim.New(sim.Options{})
			s.SetHook(failing(op, 1, objstore.ErrAuth))
			_, err := objstore.Probe(t.Context(), s, "p")
			name := strings.Replace(op, "read", "get", 1)
			if !errors.Is(err, objstore.ErrAuth) || !strings.Contains(err.Error(), "failed at "+name) {
				t.Fatalf("%v", err)
			}
			if keys := s.Keys(); len(keys) > 0 {
				t.Fatalf("left behind: %q", keys)
			}
		})
	}
	t.Run("read_only", func(t *testing.T) {
		s := sim.New(sim.Options{})
		s.SetHook(failing("put", 1, objstore.ErrAuth))
		_, err := objstore.Probe(t.Context(), s, "")
		if err == nil || !strings.Contains(err.Error(), "may read but not write") {
			t.Fatalf("%v", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := sim.New(sim.Options{})
		s.SetHook(func(_ context.Context, op, _ string) error {
			if op == "get" {
				cancel()
			}
			return nil
		})
		if _, err := objstore.Probe(ctx, s, ""); !errors.Is(err, context.Canceled) {
			t.Fatalf("%v", err)
		}
		if keys := s.Keys(); len(keys) > 0 {
			t.Fatalf("left behind: %q", keys)
		}
	})
}

func TestBody(t *testing.T) {
	src := bytes.NewReader(bytes.Repeat([]byte{7}, 1000))
	if _, err := objstore.NewBody(src, 1001); !errors.Is(err, objstore.ErrInvalid) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("too short: %v", err)
	}
	body, err := objstore.NewBody(src, 999)
	if err != nil || body.CRC64NVME != objstore.BytesBody(bytes.Repeat([]byte{7}, 999)).CRC64NVME {
		t.Fatalf("%+v, %v", body, err)
	}
	// The check value of CRC-64/NVME in the catalogue of parametrised CRCs.
	if sum := objstore.BytesBody([]byte("123456789")).CRC64NVME; sum != 0xae8b14860a799888 {
		t.Errorf("CRC-64/NVME is %x", sum)
	}
	r := body.Reader()
	if b, err := io.ReadAll(r); len(b) != 999 || err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := r.Seek(990, io.SeekStart); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(r); len(b) != 9 || err != nil {
		t.Errorf("%d bytes after a seek, %v", len(b), err)
	}
	r.Close()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("read after close: %v", err)
	}
}
