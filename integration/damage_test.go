package integration

import (
	"bytes"
	be "encoding/binary"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
)

// damage is something that can have happened to one partition while nothing was mounted.
type damage struct {
	topic string // what happened, by a name that is a topic's; one that begins with "held" is not evicted before
	// fresh is done before the first mount, plant when all is tiered. dir is the partition's directory.
	fresh, plant func(p *plain, dir string)

	lost    bool     // reads of the first segment fail, with EIO
	differs bool     // its name leads to something else than its bytes, as it does below
	says    []string // words of one line of the daemon's log
	finds   []string // words of one line of `tierfs check`; none: it finds nothing
	deep    bool     // only `tierfs check --deep` finds it
	settled bool     // a mount makes another state of it, which a check need not find
}

// The names below of the first segment of a partition.
const (
	first  = "/00000000000000000000"
	log    = first + ".log"
	index  = first + ".index"
	remote = first + ".remote"
)

// record changes the record of the first segment.
func record(change func(p *plain, rec *marker.Record)) func(*plain, string) {
	return func(p *plain, dir string) {
		rec, err := marker.Parse(p.read(dir + remote))
		p.must(err)
		change(p, &rec)
		b := rec.Marshal()
		p.overwrite(dir+remote, b[:])
	}
}

// bytesOf changes the bytes of the record of the first segment.
func bytesOf(change func(b []byte) []byte) func(*plain, string) {
	return func(p *plain, dir string) { p.overwrite(dir+remote, change(p.read(dir+remote))) }
}

// made puts something in the place of a file of the first segment.
func made(name string, how func(path string) error) func(*plain, string) {
	return func(p *plain, dir string) {
		p.must(os.RemoveAll(p.path(dir + name)))
		p.must(how(p.path(dir + name)))
	}
}

func mkdir(path string) error { return os.Mkdir(path, 0o755) }
func fifo(path string) error  { return unix.Mkfifo(path, 0o644) }
func null(path string) error  { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) }
func socket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		l.SetUnlinkOnClose(false)
		err = l.Close()
	}
	return err
}
func linkTo(target string) func(string) error {
	return func(path string) error { return os.Symlink(target, path) }
}

// object changes an object of the first segment of the partition; nil from change removes it.
func object(suffix string, change func(b []byte) []byte) func(*plain, string) {
	return func(p *plain, dir string) {
		path := p.object(dir, suffix)
		b, err := os.ReadFile(path)
		p.must(err)
		if b = change(b); b == nil {
			p.must(os.Remove(path))
			return
		}
		p.must(os.WriteFile(path, b, 0o600))
	}
}

// object is the file that the store keeps of the first segment.
func (p *plain) object(dir, suffix string) string {
	p.t.Helper()
	found := ""
	p.must(filepath.WalkDir(p.store.Root, func(path string, e fs.DirEntry, err error) error {
		if strings.Contains(path, "/"+dir+"/") && strings.Contains(path, first+"-") && strings.HasSuffix(path, suffix) {
			found = path
		}
		return err
	}))
	if found == "" {
		p.t.Fatalf("the first segment of %s has no %s object", dir, suffix)
	}
	return found
}

func gone([]byte) []byte      { return nil }
func short(b []byte) []byte   { return b[:len(b)-1] }
func flipped(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b }

// file changes a file of the partition.
func file(name string, change func(b []byte) []byte) func(*plain, string) {
	return func(p *plain, dir string) {
		if b := change(p.read(dir + name)); b != nil {
			p.overwrite(dir+name, b)
			return
		}
		p.must(os.Remove(p.path(dir + name)))
	}
}

// overwrite gives a file other content and leaves its times.
func (p *plain) overwrite(name string, b []byte) {
	p.t.Helper()
	info, err := os.Stat(p.path(name))
	p.must(err)
	p.write(name, b)
	p.must(os.Chtimes(p.path(name), info.ModTime(), info.ModTime()))
}

