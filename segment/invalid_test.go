package segment_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// invalid is a segment of two batches of which the second is changed. Each batch has two records.
type invalid struct {
	what   string
	change func(b []byte) // the second batch
	seal   bool           // whether its checksums are set right again
	want   error
}

// run checks c on the format that batch and seal make; check tells whether Check must refuse it, too.
func (c invalid) run(t *testing.T, f segment.Format, batch func(base uint64) []byte, seal func([]byte)) {
	t.Run(c.what, func(t *testing.T) {
		first, second := batch(10), batch(12)
		c.change(second)
		if c.seal {
			seal(second)
		}
		log := append(bytes.Clone(first), second...)
		_, _, err := walk(log, 10, f)
		if !errors.Is(err, c.want) {
			t.Fatalf("Walk: %v", err)
		}
		if at := "batch at " + itoa(len(first)); !strings.Contains(err.Error(), at) {
			t.Fatalf("%q does not say %q", err, at)
		}
		covered, err := segment.Check(log, f, 0, math.MaxUint64)
		good := len(first)
		if c.want == segment.ErrOrder {
			good = 0 // either of the two may be bad
		}
		if covered != int64(good) {
			t.Fatalf("Check covers %d", covered)
		}
		if torn := c.want == segment.ErrTorn; (torn && err != nil) || (!torn && !errors.Is(err, c.want)) {
			t.Fatalf("Check: %v", err)
		}
	})
}

// TestCheckBounds: a checksum does not cover the base offset, so a batch that lies
// outside of its segment is a bad one.
func TestCheckBounds(t *testing.T) {
	for _, f := range batched {
		log, _, next := made(f, 1000)
		for what, bounds := range map[string][2]uint64{"below": {1001, next - 1}, "above": {1000, next - 2}} {
			if covered, err := segment.Check(log, f, bounds[0], bounds[1]); !errors.Is(err, segment.ErrOrder) || covered == int64(len(log)) {
				t.Errorf("%s, %s: %d bytes, %v", f, what, covered, err)
			}
		}
		if covered, err := segment.Check(log, f, 1000, next-1); covered != int64(len(log)) || err != nil {
			t.Errorf("%s: %d bytes, %v", f, covered, err)
		}
	}
}

func itoa(n int) string { return strings.TrimLeft(segment.Stem(uint64(n)), "0") }

func TestInvalidKafka(t *testing.T) {
	be := binary.BigEndian
	batch := func(base uint64) []byte {
		return segmenttest.KafkaBatch(base, segmenttest.Epoch, [][]byte{[]byte("a"), []byte("b")})
	}
	for _, c := range []invalid{
		{"base offset negative", func(b []byte) { be.PutUint64(b, 1<<63) }, false, segment.ErrNotBatch},
		{"base offset too high", func(b []byte) { be.PutUint64(b, math.MaxInt64) }, false, segment.ErrNotBatch},
		{"base offset repeated", func(b []byte) { be.PutUint64(b, 11) }, false, segment.ErrOrder},
		{"base offset falls", func(b []byte) { be.PutUint64(b, 9) }, false, segment.ErrOrder},
		{"length zero", func(b []byte) { be.PutUint32(b[8:], 0) }, false, segment.ErrNotBatch},
		{"length below the header", func(b []byte) { be.PutUint32(b[8:], 48) }, false, segment.ErrNotBatch},
		{"length negative", func(b []byte) { be.PutUint32(b[8:], 1<<31) }, false, segment.ErrNotBatch},
		{"length one too much", func(b []byte) { be.PutUint32(b[8:], be.Uint32(b[8:])+1) }, false, segment.ErrTorn},
		{"length largest", func(b []byte) { be.PutUint32(b[8:], math.MaxInt32) }, false, segment.ErrTorn},
		{"length one too little", func(b []byte) { be.PutUint32(b[8:], be.Uint32(b[8:])-1) }, false, segment.ErrChecksum},
		{"magic 0", func(b []byte) { b[16] = 0 }, true, segment.ErrNotBatch},
		{"magic 1", func(b []byte) { b[16] = 1 }, true, segment.ErrNotBatch},
		{"magic 3", func(b []byte) { b[16] = 3 }, true, segment.ErrNotBatch},
		{"checksum", func(b []byte) { b[17]++ }, false, segment.ErrChecksum},
		{"attributes", func(b []byte) { b[22]++ }, false, segment.ErrChecksum},
		{"last offset delta negative", func(b []byte) { be.PutUint32(b[23:], 1<<31) }, true, segment.ErrNotBatch},
		{"record count negative", func(b []byte) { be.PutUint32(b[57:], 1<<31) }, true, segment.ErrNotBatch},
		{"payload", func(b []byte) { b[len(b)-2]++ }, false, segment.ErrChecksum},
		{"all zeros", func(b []byte) { clear(b) }, false, segment.ErrNotBatch},
	} {
		c.run(t, segment.Kafka, batch, segmenttest.KafkaSeal)
	}
}

