package dirstore

import (
	"strings"
	"testing"
)

// FuzzEntries: whatever the kernel's buffer holds, decoding ends and gives names
// that can be looked up.
func FuzzEntries(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x18\x00\x08name\x00"))
	f.Add([]byte(strings.Repeat("\x00", 64)))
	f.Fuzz(func(t *testing.T, buf []byte) {
		for _, e := range appendEntries(nil, buf) {
			if e.name == "." || e.name == ".." || strings.Contains(e.name, "\x00") {
				t.Errorf("name %q", e.name)
			}
		}
	})
}
