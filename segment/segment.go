// Package segment knows the byte formats of log segments: Kafka's record batches and offset index, Iggy's batches,
// message frames and index, and generic files of which nothing but the name is known. It is pure: bytes in, values out;
// it opens no file, starts no goroutine, and every function may be called in parallel.
//
// What Walk accepts is whole: every batch, and under Iggy every frame, matches its own checksum, offsets ascend from
// the file's stem, and the last batch ends exactly on the size that was given. No length found in the data is used
// before it is checked against what is there, so memory stays bounded whatever the data claims.
//
// # Kafka, big-endian
//
// A segment is record batches of version 2, back to back (Kafka's implementation notes, "Record Batch"):
//
//	 0 i64 base offset             23 i32 last offset delta
//	 8 i32 length of what follows  27 i64 base timestamp, ms
//	12 i32 partition leader epoch  35 i64 max timestamp, ms
//	16 i8  magic, 2                43 i64 producer id
//	17 u32 CRC-32C of bytes 21 on  51 i16 producer epoch
//	21 i16 attributes              53 i32 base sequence
//	                               57 i32 record count, then the records
//
// Its offset index has entries of 8 bytes: offset relative to the stem i32, position i32. A live one is preallocated
// with zeros and trimmed when the segment is rolled.
//
// # Iggy, little-endian
//
// A segment is batches, back to back, each a header of 256 bytes and its message frames:
//
//	 0 u64 partition id            32 u64 length, header included
//	 8 u64 base offset             40 u64 batch checksum
//	16 u64 base timestamp, µs      48 u32 message count
//	24 u64 origin timestamp, µs    52 zeros
//
// A frame is a header of 48 bytes, the payload and the user headers:
//
//	 0 u64  checksum: XXH3-64 of the frame's bytes 8 on
//	 8 u128 message id             32 u32 user headers length
//	24 u32  offset delta           36 u32 payload length
//	28 u32  timestamp delta        40 u64 zero
//
// The batch checksum is XXH3-64 of header bytes 0 to 39 and 48 to 51 and then of each frame's stored checksum. The
// index has entries of 24 bytes, one per flush: offset u64, timestamp u64, position u64. Iggy up to 0.8 wrote another
// format; such files do not verify.
package segment

import "errors"

// Format says how the bytes of a segment are laid out.
type Format uint8

// The formats. The zero Format is none of them.
const (
	Kafka   Format = iota + 1 // record batches of version 2
	Iggy                      // batches of message frames, as of Iggy 0.9
	Generic                   // opaque bytes without boundaries
)

// String gives the format's name in lower case.
func (f Format) String() string {
	switch f {
	case Kafka:
		return "kafka"
	case Iggy:
		return "iggy"
	case Generic:
		return "generic"
	}
	return "unknown format"
}

// The ways in which bytes are not what they should be. Errors wrap one of them and name the position.
var (
	// ErrTorn: the data ends within a batch, or before the size that was announced.
	ErrTorn = errors.New("torn")
	// ErrChecksum: a batch or a frame does not match its own checksum.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrNotBatch: what stands where a batch should start is none of this format and version.
	ErrNotBatch = errors.New("not a batch")
	// ErrOrder: a batch's offsets do not follow on those before it, or on the stem.
	ErrOrder = errors.New("offsets out of order")
	// ErrEmpty: a segment without a single byte has no end offset.
	ErrEmpty = errors.New("empty segment")
	// ErrIndex: an index's entries do not ascend, lie outside the segment, or are cut short.
	ErrIndex = errors.New("invalid index")
	// ErrFormat: the Format is unknown, or has no batches where batches are asked for.
	ErrFormat = errors.New("wrong format")
)

// Batch is one batch of a segment.
type Batch struct {
	Position int64 // where it starts, in bytes from the start of the segment
	Size     int64 // in bytes, header included
	Base     uint64
	Last     uint64 // inclusive; below it offsets may be missing under Kafka
	// Timestamps are µs since 1970; 0 means unknown. Under Kafka they are the producer's or the broker's, as the topic
	// is set; a batch whose base timestamp was overwritten by compaction has no FirstTimestamp. Under Iggy both are
	// the server's base timestamp.
	FirstTimestamp int64
	MaxTimestamp   int64
}

// Summary is what Walk learned of a whole segment.
type Summary struct {
	Start uint64 // the stem
	End   uint64 // last offset, inclusive; Start for Generic
	Size  int64  // bytes
	// Timestamps are µs since 1970; 0 means unknown. FirstTimestamp is the first batch's that has one.
	FirstTimestamp int64
	MaxTimestamp   int64
	Batches        int64 // 0 for Generic
}