func TestInvalidIggy(t *testing.T) {
	le := binary.LittleEndian
	batch := func(base uint64) []byte {
		return segmenttest.IggyBatch(base, segmenttest.Epoch, [][]byte{[]byte("a"), []byte("b")})
	}
	const frame2 = 256 + 48 + 1 + 3
	for _, c := range []invalid{
		{"base offset too high", func(b []byte) { le.PutUint64(b[8:], math.MaxUint64) }, true, segment.ErrNotBatch},
		{"base offset repeated", func(b []byte) { le.PutUint64(b[8:], 11) }, true, segment.ErrOrder},
		{"length below the header", func(b []byte) { le.PutUint64(b[32:], 255) }, false, segment.ErrNotBatch},
		{"length above the cap", func(b []byte) { le.PutUint64(b[32:], 64<<20+257) }, false, segment.ErrNotBatch},
		{"length at the cap", func(b []byte) { le.PutUint64(b[32:], 64<<20+256) }, false, segment.ErrTorn},
		{"length largest", func(b []byte) { le.PutUint64(b[32:], math.MaxUint64) }, false, segment.ErrNotBatch},
		{"length one too little", func(b []byte) { le.PutUint64(b[32:], le.Uint64(b[32:])-1) }, false, segment.ErrNotBatch},
		{"batch checksum", func(b []byte) { b[40]++ }, false, segment.ErrChecksum},
		{"partition id", func(b []byte) { b[0]++ }, false, segment.ErrChecksum},
		{"message count zero", func(b []byte) { le.PutUint32(b[48:], 0) }, true, segment.ErrNotBatch},
		{"message count one too few", func(b []byte) { le.PutUint32(b[48:], 1) }, true, segment.ErrNotBatch},
		{"message count impossible", func(b []byte) { le.PutUint32(b[48:], 3) }, true, segment.ErrNotBatch},
		{"message count largest", func(b []byte) { le.PutUint32(b[48:], math.MaxUint32) }, true, segment.ErrNotBatch},
		{"header's end", func(b []byte) { b[255] = 1 }, true, segment.ErrNotBatch},
		{"frame checksum", func(b []byte) { b[256]++ }, false, segment.ErrChecksum},
		{"message id", func(b []byte) { b[256+8]++ }, false, segment.ErrChecksum},
		{"offset delta", func(b []byte) { le.PutUint32(b[frame2+24:], 2) }, true, segment.ErrNotBatch},
		{"user headers length", func(b []byte) { le.PutUint32(b[frame2+32:], math.MaxUint32) }, false, segment.ErrNotBatch},
		{"payload length", func(b []byte) { le.PutUint32(b[frame2+36:], math.MaxUint32) }, false, segment.ErrNotBatch},
		{"payload one too long", func(b []byte) { le.PutUint32(b[frame2+36:], 2) }, false, segment.ErrNotBatch},
		{"frame header's end", func(b []byte) { b[frame2+47] = 1 }, true, segment.ErrNotBatch},
		{"payload", func(b []byte) { b[frame2+48]++ }, false, segment.ErrChecksum},
		{"all zeros", func(b []byte) { clear(b) }, false, segment.ErrNotBatch},
	} {
		c.run(t, segment.Iggy, batch, segmenttest.IggySeal)
	}
}

func TestIggyFramesMustFill(t *testing.T) {
	b := segmenttest.IggyBatch(0, segmenttest.Epoch, [][]byte{make([]byte, 200)})
	// The one message ends 150 bytes early; its own checksum is right.
	binary.LittleEndian.PutUint32(b[256+36:], 50)
	segmenttest.IggySeal(b[:256+48+50+3])
	binary.LittleEndian.PutUint64(b[32:], uint64(len(b)))
	if _, _, err := walk(b, 0, segment.Iggy); !errors.Is(err, segment.ErrNotBatch) {
		t.Fatal(err)
	}
}

