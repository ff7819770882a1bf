package marker

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
)

// Incarnation is one life of a partition directory: 128 random bits, never all
// zero. Comparable.
type Incarnation [16]byte

// NewIncarnation returns a random incarnation. It never fails.
func NewIncarnation() Incarnation {
	for {
		var i Incarnation
		rand.Read(i[:])
		if !i.IsZero() {
			return i
		}
	}
}

// ParseIncarnation reads what String wrote: exactly 32 lower-case hex digits,
// not all zero. It fails with a *FieldError.
func ParseIncarnation(s string) (Incarnation, error) {
	var i Incarnation
	if len(s) != hex.EncodedLen(len(i)) {
		return Incarnation{}, idError("Incarnation", s)
	}
	if _, err := hex.Decode(i[:], []byte(s)); err != nil || i.IsZero() || i.String() != s {
		return Incarnation{}, idError("Incarnation", s)
	}
	return i, nil
}

// IsZero reports whether i is no incarnation.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// String returns 32 lower-case hex digits.
func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// UploadID names one upload: 64 random bits, never zero. Comparable.
type UploadID uint64

// NewUploadID returns a random upload id. It never fails.
func NewUploadID() UploadID {
	for {
		var b [8]byte
		rand.Read(b[:])
		if id := UploadID(binary.LittleEndian.Uint64(b[:])); id != 0 {
			return id
		}
	}
}

// ParseUploadID reads what String wrote: exactly 16 lower-case hex digits, not
// all zero. It fails with a *FieldError.
func ParseUploadID(s string) (UploadID, error) {
	n, err := strconv.ParseUint(s, 16, 64)
	if id := UploadID(n); err == nil && id != 0 && id.String() == s {
		return id, nil
	}
	return 0, idError("UploadID", s)
}

// String returns 16 lower-case hex digits.
func (u UploadID) String() string { return fmt.Sprintf("%016x", uint64(u)) }

func idError(field, s string) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf("cannot be %q", s)}
}
