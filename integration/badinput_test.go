package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment/segmenttest"
)

func stem(start uint64) string { return fmt.Sprintf("/%020d", start) }

// TestDamages plants every damage in a partition of its own, all in one source, beside partitions to which nothing happened. A
// check finds each, and changes nothing; a mount says what it found, serves what there is, and goes on with the rest.
func TestDamages(t *testing.T) {
	t.Parallel()
	damages := slices.Concat(damagedRecords(), damagedObjects(), damagedFiles())
	topics := []string{"good", "registry"}
	for _, d := range damages {
		topics = append(topics, d.topic)
	}
	p := newPlain(t, fsStore(t), "", topics...)
	for _, d := range damages {
		if d.fresh != nil {
			d.fresh(p, d.topic+"-0")
		}
	}
	strangeNames(p)
	p.mount()
	t.Logf("evict: %s", p.evict())
	p.whole("good-0" + log) // its chunks are cached
	p.stop()
	if found := p.check(); len(found) != freshFindings(damages) {
		t.Errorf("before anything was planted there are %d findings:\n%s", len(found), strings.Join(found, "\n"))
	}
	for _, d := range damages {
		if d.plant != nil {
			d.plant(p, d.topic+"-0")
		}
	}
	own := p.damageState()

	source, bucket := picture(t, p.path("")), p.bucket()
	found, deep := p.check(), p.check("--deep")
	unchanged(t, source, picture(t, p.path("")))
	unchanged(t, bucket, p.bucket())
	p.mount()
	p.goesOn()
	online, onlineDeep := p.check(), p.check("--deep")
	for _, d := range damages {
		t.Run(d.topic, func(t *testing.T) {
			p.serves(t, d)
			d.found(t, found, deep)
			if !d.settled {
				d.found(t, online, onlineDeep)
			}
		})
	}
	t.Run("state", func(t *testing.T) { p.namesState(t, own, found, online) })
	p.metric("tierfs_segments") // the page is whole
	if n := p.metric("tierfs_quarantined_segments"); n < 8 {
		t.Errorf("%v segments are quarantined", n)
	}
	p.stop()
	for _, d := range damages {
		if !d.settled {
			unchanged(t, d.pictured(source), d.pictured(picture(t, p.path(""))))
		}
	}
}

// freshFindings is how much a check finds when only the fresh damages are there.
func freshFindings(damages []damage) int {
	n := 0
	for _, d := range damages {
		if d.fresh != nil && len(d.finds) > 0 && !d.deep {
			n++
			if d.finds[0] == log && d.finds[1] != "is a symbolic link" {
				n++ // its index is a hole
			}
		}
	}
	return n
}

// bucket is a picture of the store without its directory for what is being written.
func (p *plain) bucket() map[string]string {
	p.t.Helper()
	all := picture(p.t, p.store.Root)
	delete(all, "/.tierfs-tmp")
	return all
}

// pictured are the files of the first segment in a picture, but for a marker that is set aside.
func (d damage) pictured(all map[string]string) map[string]string {
	kept := map[string]string{}
	for path, say := range all {
		if at := strings.Index(path, stem(0)[1:]); at >= 0 && strings.HasPrefix(path, "/"+d.topic+"-0/") {
			kept["/"+d.topic+"-0/"+path[at:]] = say
		}
	}
	return kept
}

// serves reads what is there of the partition, and looks for what the daemon says of it.
func (p *plain) serves(t *testing.T, d damage) {
	dir := d.topic + "-0"
	name := dir + log
	switch got, err := p.cold(name); {
	case d.lost:
		if !errors.Is(err, unix.EIO) {
			t.Errorf("the first segment gives %d bytes, %v", len(got), err)
		}
	case d.differs:
		p.sameKind(t, name)
	default:
		want, localErr := os.ReadFile(p.path(name)) // what is local is served as it is
		if localErr != nil {
			want = p.logs[name]
		}
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("the first segment gives %d bytes of %d, %v", len(got), len(want), err)
		}
	}
	for _, start := range p.starts[1:] {
		p.whole(dir + stem(start) + ".log")
	}
	if len(d.says) > 0 && !hasLine(strings.Split(p.daemon.Log().Text(), "\n"), d.says) {
		t.Errorf("tierfs does not say %q", d.says)
	}
}

// sameKind compares what a name is through the mount and below.
func (p *plain) sameKind(t *testing.T, name string) {
	view, err := os.Lstat(p.view(name))
	below, belowErr := os.Lstat(p.path(name))
	if errors.Is(err, os.ErrNotExist) != errors.Is(belowErr, os.ErrNotExist) {
		t.Errorf("through the mount: %v, below: %v", err, belowErr)
	} else if err == nil && belowErr == nil && view.Mode() != below.Mode() {
		t.Errorf("through the mount it is %v, below %v", view.Mode(), below.Mode())
	}
}

func hasLine(lines, words []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
	})
}

// found looks for the damage in what a check and a deep check found.
func (d damage) found(t *testing.T, shallow, deep []string) {
	t.Helper()
	ours := func(lines []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.HasPrefix(l, d.topic+"-0/") })
	}
	shallow, deep = ours(shallow), ours(deep)
	if len(d.finds) == 0 && len(deep) > 0 {
		t.Errorf("a check finds %q", deep)
	}
	if len(d.finds) > 0 && (!hasLine(deep, d.finds) || hasLine(shallow, d.finds) == d.deep) {
		t.Errorf("a check finds %q, a deep one %q; want %q", shallow, deep, d.finds)
	}
}

// goesOn is what a broker and an operator do with the partition that nothing happened to: a new segment is made, the one before
// is uploaded and evicted, and what went before is read, of chunks that are damaged.
func (p *plain) goesOn() {
	p.t.Helper()
	last := p.starts[len(p.starts)-1]
	more, _, _ := segmenttest.Kafka(last+40, 8, 5, 2000)
	next := "good-0" + stem(last+40) + ".log"
	p.must(os.WriteFile(p.view(next), more, 0o644))
	p.logs[next] = more
	p.t.Logf("evict: %s", p.evict("--topic", "good"))
	if _, err := os.Lstat(p.path("good-0" + stem(last) + ".remote")); err != nil {
		p.t.Errorf("the segment before the new one is not evicted: %v", err)
	}
	p.whole(next)
	for _, start := range p.starts {
		p.whole("good-0" + stem(start) + ".log")
	}
	for name, want := range strange {
		if got, err := p.cold(name); err != nil || string(got) != want {
			p.t.Errorf("%q gives %q, %v", name, got, err)
		}
	}
	if entries, err := os.ReadDir(p.view("many")); err != nil || len(entries) != many {
		p.t.Errorf("%d entries of %d, %v", len(entries), many, err)
	}
}

// many is how large a large directory is.
const many = 2000

// strange are files with names that no broker gives.
var strange = map[string]string{
	"new\nline-0/00000000000000000000.log":      "new\nline",
	"no\xffutf8\xc0-0/00000000000000000000.log": "no utf8",
	"good-0/new\nline":                          "file",
	"good-0/\xff\xfe":                           "file",
	"good-0/" + strings.Repeat("x", 255):        "long",
}

func strangeNames(p *plain) {
	p.t.Helper()
	for name, content := range strange {
		p.must(os.MkdirAll(filepath.Dir(p.path(name)), 0o755))
		p.write(name, []byte(content))
	}
	p.must(os.Mkdir(p.path("many"), 0o755))
	for i := range many {
		p.write(fmt.Sprintf("many/%d", i), nil)
	}
}
