package integration

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/proxy"
	"github.com/tierfs/tierfs/integration/rig"
)

// trimmed has the broker delete the records below an offset (`kafka-delete-records`): the segments below it go, with their objects.
func (f *fixture) trimmed() {
	const offset = 1500 // of 2500 in each partition
	f.do("trim", "topic=trimmed", "offset=1500")
	before := len(f.evicted("trimmed"))
	f.eventually("the oldest segments go", 30*time.Second, func() (bool, error) {
		return !slices.ContainsFunc(f.evicted("trimmed"), func(path string) bool {
			return strings.Contains(path, "/00000000000000000000.") || strings.Contains(path, ".deleted")
		}), nil
	})
	f.objectsFollow("trimmed")
	if n := len(f.evicted("trimmed")); n == 0 || n >= before {
		f.t.Errorf("of %d evicted segments %d are left", before, n)
	}
	f.must(f.Forget())
	if r := f.do("consume", "topic=trimmed", "from=start"); r.Int("records") != 2*(2500-offset) {
		f.t.Errorf("consumed %v", r)
	}
}

// aged lets all records of a topic be older than they may be, the active segment's too.
func (f *fixture) aged() {
	f.do("alter", "topic=aged", "config.retention.ms=60000")
	f.eventually("all evicted segments go", 30*time.Second, func() (bool, error) { return len(f.evicted("aged")) == 0, nil })
	f.objectsFollow("aged")
	f.do("alter", "topic=aged", "config.retention.ms=-1")
	f.do("produce", "topic=aged", "records=400")
	if r := f.do("consume", "topic=aged", "from=start"); r.Int("records") < 400 {
		f.t.Errorf("consumed %v", r)
	}
}

// objectsFollow waits until the store has as many segments of a topic as are evicted.
func (f *fixture) objectsFollow(topic string) {
	f.t.Helper()
	f.eventually("the objects of "+topic+" go", 30*time.Second, func() (bool, error) {
		objects, err := f.store.Objects(topic+"-", ".log")
		return len(objects) == len(f.evicted(topic)), err
	})
}

// TestIngestBeatsUpload produces faster than the store takes it, and lets the broker keep so little that most segments are deleted
// before they were put.
func TestIngestBeatsUpload(t *testing.T) {
	t.Parallel()
	store, p := faultyStore(t)
	f := newFixture(t, store, rig.Options{Binary: checked, Settings: "[retention]\ndelete_grace = \"1 s\"\n"})
	f.up()
	p.Bandwidth(64 << 10) // 16 s for a segment
	f.must(p.Set(f.ctx, proxy.Slow))
	f.do("create", "topic=burst", "config.segment.bytes=1048576", "config.retention.bytes=2097152")
	r := f.do("produce", "topic=burst", "records=16000")
	f.eventually("the broker deletes the oldest", time.Minute, func() (bool, error) { return f.sealedOf("burst")["burst-0/"] <= 3, nil })
	f.must(p.Set(f.ctx, proxy.Pass))
	f.eventually("the newest are in the store", time.Minute, func() (bool, error) {
		return reaches(f.held("burst"), f.sealedOf("burst")), nil
	})
	f.exact()
	inOrder(t, p, "burst")
	put := map[string]bool{}
	for _, r := range p.Requests() {
		if m := uploadKey.FindStringSubmatch(r.Path); m != nil && r.Method == "PUT" && m[4] == ".log" {
			put[m[3]] = true
		}
	}
	if n := int(r.Int("bytes") >> 20); len(put) > n/2 {
		t.Errorf("%d of %d segments were put: that is not more than the store takes", len(put), n)
	}
	t.Logf("of %d MiB %d segments were put", r.Int("bytes")>>20, len(put))
	for _, bad := range []string{"level=ERROR", "upload failed", "left alone"} {
		if strings.Contains(f.Daemon.Log().Text(), bad) {
			t.Errorf("tierfs said %q:\n%s", bad, f.Daemon.Log().Tail(20))
		}
	}
	f.evict()
	f.must(f.Forget())
	if r := f.do("consume", "topic=burst", "from=start"); r.Int("records") == 0 || r.Int("records") == 16000 {
		t.Errorf("consumed %v", r)
	}
	f.online()
}