// outside points beyond the end of the segment.
func outside(b []byte) []byte {
	b = bytes.Clone(b)
	be.BigEndian.PutUint32(b[len(b)-4:], 1<<30)
	return b
}

// damagedRecords are what can be wrong with a marker.
func damagedRecords() []damage {
	quarantined := []string{"quarantined", remote[1:21]}
	invalid := []string{remote, "is no valid marker"}
	return []damage{
		{topic: "short", lost: true, plant: bytesOf(short), says: quarantined, finds: invalid},
		{topic: "long", lost: true, plant: bytesOf(func(b []byte) []byte { return append(b, 0) }), says: quarantined, finds: invalid},
		{topic: "empty", lost: true, plant: bytesOf(func(b []byte) []byte { return []byte{} }), says: quarantined, finds: invalid},
		{topic: "magic", lost: true, plant: bytesOf(func(b []byte) []byte { b[0] ^= 1; return b }), says: quarantined, finds: invalid},
		{topic: "version", lost: true, plant: bytesOf(func(b []byte) []byte { b[8]++; return b }), says: quarantined, finds: invalid},
		{topic: "checksum", lost: true, plant: bytesOf(func(b []byte) []byte { b[104] ^= 1; return b }), says: quarantined, finds: invalid},
		{topic: "unknown", lost: true, says: quarantined, finds: []string{remote, "names incarnation"},
			plant: record(func(_ *plain, rec *marker.Record) { rec.Incarnation = marker.NewIncarnation() })},
		{topic: "other", lost: true, says: nil, finds: []string{remote, "is not in the store"},
			plant: record(func(p *plain, rec *marker.Record) {
				good, err := marker.Parse(p.read("good-0" + remote))
				p.must(err)
				rec.Incarnation = good.Incarnation
			})},
		{topic: "dirmarker", differs: true, plant: made(remote, mkdir), finds: []string{remote, "is a directory"}},
		{topic: "linkmarker", differs: true, plant: made(remote, linkTo("elsewhere")), finds: []string{remote, "is a symbolic link"}},
		{topic: "nomarker", differs: true, plant: file(remote, gone), finds: []string{index, "is an index without its log"}},
		{topic: "heldshort", settled: true, says: []string{"a record cannot be used", first[1:]}, finds: []string{first + ".uploaded", "is no valid marker"},
			plant: file(first+".uploaded", short)},
		{topic: "helddirrecord", finds: []string{first + ".uploaded", "is a directory"}, plant: made(first+".uploaded", mkdir)},
		{topic: "heldbytes", deep: true, finds: []string{log, "has other bytes than its record"}, plant: file(log, flipped)},
		{topic: "heldsize", settled: true, finds: []string{first + ".uploaded", "has"}, plant: file(log, short)},
		{topic: "heldgone", differs: true, finds: []string{index, "is an index without its log"}, plant: file(log, gone)},
	}
}

// damagedObjects are what can be wrong in the store.
func damagedObjects() []damage {
	return []damage{
		{topic: "object-gone", lost: true, plant: object(".log", gone), finds: []string{remote, "is not in the store"}},
		{topic: "object-short", lost: true, plant: object(".log", short), finds: []string{remote, "bytes; it should have"}},
		{topic: "object-long", plant: object(".log", func(b []byte) []byte { return append(b, 0) }), finds: []string{remote, "bytes; it should have"}},
		{topic: "object-empty", lost: true, plant: object(".log", func([]byte) []byte { return []byte{} }), finds: []string{remote, "bytes; it should have"}},
		{topic: "object-bytes", lost: true, plant: object(".log", flipped), deep: true, finds: []string{remote, "other bytes"}},
		{topic: "object-index", plant: object(".index", gone), finds: []string{remote, "is not in the store"}},
		{topic: "heldobject", plant: object(".log", gone), finds: []string{first + ".uploaded", "is not in the store"}},
	}
}

