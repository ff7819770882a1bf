package marker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openDir(t *testing.T) (fd int, path string) {
	t.Helper()
	path = t.TempDir()
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd, path
}

const name = "00000000000000001472.uploaded"

func TestWriteRead(t *testing.T) {
	dir, path := openDir(t)
	first, second := goldenRecord(), goldenRecord()
	second.UploadID++
	for _, want := range []Record{first, second} {
		if err := Write(dir, name, want); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(dir, name); err != nil || got != want {
			t.Errorf("Read = %+v, %v, want %+v", got, err, want)
		}
	}
	st, err := os.Stat(filepath.Join(path, name))
	if err != nil || st.Size() != Size || st.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", st, err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 1 {
		t.Errorf("the directory holds %v, %v", entries, err)
	}
}

func TestWriteRefusesInvalid(t *testing.T) {
	dir, path := openDir(t)
	r := goldenRecord()
	r.Size = 0
	if err := Write(dir, name, r); !errors.Is(err, ErrField) || !strings.Contains(err.Error(), name) {
		t.Errorf("Write: %v", err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 0 {
		t.Errorf("the directory holds %v, %v", entries, err)
	}
}

func TestReadRejects(t *testing.T) {
	whole := golden(t)
	torn := append([]byte(nil), whole...)
	clear(torn[64:])
	for label, tc := range map[string]struct {
		data []byte
		want error
	}{
		"empty":              {nil, ErrSize},
		"short":              {whole[:Size-1], ErrSize},
		"long":               {append(whole[:Size:Size], 0), ErrSize},
		"a whole log":        {make([]byte, 1<<20), ErrSize},
		"zeros after a loss": {make([]byte, Size), ErrMagic},
		"torn":               {torn, ErrChecksum},
	} {
		t.Run(label, func(t *testing.T) {
			dir, path := openDir(t)
			if err := os.WriteFile(filepath.Join(path, name), tc.data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Read(dir, name)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), name) {
				t.Errorf("Read: %v, want %v with the name", err, tc.want)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		dir, _ := openDir(t)
		if _, err := Read(dir, name); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.ENOENT) {
			t.Errorf("Read: %v", err)
		}
	})
}