// TestHeldOpen has somebody keep two segments open, an evicted and a local one, while the broker deletes their topics. The bytes stay
// readable until the end, and go with the last handle: the object from the store, the blocks from the disk, without any restart.
func TestHeldOpen(t *testing.T) {
	t.Parallel()
	f := newFixture(t, fsStore(t), rig.Options{Binary: checked, Settings: "[retention]\ndelete_grace = \"1 s\"\n"})
	f.up()
	const name = "00000000000000000000.log"
	want := map[string][]byte{}
	for _, topic := range []string{"evicted", "local"} {
		f.do("create", "topic="+topic, "config.segment.bytes=1048576")
		f.do("produce", "topic="+topic, "records=3000")
	}
	f.must(f.Checkpointed(f.ctx))
	for _, topic := range []string{"evicted", "local"} {
		data, err := os.ReadFile(filepath.Join(f.View(), topic+"-0", name))
		f.must(err)
		want[topic] = data
	}
	f.tierfs("evict", "--all", "--topic", "evicted", f.View())
	if len(f.evicted("evicted")) < 2 || len(f.evicted("local")) != 0 {
		t.Fatalf("evicted are %v", f.remote())
	}
	f.must(f.Forget())
	open := map[string]*os.File{}
	for topic := range want {
		file, err := os.Open(filepath.Join(f.View(), topic+"-0", name))
		f.must(err)
		defer file.Close() // once more where the test has done so
		open[topic] = file
		f.do("delete", "topic="+topic)
	}
	f.eventually("the topics are deleted", 40*time.Second, func() (bool, error) { return len(f.segmentsLike("evicted"))+len(f.segmentsLike("local")) == 0, nil })
	f.eventually("the other objects go", 40*time.Second, func() (bool, error) {
		objects, err := f.store.Objects("-0/", ".log")
		return len(objects) == 1, err
	})
	f.eventually("tierfs holds none of the deleted segments but the one that is open", 20*time.Second, func() (bool, error) {
		return len(f.unlinked()) == 1, nil
	})
	for topic, file := range open {
		got, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
		if err != nil || !bytes.Equal(got, want[topic]) {
			t.Errorf("%s: %d bytes of %d, %v", topic, len(got), len(want[topic]), err)
		}
		f.must(file.Close())
	}
	f.eventually("the last object goes", 40*time.Second, func() (bool, error) {
		objects, err := f.store.Objects("-0/", "")
		return len(objects) == 0, err
	})
	f.eventually("the blocks are free", 40*time.Second, func() (bool, error) { return len(f.unlinked()) == 0, nil })
	f.online()
}

// segmentsLike are the segments of a topic, by whatever name their directory has by now.
func (f *fixture) segmentsLike(topic string) (found []string) {
	f.t.Helper()
	f.walk(f.View(), func(path string, e fs.DirEntry) {
		if strings.HasPrefix(path, topic+"-") && !e.IsDir() {
			found = append(found, path)
		}
	})
	return found
}

// unlinked are the segments that the daemon has open and that have no name any more, but blocks.
func (f *fixture) unlinked() []string {
	f.t.Helper()
	pid, err := f.Daemon.PID(daemon.Serves)
	f.must(err)
	open, err := child.OpenFiles(pid, f.Source)
	f.must(err)
	open = slices.DeleteFunc(open, func(s string) bool {
		return !strings.HasSuffix(s, "(deleted)") || !strings.Contains(s, ".log") || strings.Contains(s, ".remote") || strings.Contains(s, ".tierfs")
	})
	for i, s := range open { // a file may be open more than once
		_, open[i], _ = strings.Cut(s, " ")
	}
	slices.Sort(open)
	return slices.Compact(open)
}
