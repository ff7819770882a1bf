package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Duration is a length of time, written as a number and a unit (µs, ms, s, m,
// h, d), or several from the largest to the smallest: "300 ms", "1 d", "1 h 30 m".
// Where a setting allows it, it is a word: "unlimited", "auto", "block".
type Duration time.Duration

// The words. All but Unlimited are negative, which no number can be.
const (
	Unlimited Duration = math.MaxInt64 // "unlimited": never
	Auto      Duration = -1            // "auto": the layout's own
	Block     Duration = -2            // "block": for ever
)

var durationWords = map[string]Duration{"unlimited": Unlimited, "auto": Auto, "block": Block}

// durationUnits, largest first.
var durationUnits = []struct {
	name string
	unit time.Duration
}{
	{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second},
	{"ms", time.Millisecond}, {"µs", time.Microsecond}, {"us", time.Microsecond}, {"ns", time.Nanosecond},
}

// ParseDuration reads a Duration. "0" needs no unit.
func ParseDuration(s string) (Duration, error) {
	rest := strings.TrimSpace(s)
	if d, ok := durationWords[rest]; ok {
		return d, nil
	}
	if rest == "0" {
		return 0, nil
	}
	if rest == "" {
		return 0, fmt.Errorf("is empty")
	}
	var sum time.Duration
	last := time.Duration(math.MaxInt64)
	for rest != "" {
		number := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789."))]
		rest = strings.TrimLeft(rest[len(number):], " ")
		unit := rest[:len(rest)-len(strings.TrimLeftFunc(rest, isLetter))]
		rest = strings.TrimLeft(rest[len(unit):], " ")
		if number == "" {
			return 0, fmt.Errorf("is not a number and a unit")
		}
		if unit == "" {
			return 0, fmt.Errorf("has no unit")
		}
		length, ok := unitLength(unit)
		if !ok {
			return 0, fmt.Errorf("has the unknown unit %q", unit)
		}
		if length >= last {
			return 0, fmt.Errorf("has its units out of order")
		}
		last = length
		part, err := multiply(number, length)
		if err != nil {
			return 0, err
		}
		if sum += part; sum < 0 || sum == math.MaxInt64 {
			return 0, fmt.Errorf("is too long")
		}
	}
	return Duration(sum), nil
}

// multiply is number × unit: exact for a whole number, to the nanosecond for one with a fraction.
func multiply(number string, unit time.Duration) (time.Duration, error) {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		if n >= math.MaxInt64/int64(unit) {
			return 0, fmt.Errorf("is too long")
		}
		return time.Duration(n) * unit, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("is not a number and a unit")
	}
	if f *= float64(unit); f >= math.MaxInt64 {
		return 0, fmt.Errorf("is too long")
	}
	return time.Duration(math.Round(f)), nil
}

func unitLength(name string) (time.Duration, bool) {
	for _, u := range durationUnits {
		if u.name == name {
			return u.unit, true
		}
	}
	return 0, false
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == 'µ' }

// String writes d so that ParseDuration reads the same again.
func (d Duration) String() string {
	for word, v := range durationWords {
		if d == v {
			return word
		}
	}
	if d == 0 {
		return "0 s"
	}
	var parts []string
	for _, u := range durationUnits {
		if n := time.Duration(d) / u.unit; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, u.name))
			d -= Duration(n * u.unit)
		}
	}
	return strings.Join(parts, " ")
}

// Std returns d as the standard library has it; the words are what their
// constants are.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// Bytes is a size, written as a number and a unit: B, kB, MB, GB, TB, PB for
// powers of 1000, KiB, MiB, GiB, TiB, PiB for powers of 1024. Where a setting
// allows it, it is "unlimited".
type Bytes int64

// Sizes.
const (
	KiB            Bytes = 1 << 10
	MiB            Bytes = 1 << 20
	GiB            Bytes = 1 << 30
	UnlimitedBytes Bytes = math.MaxInt64 // "unlimited"
)

// ParseBytes reads Bytes. A number without a unit is bytes.
func ParseBytes(s string) (Bytes, error) {
	s = strings.TrimSpace(s)
	if s == "unlimited" {
		return UnlimitedBytes, nil
	}
	number := s[:len(s)-len(strings.TrimLeft(s, "0123456789."))]
	if number == "" {
		return 0, fmt.Errorf("is not a number and a unit")
	}
	switch unit := strings.TrimSpace(s[len(number):]); unit {
	case "", "B", "kB", "KB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB", "PiB":
	default:
		return 0, fmt.Errorf("has the unknown unit %q", unit)
	}
	n, err := humanize.ParseBytes(s)
	if err != nil {
		return 0, fmt.Errorf("is not a number and a unit")
	}
	if n >= math.MaxInt64 {
		return 0, fmt.Errorf("is too large")
	}
	return Bytes(n), nil
}

var byteUnits = []struct {
	name string
	unit Bytes
}{
	{"PiB", 1 << 50}, {"TiB", 1 << 40}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB},
	{"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3},
}

// String writes b exactly, in the largest unit of 1024 that
// divides it, or else of 1000.
func (b Bytes) String() string {
	if b == UnlimitedBytes {
		return "unlimited"
	}
	for _, u := range byteUnits {
		if b != 0 && b%u.unit == 0 {
			return fmt.Sprintf("%d %s", b/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d B", int64(b))
}

// Rate is bytes a second, written as Bytes with or without "/s", or "unlimited".
type Rate int64

// UnlimitedRate is no limit.
const UnlimitedRate Rate = math.MaxInt64

// ParseRate reads a Rate.
func ParseRate(s string) (Rate, error) {
	b, err := ParseBytes(strings.TrimSuffix(strings.TrimSpace(s), "/s"))
	return Rate(b), err
}

// String writes r so that ParseRate reads the same again.
func (r Rate) String() string {
	if r == UnlimitedRate {
		return "unlimited"
	}
	return Bytes(r).String() + "/s"
}

// Count is a whole number or "auto".
type Count int

// CountAuto is "auto": the layout's own.
const CountAuto Count = -1

// ParseCount reads a Count.
func ParseCount(s string) (Count, error) {
	s = strings.TrimSpace(s)
	if s == "auto" {
		return CountAuto, nil
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("is not a whole number")
	}
	return Count(n), nil
}

// String writes c so that ParseCount reads the same again.
func (c Count) String() string {
	if c == CountAuto {
		return "auto"
	}
	return strconv.Itoa(int(c))
}
