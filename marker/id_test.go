package marker

import (
	"errors"
	"strings"
	"testing"
)

func TestIncarnation(t *testing.T) {
	t.Run("new ones differ", func(t *testing.T) {
		seen := map[Incarnation]bool{}
		for range 1000 {
			i := NewIncarnation()
			if i.IsZero() || seen[i] {
				t.Fatalf("%v is zero or came twice", i)
			}
			seen[i] = true
		}
	})
	t.Run("text", func(t *testing.T) {
		const want = "101112131415161718191a1b1c1d1e1f"
		i, err := ParseIncarnation(want)
		if err != nil || i != goldenRecord().Incarnation || i.String() != want {
			t.Errorf("ParseIncarnation = %v, %v", i, err)
		}
	})
	for name, s := range map[string]string{
		"empty":      "",
		"short":      strings.Repeat("1", 31),
		"long":       strings.Repeat("1", 33),
		"upper case": strings.Repeat("A", 32),
		"no hex":     strings.Repeat("g", 32),
		"zero":       strings.Repeat("0", 32),
	} {
		t.Run(name, func(t *testing.T) {
			if i, err := ParseIncarnation(s); !errors.Is(err, ErrField) || !i.IsZero() {
				t.Errorf("ParseIncarnation(%q) = %v, %v", s, i, err)
			}
		})
	}
}

func TestUploadID(t *testing.T) {
	t.Run("new ones differ", func(t *testing.T) {
		seen := map[UploadID]bool{}
		for range 1000 {
			id := NewUploadID()
			if id == 0 || seen[id] {
				t.Fatalf("%v is zero or came twice", id)
			}
			seen[id] = true
		}
	})
	for _, want := range []string{"0000000000000001", "0123456789abcdef", "ffffffffffffffff"} {
		t.Run(want, func(t *testing.T) {
			if id, err := ParseUploadID(want); err != nil || id.String() != want {
				t.Errorf("ParseUploadID = %v, %v", id, err)
			}
		})
	}
	for name, s := range map[string]string{
		"empty":      "",
		"short":      "123456789abcdef",
		"long":       "00123456789abcdef",
		"upper case": "0123456789ABCDEF",
		"sign":       "+123456789abcdef",
		"underscore": "0123_456789abcde",
		"no hex":     "0123456789abcdeg",
		"zero":       "0000000000000000",
	} {
		t.Run(name, func(t *testing.T) {
			if id, err := ParseUploadID(s); !errors.Is(err, ErrField) || id != 0 {
				t.Errorf("ParseUploadID(%q) = %v, %v", s, id, err)
			}
		})
	}
}

// FuzzIDs: what is read as an id is what would be written for it, and never zero.
func FuzzIDs(f *testing.F) {
	f.Add("101112131415161718191a1b1c1d1e1f")
	f.Add("0123456789abcdef")
	f.Add("0x23456789abcdef")
	f.Fuzz(func(t *testing.T, s string) {
		if i, err := ParseIncarnation(s); err == nil && (i.IsZero() || i.String() != s) {
			t.Errorf("%q is incarnation %s", s, i)
		}
		if id, err := ParseUploadID(s); err == nil && (id == 0 || id.String() != s) {
			t.Errorf("%q is upload %s", s, id)
		}
	})
}
