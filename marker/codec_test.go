package marker

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// golden reads testdata/v1.txt, which an implementation in another language
// wrote: each line has an offset, the hex bytes there, and what they are.
func golden(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if off, err := strconv.Atoi(f[0]); err != nil || off != len(b) {
			t.Fatalf("golden line %q is at offset %d", line, len(b))
		}
		field, err := hex.DecodeString(f[1])
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, field...)
	}
	return b
}

// goldenRecord is the record in testdata/v1.txt.
func goldenRecord() Record {
	return Record{
		Start:          1472,
		End:            1952,
		Size:           1073741000,
		IndexSize:      262144,
		FirstTimestamp: -1,
		MaxTimestamp:   1772323200000000,
		Incarnation:    Incarnation{0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f},
		UploadID:       0x0123456789abcdef,
		LogHash:        xxh3.Hash128([]byte("the bytes of a log")).Bytes(),
	}
}

func TestGolden(t *testing.T) {
	want := golden(t)
	t.Run("marshal", func(t *testing.T) {
		got := goldenRecord().Marshal()
		if diff := cmp.Diff(hex.Dump(want), hex.Dump(got[:])); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("parse", func(t *testing.T) {
		got, err := Parse(want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(goldenRecord(), got); diff != "" {
			t.Error(diff)
		}
	})
}

// seal makes the checksum right again, so that what is tested is not it.
func seal(b []byte) {
	binary.LittleEndian.PutUint64(b[104:], xxh3.Hash(b[:104]))
}

func TestParseRejects(t *testing.T) {
	put16 := func(off int, v uint16) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint16(b[off:], v) }
	}
	put64 := func(off int, v uint64) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint64(b[off:], v) }
	}
	set := func(off int, v byte) func([]byte) {
		return func(b []byte) { b[off] = v }
	}
	for _, tc := range []struct {
		name  string
		spoil func([]byte)
		want  error
		field string
	}{
		{"magic", set(7, 'k'), ErrMagic, ""},
		{"version 0", put16(8, 0), ErrVersion, ""},
		{"version 2", put16(8, 2), ErrVersion, ""},
		{"version 257", put16(8, 257), ErrVersion, ""},
		{"lowest flag", put16(10, 1), ErrField, "Flags"},
		{"highest flag", put16(10, 1<<15), ErrField, "Flags"},
		{"first reserved byte", set(12, 1), ErrReserved, ""},
		{"last reserved byte", set(15, 0x80), ErrReserved, ""},
		{"end below start", put64(24, 1471), ErrField, "End"},
		{"size zero", put64(32, 0), ErrField, "Size"},
		{"size negative", put64(32, 1<<63), ErrField, "Size"},
		{"index size negative", put64(40, math.MaxUint64), ErrField, "IndexSize"},
		{"incarnation zero", func(b []byte) { clear(b[64:80]) }, ErrField, "Incarnation"},
		{"upload id zero", put64(80, 0), ErrField, "UploadID"},
		{"first byte of the zeros", set(112, 1), ErrReserved, ""},
		{"last byte of the zeros", set(127, 1), ErrReserved, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := golden(t)
			tc.spoil(b)
			seal(b)
			wantRejected(t, b, tc.want, tc.field)
		})
	}
	t.Run("checksum", func(t *testing.T) {
		b := golden(t)
		b[104] ^= 1
		wantRejected(t, b, ErrChecksum, "")
	})
	for _, n := range []int{0, 1, Size - 1, Size + 1} {
		t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			b := append(golden(t), 0)
			wantRejected(t, b[:n], ErrSize, "")
		})
	}
	t.Run("all zeros", func(t *testing.T) {
		wantRejected(t, make([]byte, Size), ErrMagic, "")
	})
}

