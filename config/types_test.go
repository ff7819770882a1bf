package config

import (
	"math"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	good := map[string]time.Duration{
		"300 ms":     300 * time.Millisecond,
		"5 s":        5 * time.Second,
		"5s":         5 * time.Second,
		" 10 m ":     10 * time.Minute,
		"6 h":        6 * time.Hour,
		"1 d":        24 * time.Hour,
		"1 h 30 m":   90 * time.Minute,
		"1h30m":      90 * time.Minute,
		"1.5 s":      1500 * time.Millisecond,
		"7 µs":       7 * time.Microsecond,
		"0":          0,
		"0 s":        0,
		"unlimited":  math.MaxInt64,
		"auto":       -1,
		"block":      -2,
		"106000 d":   106000 * 24 * time.Hour,
		"0.5 d 2 ns": 12*time.Hour + 2,
	}
	for s, want := range good {
		t.Run(s, func(t *testing.T) {
			d, err := ParseDuration(s)
			if err != nil || d.Std() != want {
				t.Errorf("got %v, %v, want %v", d.Std(), err, want)
			}
		})
	}
	bad := map[string]string{
		"":                      "is empty",
		"5":                     "has no unit",
		"5 w":                   `has the unknown unit "w"`,
		"5 sec":                 `has the unknown unit "sec"`,
		"-5 s":                  "is not a number and a unit",
		"s":                     "is not a number and a unit",
		"1.2.3 s":               "is not a number and a unit",
		"5 s 1 h":               "has its units out of order",
		"5 s 5 s":               "has its units out of order",
		"107000 d":              "is too long",
		"99999999999999999999s": "is too long",
		"never":                 "is not a number and a unit",
		"5 s.":                  "is not a number and a unit",
	}
	for s, want := range bad {
		t.Run("bad "+s, func(t *testing.T) {
			d, err := ParseDuration(s)
			if err == nil {
				t.Fatalf("got %v, want an error", d)
			}
			if s != "5 s." && err.Error() != want {
				t.Errorf("got %q, want %q", err, want)
			}
		})
	}
}

func TestDurationString(t *testing.T) {
	for d, want := range map[Duration]string{
		0:                                "0 s",
		Duration(300 * time.Millisecond): "300 ms",
		Duration(24 * time.Hour):         "1 d",
		Duration(90 * time.Second):       "1 m 30 s",
		Unlimited:                        "unlimited",
		Auto:                             "auto",
		Block:                            "block",
	} {
		if s := d.String(); s != want {
			t.Errorf("%d is written %q, want %q", d, s, want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	good := map[string]Bytes{
		"4 GiB":     4 * GiB,
		"8MiB":      8 * MiB,
		"1.5 MiB":   MiB + MiB/2,
		"64 kB":     64000,
		"50 GB":     50e9,
		"0":         0,
		"4096":      4096,
		"512 B":     512,
		"unlimited": UnlimitedBytes,
	}
	for s, want := range good {
		t.Run(s, func(t *testing.T) {
			b, err := ParseBytes(s)
			if err != nil || b != want {
				t.Errorf("got %d, %v, want %d", b, err, want)
			}
		})
	}
	for _, s := range []string{
		"", "GiB", "4 G", "4 m", "4 gib", "4 Gib/s", "-1 MiB", "4 XiB", "8192 PiB", "1e3 MiB", "1,000 B", "4 GiB 2 MiB", "lots", "auto",
	} {
		t.Run("bad "+s, func(t *testing.T) {
			if b, err := ParseBytes(s); err == nil {
				t.Errorf("got %d, want an error", b)
			}
		})
	}
}

func TestParseRate(t *testing.T) {
	for s, want := range map[string]string{
		"100 MiB/s": "100 MiB/s", "100 MiB": "100 MiB/s", "unlimited": "unlimited", "1000000 B/s": "1 MB/s",
	} {
		r, err := ParseRate(s)
		if err != nil || r.String() != want {
			t.Errorf("%q: got %s, %v, want %s", s, r, err, want)
		}
	}
	if _, err := ParseRate("100 MiB/h"); err == nil {
		t.Error("an hourly rate was accepted")
	}
}

func TestParseCount(t *testing.T) {
	for s, want := range map[string]Count{"auto": CountAuto, "7": 7, "0": 0} {
		if c, err := ParseCount(s); err != nil || c != want || c.String() != s {
			t.Errorf("%q: got %v, %v", s, c, err)
		}
	}
	for _, s := range []string{"", "-1", "four", "4.5", "99999999999"} {
		if c, err := ParseCount(s); err == nil {
			t.Errorf("%q: got %v, want an error", s, c)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"300 ms", "1 d", "1 h 30 m", "unlimited", "0", "-5 s", "9e9 s", "1.5 s", "106751 d 23 h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil {
			return
		}
		if d < 0 && d != Auto && d != Block {
			t.Fatalf("%q is negative: %d", s, d)
		}
		again, err := ParseDuration(d.String())
		if err != nil || again != d {
			t.Fatalf("%q is %d, written %q, read %d, %v", s, d, d, again, err)
		}
	})
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"4 GiB", "1.5 MiB", "unlimited", "0", "-1 B", "8191 PiB", "4096"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			return
		}
		if b < 0 {
			t.Fatalf("%q is negative: %d", s, b)
		}
		if again, err := ParseBytes(b.String()); err != nil || float64(again) != float64(b) {
			t.Fatalf("%q is %d, written %q, read %d, %v", s, b, b, again, err)
		}
	})
}
