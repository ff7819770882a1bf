package segment_test

import (
	"math"
	"testing"

	"github.com/tierfs/tierfs/segment"
)

func TestParseStem(t *testing.T) {
	for _, c := range []struct {
		name   string
		start  uint64
		suffix string
	}{
		{"00000000000000000000", 0, ""},
		{"00000000000000000042.log", 42, ".log"},
		{"00000000000000000042.log.deleted", 42, ".log.deleted"},
		{"00000000000000000042.log.deleted.remote", 42, ".log.deleted.remote"},
		{"00000000000000000042.", 42, "."},
		{"09223372036854775807.index", math.MaxInt64, ".index"},
		{"18446744073709551615.log", math.MaxUint64, ".log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start, suffix, ok := segment.ParseStem(c.name)
			if !ok || start != c.start || suffix != c.suffix {
				t.Fatalf("got %d, %q, %v", start, suffix, ok)
			}
			if got := segment.Stem(start) + suffix; got != c.name {
				t.Fatalf("back: %q", got)
			}
		})
	}
}

func TestParseStemRefuses(t *testing.T) {
	for what, name := range map[string]string{
		"nothing":             "",
		"19 digits":           "0000000000000000042.log",
		"21 digits":           "000000000000000000042.log",
		"no dot":              "00000000000000000042log",
		"a dash":              "00000000000000000042-log",
		"a letter":            "0000000000000000004a.log",
		"a sign":              "+0000000000000000042.log",
		"a minus":             "-0000000000000000042.log",
		"a space":             " 0000000000000000042.log",
		"one above 64 bits":   "18446744073709551616.log",
		"far above 64 bits":   "99999999999999999999.log",
		"digits of elsewhere": "0000000000000000004\u0664.log",
		"another file":        "leader-epoch-checkpoint",
	} {
		t.Run(what, func(t *testing.T) {
			if start, suffix, ok := segment.ParseStem(name); ok {
				t.Fatalf("%q gave %d and %q", name, start, suffix)
			}
		})
	}
}

func TestStemAllocatesOnce(t *testing.T) {
	parse := testing.AllocsPerRun(100, func() { _, _, _ = segment.ParseStem("00000000000000000042.log") })
	format := testing.AllocsPerRun(100, func() { _ = segment.Stem(42) })
	if parse != 0 || format > 1 {
		t.Fatalf("ParseStem allocates %v times, Stem %v times", parse, format)
	}
}

func FuzzParseStem(f *testing.F) {
	f.Add("00000000000000000042.log.deleted")
	f.Add("18446744073709551616.log")
	f.Fuzz(func(t *testing.T, name string) {
		start, suffix, ok := segment.ParseStem(name)
		if ok && segment.Stem(start)+suffix != name {
			t.Fatalf("%q is read as %d and %q", name, start, suffix)
		}
		if ok && suffix != "" && suffix[0] != '.' {
			t.Fatalf("%q has the suffix %q", name, suffix)
		}
	})
}
