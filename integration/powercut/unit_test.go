package powercut

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func ok() error { return nil }

func TestLedger(t *testing.T) {
	l := newLedger()
	f := &file{states: [][]byte{nil}}
	l.set("d/f", f)
	if wrong := l.wrong(map[string][]byte{}); len(wrong) != 0 {
		t.Errorf("a name that was not synced: %v", wrong)
	}
	l.change(f, []byte("abc"))
	failed := errors.New("failed")
	if err := l.synced("d/f", f, func() error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if wrong := l.wrong(map[string][]byte{"d/f": nil}); len(wrong) != 0 {
		t.Errorf("after an fsync that failed: %v", wrong)
	}
	if err := l.synced("d/f", f, ok); err != nil {
		t.Fatal(err)
	}
	l.change(f, []byte("abcdef"))
	then := l.copy()
	l.change(f, []byte("abc"))
	l.move("d/f", "d/g")
	for name, c := range map[string]struct {
		ledger *ledger
		found  map[string][]byte
		wrong  string // "" = nothing
	}{
		"all":             {then, map[string][]byte{"d/f": []byte("abcdef")}, ""},
		"a part":          {then, map[string][]byte{"d/f": []byte("abcd")}, ""},
		"zeros":           {then, map[string][]byte{"d/f": []byte("abc\x00ef")}, ""},
		"zeros in synced": {then, map[string][]byte{"d/f": []byte("a\x00cdef")}, "6 bytes are there"},
		"other bytes":     {then, map[string][]byte{"d/f": []byte("abcxef")}, "6 bytes are there"},
		"too short":       {then, map[string][]byte{"d/f": []byte("ab")}, "2 bytes are there"},
		"too long":        {then, map[string][]byte{"d/f": []byte("abcdefg")}, "7 bytes are there"},
		"gone":            {then, map[string][]byte{}, "nothing is there"},
		"renamed early":   {then, map[string][]byte{"d/g": []byte("abc")}, "d/g with 3 bytes came from nowhere"},
		"renamed":         {l, map[string][]byte{"d/g": []byte("abc")}, ""},
		"not renamed":     {l, map[string][]byte{"d/f": []byte("abcd")}, ""},
		"both names":      {l, map[string][]byte{"d/f": []byte("abc"), "d/g": []byte("abc")}, "half done"},
		"no name":         {l, map[string][]byte{}, "half done"},
	} {
		wrong := strings.Join(c.ledger.wrong(c.found), "\n")
		if (wrong == "") != (c.wrong == "") || !strings.Contains(wrong, c.wrong) {
			t.Errorf("%s: %q, should have %q", name, wrong, c.wrong)
		}
	}
	if err := l.dirSynced("d", ok); err != nil {
		t.Fatal(err)
	}
	for name, right := range map[string]bool{"d/f": false, "d/g": true} {
		if wrong := l.wrong(map[string][]byte{name: []byte("abc")}); (len(wrong) == 0) != right {
			t.Errorf("%s after its directory was synced: %v", name, wrong)
		}
	}
	if acks := l.copy().acks; acks != 2 {
		t.Errorf("%d promises", acks)
	}
}

func TestLedgerAwaits(t *testing.T) {
	l := newLedger()
	f := &file{states: [][]byte{nil}}
	l.set("f", f)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- l.await(ctx, 2) }()
	for len(ended) == 0 {
		if err := l.synced("f", f, ok); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	go func() { ended <- l.await(ctx, 2) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestHistory replays a log of three blocks: a flush between the first two writes.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	fill := func(c byte, blocks int) []byte { return bytes.Repeat([]byte{c}, blocks*blockSize) }
	if err := os.WriteFile(filepath.Join(dir, baseFile), fill('-', 4), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	w := bufio.NewWriter(&log)
	for _, c := range []change{
		{entry{writeEntry, 0, blockSize}, fill('a', 1)},
		{entry{kind: flushEntry}, nil},
		{entry{writeEntry, blockSize, 2 * blockSize}, fill('b', 2)},
		{entry{zeroEntry, 0, blockSize}, nil},
		{entry{kind: flushEntry}, nil},
	} {
		if err := c.write(w, c.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Flush(), os.WriteFile(filepath.Join(dir, logFile), log.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		entries, deafAt int
		kept            float64
		want            string // one byte for each block
	}{
		{0, 0, 1, "----"},
		{1, 0, 0, "----"},
		{1, 0, 1, "a---"},
		{2, 0, 0, "a---"},
		{3, 0, 1, "abb-"},
		{4, 0, 0, "a---"},
		{4, 0, 1, "0bb-"},
		{5, 0, 0, "0bb-"},
		{5, 3, 0, "a---"},
	} {
		h, err := newHistory(dir)
		if err != nil {
			t.Fatal(err)
		}
		h.deafAt = c.deafAt
		image := filepath.Join(dir, "image")
		if err := errors.Join(h.goTo(c.entries), h.image(image, 1, c.kept), h.close()); err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for at := 0; at < len(have); at += blockSize {
			got += strings.ReplaceAll(string(have[at]), "\x00", "0")
		}
		if got != c.want || len(have) != 4*blockSize {
			t.Errorf("%d entries, %v kept: %q, should be %q", c.entries, c.kept, got, c.want)
		}
	}
}

// TestSomeBlocks keeps about half of what was written, by whole blocks, and the same ones for the same seed.
func TestSomeBlocks(t *testing.T) {
	dir := t.TempDir()
	const blocks = 100
	if err := os.WriteFile(filepath.Join(dir, baseFile), make([]byte, (blocks+1)*blockSize), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	e := entry{writeEntry, blockSize / 2, blocks * blockSize} // from the middle of a block to the middle of one
	if err := errors.Join(e.write(&log, bytes.Repeat([]byte{1}, blocks*blockSize)), os.WriteFile(filepath.Join(dir, logFile), log.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	image := func(seed uint64) []byte {
		h, err := newHistory(dir)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "image")
		if err := errors.Join(h.goTo(1), h.image(path, seed, 0.5), h.close()); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := image(1)
	if !bytes.Equal(one, image(1)) || bytes.Equal(one, image(2)) {
		t.Error("an image is not made by its seed")
	}
	kept := 0
	for at := blockSize; at < blocks*blockSize; at += blockSize {
		n := bytes.Count(one[at:at+blockSize], []byte{1})
		if n != 0 && n != blockSize {
			t.Errorf("the block at %d has %d bytes of a write", at, n)
		}
		kept += n / blockSize
	}
	if kept < blocks/5 || kept > blocks*4/5 {
		t.Errorf("%d of %d blocks were kept", kept, blocks)
	}
}
