package chunkcache

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

func sampleHeader() header {
	return header{object: hashKey("key"), start: 5, length: 3*blockSize + 1, nonce: 0xfeedface, sums: []uint64{1, 2, 3, 4}}
}

func TestHeader(t *testing.T) {
	h := sampleHeader()
	b := h.marshal()
	t.Run("round trip", func(t *testing.T) {
		got, err := parseHeader(b)
		if err != nil || !reflect.DeepEqual(got, h) {
			t.Errorf("%+v %v", got, err)
		}
	})
	t.Run("golden bytes", func(t *testing.T) {
		const want = "5449455246534348010000000040000005000000000000000" +
			"1c00000000000002c70e12b7a0646f92279f427c7b38e73cefaedfe000000000000000000000000" +
			"0100000000000000020000000000000003000000000000000400000000000000"
		if got := hex.EncodeToString(b[:96]); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		if len(b) != 4096 || len(bytes.Trim(b[104:], "\x00")) > 0 {
			t.Errorf("%d bytes, padding %x", len(b), b[104:])
		}
	})
	t.Run("every bit counts", func(t *testing.T) {
		for i := range len(b) * 8 {
			c := slices.Clone(b)
			c[i/8] ^= 1 << (i % 8)
			if _, err := parseHeader(c); err == nil {
				t.Fatalf("bit %d of byte %d does not", i%8, i/8)
			}
		}
	})
	for n := range 200 {
		if _, err := parseHeader(b[:n]); err == nil {
			t.Fatalf("%d bytes are accepted", n)
		}
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(sampleHeader().marshal())
	f.Add([]byte(fileMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err == nil && !bytes.Equal(h.marshal(), b) {
			t.Errorf("%x is accepted as %+v", b, h)
		}
		if len(b) < fixedHeader+8 { // with the right checksum it gets further
			return
		}
		c := slices.Clone(b)
		sum := xxh3.Hash(c[:len(c)-8])
		copy(c[len(c)-8:], []byte{byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24), byte(sum >> 32), byte(sum >> 40), byte(sum >> 48), byte(sum >> 56)})
		if h, err := parseHeader(c); err == nil && !bytes.Equal(h.marshal(), c) {
			t.Errorf("%x is accepted as %+v", c, h)
		}
	})
}

func TestFileName(t *testing.T) {
	e := &extent{start: 123, end: 456, nonce: 0xabc}
	name := fileName(e)
	if name != "00000000000000000123-333-0000000000000abc" {
		t.Error(name)
	}
	if start, length, nonce, ok := parseFileName(name); !ok || start != 123 || length != 333 || nonce != 0xabc {
		t.Error(start, length, nonce, ok)
	}
	for _, bad := range []string{
		"", "x", name + ".part", name + "0", "0" + name, strings.ToUpper(name), strings.Replace(name, "333", "0333", 1),
		strings.Replace(name, "333", "0", 1), strings.Replace(name, "333", "-3", 1), strings.Replace(name, "333", "+3", 1),
		strings.Replace(name, "333", "99999999999999", 1), "99999999999999999999-333-0000000000000abc", "09223372036854775807-333-0000000000000abc",
	} {
		if _, _, _, ok := parseFileName(bad); ok {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzFileName(f *testing.F) {
	f.Add("00000000000000000123-333-0000000000000abc")
	f.Fuzz(func(t *testing.T, name string) {
		start, length, nonce, ok := parseFileName(name)
		if e := (&extent{start: start, end: start + length, nonce: nonce}); ok && (fileName(e) != name || start < 0 || length <= 0) {
			t.Errorf("%q is [%d, +%d) %x", name, start, length, nonce)
		}
	})
}

func TestDirName(t *testing.T) {
	for key, readable := range map[string]string{
		"tierfs/vol/orders-0/00.log":           "tierfs_vol_orders-0_00.log",
		"../../etc/passwd":                     ".._.._etc_passwd",
		"":                                     "",
		"über\x00/x":                           "_ber__x",
		strings.Repeat("x", 500) + "/last.log": strings.Repeat("x", 151) + "_last.log",
	} {
		name := dirName(hashKey(key), key)
		if name[33:] != readable || len(name) > 255 {
			t.Errorf("%q: %q", key, name)
		}
		if h, ok := parseDirName(name); !ok || h != hashKey(key) {
			t.Errorf("%q: %x %v", name, h, ok)
		}
	}
	for _, bad := range []string{"", "x-y", strings.Repeat("0", 32), strings.Repeat("A", 32) + "-x", strings.Repeat("g", 32) + "-x", strings.Repeat("0", 33) + "-x"} {
		if _, ok := parseDirName(bad); ok {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzDirName(f *testing.F) {
	f.Add("0123456789abcdef0123456789abcdef-key")
	f.Fuzz(func(t *testing.T, name string) {
		h, ok := parseDirName(name)
		if ok && hex.EncodeToString(h[:]) != name[:32] {
			t.Errorf("%q is %x", name, h)
		}
		if n := dirName(hashKey(name), name); strings.ContainsAny(n, "/\x00") || len(n) > 255 {
			t.Errorf("%q becomes %q", name, n)
		}
	})
}

func TestAccessTable(t *testing.T) {
	b := appendAccess(appendAccess([]byte(accessMagic), 7, 100), 8, -5)
	b = sealAccess(b)
	got, err := parseAccess(b)
	if want := (accessTable{7: 100, 8: -5}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v", got, err)
	}
	for i := range len(b) * 8 {
		c := slices.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		if _, err := parseAccess(c); err == nil {
			t.Fatalf("bit %d of byte %d does not count", i%8, i/8)
		}
	}
	for n := range len(b) {
		if _, err := parseAccess(b[:n]); err == nil {
			t.Fatalf("%d bytes are accepted", n)
		}
	}
}

func FuzzAccessTable(f *testing.F) {
	f.Add(sealAccess(appendAccess([]byte(accessMagic), 7, 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if table, err := parseAccess(b); err == nil && len(table) > len(b)/accessRecord {
			t.Errorf("%x has %d records", b, len(table))
		}
		if table, err := parseAccess(sealAccess(append([]byte(accessMagic), b...))); (err == nil) != (len(b)%accessRecord == 0) {
			t.Errorf("%x: %v %v", b, table, err)
		}
	})
}
