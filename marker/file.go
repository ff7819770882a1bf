package marker

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
)

// Write validates r and makes it the content of name in the directory dir,
// with mode 0600, atomically and durably: after a crash the file is what it was
// before or this marker, whole. It fails with ErrField before anything is
// touched, else as durable.WriteFile does.
func Write(dir int, name string, r Record) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("marker %s: %w", name, err)
	}
	b := r.Marshal()
	return durable.WriteFile(dir, name, b[:], 0o600)
}

// Read returns the record in the file name of the directory dir. It fails as
// Parse does when the file is no valid marker (a longer file is ErrSize and is
// not read), else as durable.ReadFile does; fs.ErrNotExist when it is missing.
func Read(dir int, name string) (Record, error) {
	b, err := durable.ReadFile(dir, name, Size)
	if errors.Is(err, unix.EFBIG) {
		return Record{}, fmt.Errorf("%s: marker: %w: %w", name, ErrSize, err)
	}
	if err != nil {
		return Record{}, err
	}
	r, err := Parse(b)
	if err != nil {
		return Record{}, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}
