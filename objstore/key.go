package objstore

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	maxKey       = 1024
	maxComponent = 255
	maxMetadata  = 2048
)

// CheckKey returns ErrInvalid for a key that not every store can hold: empty or
// longer than 1,024 bytes, not UTF-8, with control characters, or with a
// component between slashes that is empty, ".", ".." or longer than 255 bytes.
func CheckKey(key string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("%w: key of %d bytes", ErrInvalid, len(key))
	}
	if !utf8.ValidString(key) {
		return fmt.Errorf("%w: key %q is not UTF-8", ErrInvalid, key)
	}
	for _, r := range key {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0xfffe || r == 0xffff {
			return fmt.Errorf("%w: key %q has a control character", ErrInvalid, key)
		}
	}
	for c := range strings.SplitSeq(key, "/") {
		if c == "" || c == "." || c == ".." || len(c) > maxComponent {
			return fmt.Errorf("%w: key %q has a bad component %q", ErrInvalid, key, c)
		}
	}
	return nil
}

// CheckPut returns ErrInvalid for what no Put may send: a bad key, a body without
// a reader or of negative size, metadata that some store would change.
func CheckPut(key string, body Body, opts PutOptions) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if body.R == nil || body.Size < 0 {
		return fmt.Errorf("%w: put %s: no body", ErrInvalid, key)
	}
	total := 0
	for k, v := range opts.Metadata {
		if !metadataKey(k) {
			return fmt.Errorf("%w: put %s: metadata key %q is not [a-z0-9]", ErrInvalid, key, k)
		}
		if !metadataValue(v) {
			return fmt.Errorf("%w: put %s: metadata value of %q is not plain ASCII", ErrInvalid, key, k)
		}
		total += len(k) + len(v)
	}
	if total > maxMetadata {
		return fmt.Errorf("%w: put %s: %d bytes of metadata", ErrInvalid, key, total)
	}
	return nil
}

func metadataKey(k string) bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return k != ""
}

func metadataValue(v string) bool {
	for i := range len(v) {
		if v[i] < 0x20 || v[i] > 0x7e {
			return false
		}
	}
	return strings.TrimSpace(v) == v
}

// CheckRange returns ErrRange for a range that is outside every object.
func CheckRange(key string, off, n int64) error {
	if off < 0 || n <= 0 || off+n < 0 {
		return fmt.Errorf("%w: %s: %d bytes at %d", ErrRange, key, n, off)
	}
	return nil
}
