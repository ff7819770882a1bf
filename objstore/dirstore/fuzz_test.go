package dirstore

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/objstore"
)

// FuzzAttributes: an attribute that is taken says the same when it is written again; one that is refused leaves no trace.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte(`{"crc64nvme":"00112233445566ff","metadata":{"volume":"v"}}`))
	f.Add([]byte(`{"crc64nvme":"","metadata":{"volume":"v"}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		var info, again objstore.Info
		if err := parseAttribute(value, &info); err != nil {
			if info.HasCRC || info.Metadata != nil {
				t.Errorf("%q was refused and left %+v", value, info)
			}
			return
		}
		b, err := attribute{CRC64NVME: fmt.Sprintf("%016x", info.CRC64NVME), Metadata: info.Metadata}.encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := parseAttribute(b, &again); err != nil || again.CRC64NVME != info.CRC64NVME || !maps.Equal(again.Metadata, info.Metadata) {
			t.Errorf("%+v came back as %+v, %v", info, again, err)
		}
	})
}

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
