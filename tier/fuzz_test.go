package tier

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzUploadOf: a name that is read as an upload's is the one that would be written for it.
func FuzzUploadOf(f *testing.F) {
	f.Add("101112131415161718191a1b1c1d1e1f-00000000000000000042-0123456789abcdef")
	f.Add("101112131415161718191a1b1c1d1e1f-99999999999999999999-0123456789abcdef")
	f.Add("101112131415161718191a1b1c1d1e1f-42-0123456789abcdef")
	f.Add("--")
	f.Fuzz(func(t *testing.T, name string) {
		if rec, err := uploadOf(name); err == nil && uploadFile(rec) != name {
			t.Errorf("%q was read as %q", name, uploadFile(rec))
		}
	})
}

// FuzzOwnerRecord: what the store gives for an owner record is one that comes back the same, or none.
func FuzzOwnerRecord(f *testing.F) {
	f.Add([]byte(`{"volume":"v","instance":"i","epoch":3,"nonce":"n","broker":"b"}`))
	f.Add([]byte(`{"epoch":-1}`))
	f.Add([]byte(`{"volume":"v"} {}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := parseOwner(b)
		if err != nil {
			return
		}
		encoded, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseOwner(encoded); err != nil || again != rec {
			t.Errorf("%+v came back as %+v, %v", rec, again, err)
		}
	})
}

// FuzzState: every file of the state directory, whatever is in it.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"id":"00112233445566778899aabbccddeeff","name":"kafka-1"}`))
	f.Add([]byte(`{"epoch":7,"nonce":"n","claimed":true,"ours":["n"]}`))
	f.Add([]byte(`{"mode":493,"uid":1,"gid":1}`))
	f.Add([]byte(`{"prefix":"p/t-0/i","path":"t-0","layout":"kafka"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, into := range []any{&Identity{}, &epochState{}, &RootAttr{}, &registryEntry{}, &partitionState{}} {
			if parseJSON("f", b, into) == nil && !json.Valid(b) {
				t.Errorf("%q was taken for a %T", b, into)
			}
		}
		var id Identity
		if parseJSON(volumeFile, b, &id) == nil && id.valid() && (len(id.ID) != 32 || id.Name == "" || strings.Contains(id.Name, "/")) {
			t.Errorf("%q is no identity", b)
		}
	})
}

// FuzzDirents: whatever the kernel's buffer holds, decoding ends and gives names that can be looked up.
func FuzzDirents(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x18\x00\x08name\x00"))
	f.Add([]byte(strings.Repeat("\x00", 64)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, e := range appendDirents(nil, b) {
			if e.Name == "." || e.Name == ".." || strings.Contains(e.Name, "\x00") {
				t.Errorf("name %q", e.Name)
			}
		}
	})
}
