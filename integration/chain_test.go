package integration

import (
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/proxy"
	"github.com/tierfs/tierfs/integration/rig"
)

// faultyStore is an S3 server behind a proxy that fails on demand.
func faultyStore(t *testing.T) (rig.Store, *proxy.Proxy) {
	t.Helper()
	store, endpoint := s3Store(t)
	p, err := proxy.Start(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	store.Settings = strings.ReplaceAll(store.Settings, endpoint, p.Endpoint)
	return store, p
}

// held says how far each partition of a topic is in the store: the number of its segments, from the first one on, that have a record.
// A segment with a record above one without is a hole, and fails the test. Nothing may be evicted or deleted meanwhile.
func (f *fixture) held(topic string) map[string]int {
	f.t.Helper()
	records, all := map[string]bool{}, map[string][]string{}
	f.walk(f.Below(), func(path string, e fs.DirEntry) {
		dir, name := filepath.Split(path)
		stem, kind, _ := strings.Cut(name, ".")
		if !strings.HasPrefix(path, topic+"-") || len(stem) != 20 {
			return
		}
		switch kind {
		case "log":
			all[dir] = append(all[dir], stem)
		case "remote", "uploaded":
			all[dir] = append(all[dir], stem)
			records[dir+stem] = true
		}
	})
	held := map[string]int{}
	for dir, stems := range all {
		slices.Sort(stems)
		hole := false
		for _, stem := range slices.Compact(stems) {
			switch has := records[dir+stem]; {
			case has && hole:
				f.t.Errorf("%s%s has a record, and one below it has none", dir, stem)
			case has:
				held[dir]++
			default:
				hole = true
			}
		}
	}
	return held
}

// sealedOf counts the sealed segments of each partition of a topic.
func (f *fixture) sealedOf(topic string) map[string]int {
	f.t.Helper()
	n := map[string]int{}
	for path := range sealed(f.segments()) {
		if dir, _ := filepath.Split(path); strings.HasPrefix(dir, topic+"-") {
			n[dir]++
		}
	}
	return n
}

// reaches reports whether every partition has at least so many.
func reaches(have, want map[string]int) bool {
	for dir, n := range want {
		if have[dir] < n {
			return false
		}
	}
	return len(want) > 0
}

// uploadKey matches the key of an object without its suffix: what one upload put.
var uploadKey = regexp.MustCompile(`^(.*/([^/]+)/[0-9a-f]+/(\d{20})-[0-9a-f]+)(\.[a-z]+)$`)

// exact waits until the store holds what the records below name, and nothing else; no intent and no tombstone is left. Then nothing is
// missing for `tierfs check` either.
func (f *fixture) exact() {
	f.t.Helper()
	f.eventually("the store holds exactly what is live", time.Minute, func() (bool, error) { return exactly(f.store, f.Below()) })
	f.t.Logf("check: %s", strings.TrimSpace(f.tierfs("check", f.Source)))
}

// exactly reports whether the store holds one upload for each record below a source, and nothing waits to be deleted or decided.
func exactly(store rig.Store, below string) (bool, error) {
	records, waiting := 0, 0
	err := filepath.WalkDir(below, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil || e.IsDir() {
			return err
		}
		within, err := filepath.Rel(below, path)
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(within, ".tierfs/intents/"), strings.HasPrefix(within, ".tierfs/tombstones/"):
			waiting++
		case strings.HasSuffix(path, ".uploaded"), strings.HasSuffix(path, ".remote"):
			records++
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	objects, err := store.Objects("/", "")
	uploads, logs := map[string]bool{}, 0
	for key := range objects {
		if m := uploadKey.FindStringSubmatch(key); m != nil {
			uploads[m[1]] = true
			if m[4] == ".log" {
				logs++
			}
		}
	}
	return waiting == 0 && len(uploads) == records && logs == records, err
}

// inOrder insists that the segments of each partition of a topic reached the store from the oldest to the newest.
func inOrder(t *testing.T, p *proxy.Proxy, topic string) {
	t.Helper()
	last := map[string]string{}
	for _, r := range p.Requests() {
		m := uploadKey.FindStringSubmatch(r.Path)
		stored := r.Method == "PUT" && (r.Status == 200 || r.Status == 412) // 412: it was there already, its first answer was lost
		if m == nil || !stored || m[4] != ".log" || !strings.HasPrefix(m[2], topic+"-") {
			continue
		}
		if m[3] < last[m[2]] {
			t.Errorf("%s: segment %s was put after %s", m[2], m[3], last[m[2]])
		}
		last[m[2]] = m[3]
	}
	if len(last) == 0 {
		t.Errorf("no segment of %s was put", topic)
	}
}

// unwell matches what a broker says when something about its logs went wrong. That an evicted record could not be read in time is not
// among it, nor is a controller that finds the machine slow.
var unwell = regexp.MustCompile(`KafkaStorageException|LogDirFailureChannel|[Oo]ffline|Error while|Uncaught|FATAL|Error processing append|UncleanShutdown`)

// online insists that the broker has no log directory offline, and has not complained about anything but reads of the store.
func (f *fixture) online() {
	f.t.Helper()
	if dirs := f.do("logdirs"); dirs.Int("offline") != 0 {
		f.t.Errorf("a log directory is offline: %v", dirs)
	}
	for line := range strings.Lines(f.Broker.Log().Text()) {
		if entry := logEntry.FindStringSubmatch(line); entry != nil && entry[1] != "INFO" && unwell.MatchString(line) {
			f.t.Errorf("the broker says %s", strings.TrimSpace(line))
		}
	}
}
