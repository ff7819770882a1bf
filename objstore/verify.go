package objstore

import (
	"context"
	"fmt"
)

// Verify proves that what s holds under key is body. Where the store enforces
// checksums (f.EnforcesChecksum, see Probe) it compared them with the bytes when
// it took them: then size and checksum of a Head are the proof. Elsewhere, or
// when always is set, the whole object is read back, in constant memory.
//
// Another object is ErrChecksum; a missing one ErrNotFound.
func Verify(ctx context.Context, s Store, key string, body Body, f Features, always bool) error {
	info, err := s.Head(ctx, key)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if info.Size != body.Size {
		return fmt.Errorf("%w: %s has %d bytes, not %d", ErrChecksum, key, info.Size, body.Size)
	}
	if info.HasCRC && info.CRC64NVME != body.CRC64NVME {
		return fmt.Errorf("%w: %s has CRC-64 %016x, not %016x", ErrChecksum, key, info.CRC64NVME, body.CRC64NVME)
	}
	if f.EnforcesChecksum && !always {
		return nil
	}
	return readBack(ctx, s, key, body)
}

// Same says whether the object under key has body's bytes, by size and the
// checksum that the store keeps, or by reading it where it keeps none. It is what
// settles a Put with IfAbsent whose answer was lost, or was that the key is taken.
func Same(ctx context.Context, s Store, key string, body Body) (bool, error) {
	info, err := s.Head(ctx, key)
	if err != nil {
		return false, err
	}
	if info.Size != body.Size {
		return false, nil
	}
	if info.HasCRC {
		return info.CRC64NVME == body.CRC64NVME, nil
	}
	sum, err := storedChecksum(ctx, s, key, body.Size)
	return sum == body.CRC64NVME, err
}

func readBack(ctx context.Context, s Store, key string, body Body) error {
	sum, err := storedChecksum(ctx, s, key, body.Size)
	if err != nil {
		return fmt.Errorf("verify %s: %w", key, err)
	}
	if sum != body.CRC64NVME {
		return fmt.Errorf("%w: %s was read back with CRC-64 %016x, not %016x", ErrChecksum, key, sum, body.CRC64NVME)
	}
	return nil
}

func storedChecksum(ctx context.Context, s Store, key string, size int64) (uint64, error) {
	if size == 0 {
		return BytesBody(nil).CRC64NVME, nil
	}
	r, err := s.GetRange(ctx, key, 0, size)
	if err != nil {
		return 0, err
	}
	sum, err := Checksum(r, size)
	r.Close() // everything that was asked for has been read, or err says why not
	return sum, err
}
