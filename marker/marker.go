// Package marker is the record that stands for the local copy of an uploaded
// segment: its codec, its validation and its durable write.
//
// A marker with the registry entry of its incarnation is everything needed to
// find the object and to prove what it holds. Beside a segment it is the
// `.uploaded` file; in an evicted one it is all that the `.remote` file holds.
//
// A marker is exactly 128 bytes, integers little-endian:
//
//	offset  size  field
//	  0       8   magic, "TIERFSMK"
//	  8       2   version, u16, 1
//	 10       2   flags, u16, none defined: zero
//	 12       4   reserved, zero
//	 16       8   start offset, u64
//	 24       8   end offset, u64, inclusive, not below start
//	 32       8   size of the log in bytes, u64, 1 to 2^63-1
//	 40       8   size of the index in bytes, u64, 0 to 2^63-1
//	 48       8   first timestamp, i64, microseconds since 1970
//	 56       8   max timestamp, i64, microseconds since 1970
//	 64      16   incarnation of the partition, never all zero
//	 80       8   upload id, u64, never zero
//	 88      16   XXH3-128 of the log's bytes, high half first, big-endian
//	104       8   XXH3-64 of bytes 0 to 103, u64
//	112      16   zeros
//
// Nothing but such a record is ever accepted: every bit is either checked by
// the checksum or required to be zero, and a record of another version is
// refused rather than guessed at.
package marker

import (
	"errors"
	"fmt"
)

// Size is the length of a marker in bytes.
const Size = 128

// Sentinels of Parse, Read and Validate, in the order in which Parse looks.
var (
	ErrSize     = errors.New("not 128 bytes")
	ErrMagic    = errors.New("wrong magic")
	ErrVersion  = errors.New("unknown version")
	ErrChecksum = errors.New("wrong checksum")
	ErrReserved = errors.New("reserved bytes are not zero")
	ErrField    = errors.New("invalid field")
)

// Record is one marker. Offsets are the broker's message offsets, sizes are
// bytes, timestamps are microseconds since 1970 and may be negative (Kafka has
// -1 for none). The two timestamps are what the batches say; neither bounds
// the other.
type Record struct {
	Flags          uint16 // none defined: zero
	Start          uint64
	End            uint64 // inclusive
	Size           int64  // of the log, > 0
	IndexSize      int64  // 0: no index
	FirstTimestamp int64
	MaxTimestamp   int64
	Incarnation    Incarnation
	UploadID       UploadID
	LogHash        [16]byte // XXH3-128 of the log as xxh3.Uint128.Bytes gives it
}

// FieldError says which field of a record holds a value that no valid record
// has. It matches ErrField.
type FieldError struct {
	Field  string // as in the struct: "Flags", "End", "Size", …
	Reason string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%v %s: %s", ErrField, e.Field, e.Reason) }

// Unwrap makes errors.Is(err, ErrField) true.
func (e *FieldError) Unwrap() error { return ErrField }

// Validate reports the first field that is out of range as a *FieldError, nil
// if there is none. What it accepts, Marshal and Parse carry without loss.
func (r Record) Validate() error {
	switch {
	case r.Flags != 0:
		return &FieldError{"Flags", fmt.Sprintf("unknown flags %#04x", r.Flags)}
	case r.End < r.Start:
		return &FieldError{"End", fmt.Sprintf("end offset %d is below start offset %d", r.End, r.Start)}
	case r.Size <= 0:
		return &FieldError{"Size", fmt.Sprintf("log size %d is not positive", r.Size)}
	case r.IndexSize < 0:
		return &FieldError{"IndexSize", fmt.Sprintf("index size %d is negative", r.IndexSize)}
	case r.Incarnation.IsZero():
		return &FieldError{"Incarnation", "is zero"}
	case r.UploadID == 0:
		return &FieldError{"UploadID", "is zero"}
	}
	return nil
}
