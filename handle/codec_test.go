package handle

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEncoding(t *testing.T) {
	long := strings.Repeat("\xff", maxBytes)
	for _, tc := range []struct {
		name   string
		h      Handle
		text   string
		binary string
	}{
		{"ext4", Handle{1, "\x0c\x00\x00\x00\xb7\x1e\x9a\x40"}, "1:0c000000b71e9a40", "\x01\x00\x00\x00\x08\x0c\x00\x00\x00\xb7\x1e\x9a\x40"},
		{"one byte", Handle{0x81, "\x00"}, "129:00", "\x81\x00\x00\x00\x01\x00"},
		{"negative type", Handle{-2, "a"}, "-2:61", "\xfe\xff\xff\xff\x01a"},
		{"longest", Handle{1, long}, "1:" + strings.Repeat("ff", maxBytes), "\x01\x00\x00\x00\x80" + long},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.h.String(); got != tc.text {
				t.Errorf("String = %q, want %q", got, tc.text)
			}
			b, err := tc.h.AppendBinary([]byte("before"))
			if err != nil || string(b) != "before"+tc.binary {
				t.Errorf("AppendBinary = %q, %v", b, err)
			}
			if got, err := Parse([]byte(tc.binary)); err != nil || got != tc.h {
				t.Errorf("Parse = %v, %v", got, err)
			}
		})
	}
	t.Run("of a file", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "the bytes")
		b, err := d.at("f").AppendBinary(nil)
		d.do(err)
		h, err := Parse(b)
		d.do(err)
		if got := d.read(h); got != "the bytes" {
			t.Errorf("read %q", got)
		}
	})
}

func TestEncodingRejects(t *testing.T) {
	for name, b := range map[string]string{
		"empty":          "",
		"no length":      "\x01\x00\x00\x00",
		"no bytes":       "\x01\x00\x00\x00\x00",
		"cut":            "\x01\x00\x00\x00\x02a",
		"bytes behind":   "\x01\x00\x00\x00\x01ab",
		"over the limit": "\x01\x00\x00\x00\x81" + strings.Repeat("x", maxBytes+1),
	} {
		t.Run("parse "+name, func(t *testing.T) {
			if h, err := Parse([]byte(b)); !errors.Is(err, ErrInvalid) || !h.IsZero() {
				t.Errorf("Parse = %v, %v", h, err)
			}
		})
	}
	for name, h := range map[string]Handle{
		"zero":     {},
		"too long": {Type: 1, Bytes: strings.Repeat("x", maxBytes+1)},
	} {
		t.Run("append "+name, func(t *testing.T) {
			if b, err := h.AppendBinary([]byte("before")); !errors.Is(err, ErrInvalid) || string(b) != "before" {
				t.Errorf("AppendBinary = %q, %v", b, err)
			}
		})
	}
}

// FuzzParse holds that what is accepted has exactly one encoding, and that the
// kernel refuses or resolves it without harm.
func FuzzParse(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x08\x0c\x00\x00\x00\xb7\x1e\x9a\x40"))
	f.Add([]byte("\xfe\xff\xff\xff\x01a"))
	f.Add([]byte{})
	fd, err := unix.Open(f.TempDir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { unix.Close(fd) })
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := Parse(data)
		if err != nil {
			return
		}
		again, err := h.AppendBinary(nil)
		if err != nil || !bytes.Equal(again, data) {
			t.Errorf("accepted %q, which is written as %q, %v", data, again, err)
		}
		if opened, err := h.Open(fd, unix.O_PATH); err == nil {
			unix.Close(opened)
		}
	})
}
