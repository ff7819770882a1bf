package upload

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/tier"
)

// check holds everything against the model, after whatever happened.
func (m *life) check() {
	if err := m.agrees(); err != nil {
		m.fail("%v", err)
	}
}

// agrees says what is not as it must be.
func (m *life) agrees() error {
	if err := m.list("", slices.Collect(maps.Keys(m.tree))); err != nil {
		return err
	}
	remote := map[*lifeFile]bool{}
	for _, path := range slices.Sorted(maps.Keys(m.tree)) {
		if err := m.agreesDir(path, remote); err != nil {
			return err
		}
	}
	m.remote = remote
	for _, h := range m.handles {
		if h.inode.names == 0 && h.file.State() == tier.Remote {
			m.seen["unlinked while open and remote"]++
		}
		if err := m.agreesFile("an open file", h.file, h.fd, h.inode); err != nil {
			return err
		}
	}
	return nil
}

// list holds a directory's listing against its files and the directories in it.
func (m *life) list(path string, dirs []string) error {
	want := dirs
	for name := range m.tree[path].files {
		want = append(want, name)
	}
	var got []string
	err := m.in(path, func(d tier.Dir) error {
		list, err := m.v.List(d)
		for _, e := range list {
			got = append(got, e.Name)
		}
		return err
	})
	want = slices.DeleteFunc(want, func(s string) bool { return s == "" })
	slices.Sort(want)
	slices.Sort(got)
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("%q lists %q, not %q", path, got, want)
	}
	return err
}

