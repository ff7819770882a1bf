package crash

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
)

// below is what lies in the source itself, read without tierfs.
type below struct {
	names    map[string]bool          // files, but for those of .tierfs
	linked   map[string]bool          // those with several names: the record may stand beside another one
	records  map[string]marker.Record // by path
	prefixes map[string]string        // of keys, by incarnation: the registry
	minted   map[string]string        // the incarnation by partition
	never    map[string]bool          // partitions that are not tiered
	between  []string                 // what only a step under way may leave
}

func (v *volume) readBelow() (*below, error) {
	b := &below{
		names: map[string]bool{}, linked: map[string]bool{}, records: map[string]marker.Record{}, prefixes: map[string]string{},
		minted: map[string]string{}, never: map[string]bool{},
	}
	root := v.below(".")
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, name)
		switch {
		case err != nil:
			return err
		case e.IsDir() && rel == ".tierfs/cache":
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		return b.file(name, rel)
	})
	return b, err
}

func (b *below) file(name, rel string) error {
	dir, base := path.Split(rel)
	switch {
	case strings.Contains(base, ".tierfs-tmp-"), dir == ".tierfs/intents/", dir == ".tierfs/tombstones/":
		b.between = append(b.between, rel)
	case dir == ".tierfs/partitions/":
		var entry struct {
			Prefix string `json:"prefix"`
		}
		if err := readJSON(name, &entry); err != nil {
			return err
		}
		b.prefixes[base] = entry.Prefix
	case base == ".tierfs-partition":
		var state struct {
			Incarnation, Never string
		}
		if err := readJSON(name, &state); err != nil {
			return err
		}
		b.minted[dir], b.never[dir] = state.Incarnation, state.Never != ""
	case dir == ".tierfs/":
	default:
		info, err := os.Lstat(name)
		if err != nil {
			return err
		}
		b.names[rel], b.linked[rel] = true, info.Sys().(*syscall.Stat_t).Nlink > 1
		if strings.HasSuffix(base, ".remote") || strings.HasSuffix(base, ".uploaded") {
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			rec, err := marker.Parse(content)
			if err != nil {
				return fmt.Errorf("%s: %w: %w", rel, fs.ErrNotExist, err) // it may be on its way
			}
			b.records[rel] = rec
		}
	}
	return nil
}

func readJSON(name string, into any) error {
	content, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(content, into)
	}
	return err
}

// visible is the segment that a record is of.
func visible(record string) string {
	base := strings.TrimSuffix(strings.TrimSuffix(record, ".remote"), ".uploaded")
	if _, suffix, ok := segment.ParseStem(path.Base(base)); ok && suffix == "" {
		base += ".log"
	}
	return base
}

// stem is the key of an upload without what stands for the file.
func (b *below) stem(rec marker.Record) string {
	return fmt.Sprintf("%s/%020d-%s", b.prefixes[rec.Incarnation.String()], rec.Start, rec.UploadID)
}

// pending says what tierfs has still to do; empty: nothing. Everything sealed has to be uploaded, nothing may be in between, and
// the store has what is named and nothing else.
func (v *volume) pending(b *below) string {
	if len(b.between) > 0 {
		return "in between: " + strings.Join(b.between, " ")
	}
	live := map[string]bool{}
	for name, rec := range b.records {
		live[b.stem(rec)] = true
		local, remote := b.names[visible(name)], strings.HasSuffix(name, ".remote")
		if local == remote {
			return fmt.Sprintf("%s is there, its local file: %v", name, local)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.names)) {
		if v.waits(b, name) {
			return name + " is sealed and has no record"
		}
	}
	objects, err := v.store.Objects("", "")
	if err != nil {
		return err.Error()
	}
	for key := range objects {
		at := strings.TrimSuffix(strings.TrimSuffix(key, ".log"), ".index")
		scratch := strings.HasPrefix(key, "tierfs/probe-") // of a probe that was killed: the next one in an hour removes it
		if !live[at] && path.Base(key) != "owner" && !scratch {
			return "leaked: " + key
		}
	}
	for name, rec := range b.records {
		key := b.stem(rec)
		if size, there := objects[key+".log"]; !there || size != rec.Size {
			return fmt.Sprintf("missing: %s.log of %s", key, name)
		}
		if size := objects[key+".index"]; size != rec.IndexSize {
			return fmt.Sprintf("missing: %s.index of %s", key, name)
		}
	}
	return ""
}

// waits reports whether a file is a segment that has to be uploaded and is not.
func (v *volume) waits(b *below, name string) bool {
	dir, base := path.Split(name)
	start, suffix, ok := segment.ParseStem(base)
	if content, _ := v.ledger.of(name); !ok || suffix != ".log" || b.never[dir] || b.linked[name] || len(content) == 0 || strings.HasSuffix(dir, "-delete/") {
		return false
	}
	if _, held := b.records[dir+segment.Stem(start)+".uploaded"]; held {
		return false
	}
	for other := range b.names { // is there a higher one?
		otherDir, otherBase := path.Split(other)
		next, suffix, ok := segment.ParseStem(otherBase)
		if ok && otherDir == dir && next > start && (suffix == ".log" || suffix == ".remote") {
			return true
		}
	}
	return false
}

// settled waits until tierfs has done all that there is to do and the graces are over. Then every object has its segment's bytes.
func (v *volume) settled(when string) {
	v.t.Helper()
	var why string
	var b *below
	err := v.eventually("peace", func() (ok bool, err error) {
		if b, err = v.readBelow(); err != nil {
			why = err.Error()
			return false, err
		}
		why = v.pending(b)
		return why == "", nil
	})
	if err != nil {
		v.t.Fatalf("%s: %v: %s", when, err, why)
	}
	v.look(when)
	v.check(when)
	for name, rec := range b.records {
		wanted, there := v.ledger.of(visible(name))
		have, err := os.ReadFile(filepath.Join(v.store.Root, b.stem(rec)+".log"))
		if err != nil || !there || !bytes.Equal(have, wanted) {
			v.t.Fatalf("%s: the object of %s has %d bytes, the segment %d: %v", when, name, len(have), len(wanted), err)
		}
	}
}

// forgotten holds the registry against the partitions: a start leaves no entry of one that is gone.
func (v *volume) forgotten() {
	v.t.Helper()
	b, err := v.readBelow()
	v.must(err)
	minted := map[string]bool{}
	for _, inc := range b.minted {
		minted[inc] = true
	}
	for inc := range b.prefixes {
		if !minted[inc] {
			v.t.Errorf("the registry still has incarnation %s, which no partition has", inc)
		}
	}
	for dir, inc := range b.minted {
		if _, there := b.prefixes[inc]; inc != "" && !there {
			v.t.Errorf("the registry does not have incarnation %s of %s", inc, dir)
		}
	}
}