func TestStemOrder(t *testing.T) {
	for _, c := range []struct {
		what  string
		f     segment.Format
		start uint64
		want  error
	}{
		{"kafka above the stem", segment.Kafka, 99, nil},
		{"kafka at the stem", segment.Kafka, 100, nil},
		{"kafka below the stem", segment.Kafka, 101, segment.ErrOrder},
		{"iggy above the stem", segment.Iggy, 99, segment.ErrOrder},
		{"iggy at the stem", segment.Iggy, 100, nil},
		{"iggy below the stem", segment.Iggy, 101, segment.ErrOrder},
	} {
		t.Run(c.what, func(t *testing.T) {
			log, _, _ := made(c.f, 100)
			if sum, _, err := walk(log, c.start, c.f); !errors.Is(err, c.want) || (err == nil && sum.Start != c.start) {
				t.Fatalf("%+v, %v", sum, err)
			}
		})
	}
}

func TestNoBytesNoFormat(t *testing.T) {
	for _, f := range append(batched, segment.Generic) {
		if _, _, err := walk(nil, 0, f); !errors.Is(err, segment.ErrEmpty) {
			t.Errorf("%s: %v", f, err)
		}
		if n, err := segment.Check(nil, f, 0, math.MaxUint64); n != 0 || err != nil {
			t.Errorf("%s: Check: %d, %v", f, n, err)
		}
	}
	for _, f := range []segment.Format{0, segment.Generic + 1} {
		if _, _, err := walk([]byte("x"), 0, f); !errors.Is(err, segment.ErrFormat) {
			t.Errorf("%d: %v", f, err)
		}
		if _, err := segment.Check([]byte("x"), f, 0, math.MaxUint64); !errors.Is(err, segment.ErrFormat) {
			t.Errorf("%d: Check: %v", f, err)
		}
		if _, err := segment.Boundaries(nil, 1, f); !errors.Is(err, segment.ErrFormat) {
			t.Errorf("%d: Boundaries: %v", f, err)
		}
	}
	if err := segment.Headers(bytes.NewReader(nil), 0, 1, segment.Generic, nil); !errors.Is(err, segment.ErrFormat) {
		t.Errorf("Headers: %v", err)
	}
}

func TestInvalidHeaders(t *testing.T) {
	nothing := func(segment.Batch) error { return nil }
	for _, f := range batched {
		log, _, _ := made(f, 0)
		size := int64(len(log))
		for what, r := range map[string]io.ReaderAt{
			"ends early": bytes.NewReader(log[:size/2]),
			"torn":       bytes.NewReader(log[:size-1]),
		} {
			t.Run(f.String()+"/"+what, func(t *testing.T) {
				n := size
				if what == "torn" {
					n--
				}
				if err := segment.Headers(r, 0, n, f, nothing); !errors.Is(err, segment.ErrTorn) {
					t.Fatal(err)
				}
			})
		}
		t.Run(f.String()+"/not a batch", func(t *testing.T) {
			if err := segment.Headers(bytes.NewReader(log), 1, size, f, nothing); !errors.Is(err, segment.ErrNotBatch) {
				t.Fatal(err)
			}
		})
	}
}

func TestKafkaTimestamps(t *testing.T) {
	for _, c := range []struct {
		what        string
		attributes  uint16
		base, max   int64 // ms
		first, last int64 // µs
	}{
		{"create time", 0, 5, 9, 5000, 9000},
		{"log append time", 8, 5, 9, 9000, 9000},
		{"delete horizon", 64, 5, 9, 0, 9000},
		{"none", 0, -1, -1, 0, 0},
		{"far future", 0, math.MaxInt64 / 1000, math.MaxInt64, math.MaxInt64 / 1000 * 1000, math.MaxInt64},
	} {
		t.Run(c.what, func(t *testing.T) {
			b := segmenttest.KafkaBatch(0, segmenttest.Epoch, [][]byte{nil})
			binary.BigEndian.PutUint16(b[21:], c.attributes)
			binary.BigEndian.PutUint64(b[27:], uint64(c.base))
			binary.BigEndian.PutUint64(b[35:], uint64(c.max))
			segmenttest.KafkaSeal(b)
			_, batches, err := walk(b, 0, segment.Kafka)
			if err != nil || batches[0].FirstTimestamp != c.first || batches[0].MaxTimestamp != c.last {
				t.Fatalf("%+v, %v", batches, err)
			}
		})
	}
}