// damagedFiles are what can be wrong with a broker's own files.
func damagedFiles() []damage {
	alone := func(dir string) []string { return []string{"a sealed segment is left alone", dir, first[1:]} }
	noise := func(b []byte) []byte { return bytes.Repeat([]byte("no batch "), len(b)/9+1)[:len(b)] }
	return []damage{
		{topic: "noise", says: alone("noise-0"), deep: true, finds: []string{log, "does not verify"}, fresh: file(log, noise)},
		{topic: "torn", says: alone("torn-0"), deep: true, finds: []string{log, "does not verify"}, fresh: file(log, short)},
		{topic: "crc", says: alone("crc-0"), deep: true, finds: []string{log, "does not verify"}, fresh: file(log, flipped)},
		{topic: "nothing", says: alone("nothing-0"), deep: true, finds: []string{log, "does not verify"}, fresh: file(log, func([]byte) []byte { return []byte{} })},
		{topic: "beyond", says: []string{"an index does not fit", first[1:]}, deep: true, finds: []string{index, "does not fit"}, fresh: file(index, outside)},
		{topic: "noindex", fresh: file(index, gone)},
		{topic: "indexnoise", says: []string{"an index does not fit", first[1:]}, deep: true, finds: []string{index, "does not fit"}, fresh: file(index, noise)},
		{topic: "indexlost", plant: file(index, gone)},
		{topic: "indexbeyond", plant: file(index, outside), deep: true, finds: []string{index, "does not fit"}},
		{topic: "indexcut", plant: file(index, short), deep: true, finds: []string{index, "does not fit"}},
		{topic: "indexdir", fresh: made(index, mkdir), finds: []string{index, "is a directory"}},
		{topic: "indexfifo", fresh: made(index, fifo), finds: []string{index, "is a pipe"}},
		{topic: "indexlink", fresh: made(index, linkTo("../good-0"+index)), finds: []string{index, "is a symbolic link"}},
		{topic: "logdir", differs: true, fresh: made(log, mkdir), finds: []string{log, "is a directory"}},
		{topic: "logfifo", differs: true, fresh: made(log, fifo), finds: []string{log, "is a pipe"}},
		{topic: "logsocket", differs: true, fresh: made(log, socket), finds: []string{log, "is a socket"}},
		{topic: "lognull", differs: true, fresh: made(log, null), finds: []string{log, "is a device"}},
		{topic: "loglink", differs: true, fresh: made(log, linkTo("/nowhere/at/all")), finds: []string{log, "is a symbolic link"}},
		{topic: "logoutside", differs: true, fresh: made(log, linkTo("/etc/passwd")), finds: []string{log, "is a symbolic link"}},
		{topic: "heldtwin", says: []string{"is there twice", first[1:]}, finds: []string{"there twice"},
			plant: func(p *plain, dir string) { p.write(dir+remote, p.read(dir+first+".uploaded")) }},
		{topic: "dirtwin", differs: true, finds: []string{log, "is a directory"}, plant: func(p *plain, dir string) { p.must(mkdir(p.path(dir + log))) }},
		{topic: "heldremotedir", finds: []string{remote, "is a directory"}, plant: made(remote, mkdir)},
		{topic: "nines", fresh: func(p *plain, dir string) { p.write(dir+"/99999999999999999999.log", []byte("nine")) }},
		{topic: "highest", fresh: func(p *plain, dir string) { p.write(dir+"/18446744073709551615.log", []byte("high")) }},
		{topic: "identity", says: []string{"identity-0"}, finds: []string{"/.tierfs-partition", "cannot be read"}, plant: file("/.tierfs-partition", func(b []byte) []byte { return b[:len(b)/2] })},
		{topic: "identitydir", says: []string{"identitydir-0"}, finds: []string{"/.tierfs-partition", "is a directory"}, plant: made("/.tierfs-partition", mkdir)},
	}
}