func (m *life) agreesDir(path string, remote map[*lifeFile]bool) error {
	if path != "" {
		if err := m.list(path, nil); err != nil {
			return err
		}
	}
	dir := m.tree[path]
	held := true // every segment so far has an object
	for _, name := range sortedNames(dir) {
		f := dir.files[name]
		var state tier.State
		err := m.in(path, func(d tier.Dir) (err error) {
			state, err = m.agreesName(d, name, f)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s/%s: %w", path, name, err)
		}
		if state >= tier.Leaving {
			remote[f] = true
			if !m.remote[f] {
				m.seen["evicted"]++
				err = m.mayBeRemote(path, name, held)
			}
		}
		if err != nil {
			return fmt.Errorf("%s/%s was evicted: %w", path, name, err)
		}
		if _, suffix, ok := segment.ParseStem(name); ok && suffix == ".log" {
			held = held && state != tier.Local
		}
	}
	return nil
}

func (m *life) agreesName(d tier.Dir, name string, f *lifeFile) (tier.State, error) {
	e, err := m.v.Lookup(d, name)
	if err != nil {
		return 0, err
	}
	defer e.File.Release()
	if e.Stat.Size != int64(len(f.data)) {
		return 0, fmt.Errorf("%d bytes, not %d", e.Stat.Size, len(f.data))
	}
	if int(e.Stat.Nlink) != f.names {
		return 0, fmt.Errorf("%d names, not %d", e.Stat.Nlink, f.names)
	}
	if f.mtime == (unix.Timespec{}) {
		f.mtime = e.Stat.Mtim
	}
	if e.Stat.Mtim != f.mtime {
		return 0, errors.New("its time of change is another")
	}
	fd, err := e.Handle.Open(m.root, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return e.File.State(), m.agreesFile("", e.File, fd, f)
}

// agreesFile reads a file and looks at the object that its record names.
func (m *life) agreesFile(what string, file *tier.File, fd int, f *lifeFile) error {
	if file.State() == tier.Quarantined {
		return fmt.Errorf("%s is quarantined", what)
	}
	var st unix.Stat_t
	if err := file.Stat(fd, &st); err != nil || st.Size != int64(len(f.data)) {
		return fmt.Errorf("%s has %d bytes, not %d: %w", what, st.Size, len(f.data), err)
	}
	b, err := m.read(file, fd, len(f.data))
	switch {
	case err != nil && errors.Is(err, tier.ErrUnavailable) && m.weather != fair:
	case err != nil:
		m.t.Logf("%v", err)
		return fmt.Errorf("%s cannot be read", what)
	case !bytes.Equal(b, f.data):
		return fmt.Errorf("%s reads as %d other bytes", what, len(b))
	}
	rec, ok := file.Record()
	if !ok {
		return nil
	}
	switch b, ok := m.store.Bytes(m.objectOf(rec)); {
	case !ok:
		return fmt.Errorf("%s has no object", what)
	case !bytes.Equal(b, f.data):
		return fmt.Errorf("%s has an object of other bytes", what)
	}
	return nil
}

// uploadName names an upload as the end of its keys does.
func uploadName(rec marker.Record) string {
	return fmt.Sprintf("/%s/%020d-%s", rec.Incarnation, rec.Start, rec.UploadID)
}

func (m *life) objectOf(rec marker.Record) string {
	for _, k := range m.store.Keys() {
		if strings.HasSuffix(k, uploadName(rec)+".log") {
			return k
		}
	}
	return "none"
}

// mayBeRemote says why a segment must not have been evicted.
func (m *life) mayBeRemote(path, name string, held bool) error {
	d := m.tree[path]
	start, suffix, ok := segment.ParseStem(name)
	starts := d.starts()
	i := slices.Index(starts, start)
	switch {
	case !ok || suffix != ".log" || path == "":
		return errors.New("it is no segment")
	case !living(path):
		return errors.New("its partition is not tiered")
	case d.never:
		return errors.New("its partition is compacted")
	case i == len(starts)-1:
		return errors.New("it is the active segment")
	case !held:
		return errors.New("one before it is not uploaded")
	case d.files[name].names > 1:
		return errors.New("it has several names")
	case starts[i+1] > m.bound(path):
		return errors.New("the broker's checkpoints are below its end")
	}
	return nil
}

// bound is the offset below which both checkpoints on disk let a partition's segments
// go.
func (m *life) bound(path string) uint64 {
	topic, number, _ := strings.Cut(path, "-")
	bound := uint64(math.MaxUint64)
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		offsets, err := layout.ParseCheckpoint(m.tree[""].files[name].data)
		m.must("read a checkpoint", err)
		bound = min(bound, offsets[layout.Partition{Topic: topic, Number: number}])
	}
	return bound
}

// quiesce lets everything come to an end: the store has exactly what is live then.
func (m *life) quiesce() {
	m.fuse = -1
	m.clear()
	m.claim()
	for _, u := range m.under {
		if u.up != nil {
			m.must("abort", u.up.Abort())
		}
		u.close()
	}
	m.under = nil
	for range 3 {
		time.Sleep(time.Minute) // pauses after failures
		m.uploadAll()
	}
	for range 3 {
		m.retire(2 * lifeGrace)
	}
	m.check()
	if err := errors.Join(m.exact(), m.complete()); err != nil {
		m.fail("%v", err)
	}
	m.stop()
	m.start()
	m.check()
	if err := m.registered(); err != nil {
		m.fail("%v", err)
	}
}

// exact says what the store has that nothing names, and what waits for nothing.
func (m *life) exact() error {
	live := map[string]bool{}
	note := func(f *tier.File) {
		if rec, ok := f.Record(); ok {
			live[uploadName(rec)] = true
		}
	}
	for path, d := range m.tree {
		err := m.in(path, func(dir tier.Dir) error {
			for name := range d.files {
				e, err := m.v.Lookup(dir, name)
				if err != nil {
					return err
				}
				note(e.File)
				e.File.Release()
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, h := range m.handles {
		note(h.file)
	}
	for _, key := range m.store.Keys() {
		name, _, _ := strings.Cut(key, ".")
		parts := strings.Split(name, "/")
		if len(parts) > 2 && !live["/"+strings.Join(parts[len(parts)-2:], "/")] && !strings.HasSuffix(key, "/owner") {
			m.t.Logf("%s", key)
			return errors.New("an object is left that nothing names")
		}
	}
	for _, t := range m.v.Tombstones() {
		if !live[uploadName(t.Record)] {
			return errors.New("a tombstone is left that waits for nothing")
		}
	}
	return nil
}

// registered says after a start whether intents are left, or incarnations of nothing.
func (m *life) registered() error {
	intents, err := os.ReadDir(m.path + "/src/.tierfs/intents")
	if err != nil {
		return err
	}
	if len(intents) > 0 {
		return fmt.Errorf("%d intents are left", len(intents))
	}
	incarnations, err := os.ReadDir(m.path + "/src/.tierfs/partitions")
	if err != nil {
		return err
	}
	var used strings.Builder
	for _, t := range m.v.Tombstones() {
		used.WriteString(t.Record.Incarnation.String())
	}
	for _, p := range m.v.Partitions() {
		for _, s := range p.Segments() {
			used.WriteString(s.Record.Incarnation.String())
		}
	}
	for path := range m.tree {
		b, _ := os.ReadFile(m.path + "/src/" + path + "/.tierfs-partition")
		used.Write(b)
	}
	for _, inc := range incarnations {
		if !strings.Contains(used.String(), inc.Name()) {
			return errors.New("an incarnation is left of nothing")
		}
	}
	return nil
}

// complete says which sealed segment was not uploaded though it could have been.
func (m *life) complete() error {
	for _, p := range m.v.Partitions() {
		d := m.tree[p.Path()]
		if d == nil {
			return fmt.Errorf("the catalog has a partition %s", p.Path())
		}
		if !living(p.Path()) || d.never {
			continue
		}
		for _, s := range p.Segments() {
			f := d.segment(s.Start)
			if f == nil {
				return fmt.Errorf("the catalog has a segment %s/%d", p.Path(), s.Start)
			}
			if f.garbage || len(f.data) == 0 {
				break // those behind wait, too
			}
			if !s.Active && s.State == tier.Local {
				return fmt.Errorf("%s/%d was never uploaded", p.Path(), s.Start)
			}
		}
	}
	return nil
}
