package fs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/tier"
)

// A store that is away makes a handful of lines, not one for each read.
func TestColdLog(t *testing.T) {
	var out bytes.Buffer
	l := &coldLog{log: slog.New(slog.NewTextHandler(&out, nil))}
	said := func(want ...string) {
		t.Helper()
		wantLines(t, &out, want)
	}
	now := time.Now()
	a, b := &node{}, &node{}
	away := func(key string) error { return fmt.Errorf("%w: no answer for %s", tier.ErrUnavailable, key) }
	fail := func(n *node, off int64, key string) {
		t.Helper()
		if !l.failed("read", coldRead{n, off, 4096}, away(key), now) {
			t.Error("a store that is away is somebody else's to log")
		}
	}

	if l.failed("read", coldRead{a, 0, 4096}, fmt.Errorf("%w: k", chunkcache.ErrBadObject), now) || l.failed("read", coldRead{a, 0, 4096}, errors.New("other"), now) {
		t.Error("an object that is bad was taken for an outage")
	}
	said()
	for i := range 1000 {
		fail(a, 0, fmt.Sprint("key-", i))
	}
	said("level=WARN request failed key-0")
	now = now.Add(61 * time.Second)
	fail(b, 8192, "key-b")
	fail(b, 8192, "key-c")
	said("level=WARN reads=1000 key-b")

	l.worked(coldRead{a, 0, 4096}, now) // from the cache, perhaps
	l.worked(coldRead{b, 0, 4096}, now)
	said()
	l.worked(coldRead{b, 4096, 8192}, now)
	said("level=INFO failed=1002 after=1m1s")
	l.worked(coldRead{b, 4096, 8192}, now)
	said()

	for range 20 { // it comes and goes
		now = now.Add(100 * time.Millisecond)
		fail(a, 0, "key")
		l.worked(coldRead{a, 0, 4096}, now)
	}
	said()
	now = now.Add(coldLogHush)
	fail(a, 0, "key-d")
	said("request failed key-d")
	now = now.Add(coldLogEvery)
	l.worked(coldRead{b, 0, 4096}, now) // whoever wanted a has given up
	said("failed=1")

	now = now.Add(coldLogHush)
	fail(a, 0, "key-e")
	said("request failed key-e")
	now = now.Add(5 * time.Hour) // nobody read meanwhile, and so nobody knows that it was over
	fail(a, 0, "key-f")
	said("request failed key-f")
}

// wantLines takes what was logged, and insists on one line for each of want, with its words.
func wantLines(t *testing.T, out *bytes.Buffer, want []string) {
	t.Helper()
	lines := slices.Collect(strings.Lines(out.String()))
	out.Reset()
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %.300q", len(lines), len(want), lines)
	}
	for i, words := range want {
		for word := range strings.FieldsSeq(words) {
			if !strings.Contains(lines[i], word) {
				t.Errorf("line %q lacks %q", lines[i], word)
			}
		}
	}
}
