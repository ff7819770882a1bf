package segment

import "math"

const stemDigits = 20

// ParseStem splits a file name into its start offset and what follows the 20 digits: "00000000000000000042.log" gives
// 42 and ".log". The suffix is empty or starts with a dot. ok is false for any other name, and for a number that does
// not fit 64 bits.
func ParseStem(name string) (start uint64, suffix string, ok bool) {
	if len(name) < stemDigits || (len(name) > stemDigits && name[stemDigits] != '.') {
		return 0, "", false
	}
	for i := range stemDigits {
		d := uint64(name[i]) - '0'
		if d > 9 || start > math.MaxUint64/10 || start*10 > math.MaxUint64-d {
			return 0, "", false
		}
		start = start*10 + d
	}
	return start, name[stemDigits:], true
}

// Stem is start as the 20 decimal digits that file names and keys begin with.
func Stem(start uint64) string {
	var b [stemDigits]byte
	for i := stemDigits - 1; i >= 0; i-- {
		b[i] = byte('0' + start%10)
		start /= 10
	}
	return string(b[:])
}
