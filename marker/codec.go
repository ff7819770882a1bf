package marker

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

const (
	magic   = "TIERFSMK"
	version = 1
)

// Where each field lies; the table is in the package comment.
const (
	offVersion        = 8
	offFlags          = 10
	offReserved       = 12
	offStart          = 16
	offEnd            = 24
	offSize           = 32
	offIndexSize      = 40
	offFirstTimestamp = 48
	offMaxTimestamp   = 56
	offIncarnation    = 64
	offUploadID       = 80
	offLogHash        = 88
	offChecksum       = 104
	offZeros          = 112
)

// Marshal returns the marker of r. It does not validate; Write does.
func (r Record) Marshal() [Size]byte {
	var b [Size]byte
	le := binary.LittleEndian
	copy(b[:], magic)
	le.PutUint16(b[offVersion:], version)
	le.PutUint16(b[offFlags:], r.Flags)
	le.PutUint64(b[offStart:], r.Start)
	le.PutUint64(b[offEnd:], r.End)
	le.PutUint64(b[offSize:], uint64(r.Size))
	le.PutUint64(b[offIndexSize:], uint64(r.IndexSize))
	le.PutUint64(b[offFirstTimestamp:], uint64(r.FirstTimestamp))
	le.PutUint64(b[offMaxTimestamp:], uint64(r.MaxTimestamp))
	copy(b[offIncarnation:], r.Incarnation[:])
	le.PutUint64(b[offUploadID:], uint64(r.UploadID))
	copy(b[offLogHash:], r.LogHash[:])
	le.PutUint64(b[offChecksum:], xxh3.Hash(b[:offChecksum]))
	return b
}

// Parse returns the record in b, which must be one whole marker and nothing
// else. It fails with one of the package's sentinels, wrapped with what was
// found; ErrField comes as a *FieldError.
func Parse(b []byte) (Record, error) {
	le := binary.LittleEndian
	if len(b) != Size {
		return Record{}, fmt.Errorf("marker: %w: %d", ErrSize, len(b))
	}
	if string(b[:len(magic)]) != magic {
		return Record{}, fmt.Errorf("marker: %w: %q", ErrMagic, b[:len(magic)])
	}
	if v := le.Uint16(b[offVersion:]); v != version {
		return Record{}, fmt.Errorf("marker: %w: %d", ErrVersion, v)
	}
	if want, got := le.Uint64(b[offChecksum:]), xxh3.Hash(b[:offChecksum]); want != got {
		return Record{}, fmt.Errorf("marker: %w: record says %016x, bytes give %016x", ErrChecksum, want, got)
	}
	if !zero(b[offReserved:offStart]) || !zero(b[offZeros:]) {
		return Record{}, fmt.Errorf("marker: %w", ErrReserved)
	}
	r := Record{
		Flags:          le.Uint16(b[offFlags:]),
		Start:          le.Uint64(b[offStart:]),
		End:            le.Uint64(b[offEnd:]),
		Size:           int64(le.Uint64(b[offSize:])),
		IndexSize:      int64(le.Uint64(b[offIndexSize:])),
		FirstTimestamp: int64(le.Uint64(b[offFirstTimestamp:])),
		MaxTimestamp:   int64(le.Uint64(b[offMaxTimestamp:])),
		Incarnation:    Incarnation(b[offIncarnation:offUploadID]),
		UploadID:       UploadID(le.Uint64(b[offUploadID:])),
		LogHash:        [16]byte(b[offLogHash:offChecksum]),
	}
	if err := r.Validate(); err != nil {
		return Record{}, fmt.Errorf("marker: %w", err)
	}
	return r, nil
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