// wantRejected wants exactly one of the sentinels, and the zero record.
func wantRejected(t *testing.T, b []byte, want error, field string) {
	t.Helper()
	r, err := Parse(b)
	for _, s := range []error{ErrSize, ErrMagic, ErrVersion, ErrChecksum, ErrReserved, ErrField} {
		if errors.Is(err, s) != (s == want) {
			t.Errorf("Parse: %v, want %v", err, want)
		}
	}
	var fe *FieldError
	if errors.As(err, &fe) != (field != "") || (fe != nil && fe.Field != field) {
		t.Errorf("Parse: %v, want the field %q named", err, field)
	}
	if r != (Record{}) {
		t.Errorf("Parse returned %+v beside its error", r)
	}
}

// Whatever single bit a disk or a writer gets wrong, the record is refused.
func TestParseRejectsEveryFlippedBit(t *testing.T) {
	want := golden(t)
	for bit := range Size * 8 {
		b := bytes.Clone(want)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := Parse(b); err == nil {
			t.Errorf("bit %d of byte %d flipped: accepted", bit%8, bit/8)
		}
	}
}

func TestParseAcceptsLimits(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"one message":         func(r *Record) { r.End = r.Start },
		"highest offsets":     func(r *Record) { r.Start, r.End = math.MaxUint64, math.MaxUint64 },
		"lowest offsets":      func(r *Record) { r.Start, r.End = 0, 0 },
		"largest sizes":       func(r *Record) { r.Size, r.IndexSize = math.MaxInt64, math.MaxInt64 },
		"no index":            func(r *Record) { r.IndexSize = 0 },
		"earliest timestamps": func(r *Record) { r.FirstTimestamp, r.MaxTimestamp = math.MinInt64, math.MinInt64 },
		"timestamps crossed":  func(r *Record) { r.FirstTimestamp, r.MaxTimestamp = 2, 1 },
		"log hash zero":       func(r *Record) { r.LogHash = [16]byte{} },
	} {
		t.Run(name, func(t *testing.T) {
			r := goldenRecord()
			change(&r)
			b := r.Marshal()
			got, err := Parse(b[:])
			if err != nil || got != r {
				t.Errorf("Parse = %+v, %v, want %+v", got, err, r)
			}
		})
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Record{
			Flags:          uint16(rapid.IntRange(0, 1).Draw(t, "flags")),
			Start:          rapid.Uint64().Draw(t, "start"),
			End:            rapid.Uint64().Draw(t, "end"),
			Size:           rapid.Int64().Draw(t, "size"),
			IndexSize:      rapid.Int64().Draw(t, "index size"),
			FirstTimestamp: rapid.Int64().Draw(t, "first"),
			MaxTimestamp:   rapid.Int64().Draw(t, "max"),
			UploadID:       UploadID(rapid.Uint64().Draw(t, "upload id")),
		}
		copy(r.Incarnation[:], rapid.SliceOfN(rapid.Byte(), 0, 16).Draw(t, "incarnation"))
		copy(r.LogHash[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "hash"))
		b := r.Marshal()
		got, err := Parse(b[:])
		if valid := r.Validate() == nil; valid != (err == nil) {
			t.Fatalf("Validate: %v, Parse: %v", r.Validate(), err)
		}
		if err == nil && got != r {
			t.Fatalf("Parse = %+v, want %+v", got, r)
		}
	})
}

// FuzzParse holds that nothing panics, and that what is accepted is valid and
// has exactly one encoding. Each input is tried as it is, and as a record with
// the right length, magic, version and checksum, to get past those.
func FuzzParse(f *testing.F) {
	f.Add(golden(f))
	f.Add([]byte{})
	f.Add(make([]byte, Size))
	f.Fuzz(func(t *testing.T, data []byte) {
		check := func(b []byte) {
			r, err := Parse(b)
			if err != nil {
				return
			}
			if err := r.Validate(); err != nil {
				t.Errorf("accepted an invalid record: %v", err)
			}
			if again := r.Marshal(); !bytes.Equal(again[:], b) {
				t.Errorf("accepted\n%swhich is written as\n%s", hex.Dump(b), hex.Dump(again[:]))
			}
		}
		check(data)
		b := make([]byte, Size)
		copy(b, data)
		copy(b, "TIERFSMK\x01\x00")
		seal(b)
		check(b)
	})
}
