package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/tier"
)

// checker looks at a source and its store, and changes neither. It may run while
// the source is served: what looks wrong is looked at a second time.
type checker struct {
	root     int // descriptor of the source, below any mount
	store    objstore.Store
	rules    layout.Rules // nil while the layout is not known
	deep     bool         // read every byte
	report   func(admin.Finding)
	progress func(admin.Progress)

	registry map[string]string          // key prefix by incarnation
	expected map[string]map[string]want // by key prefix, then by key
	result   admin.CheckResult
}

// want is an object that a record names.
type want struct {
	path   string // of the record, below the source
	record marker.Record
	suffix string // of the object: logSuffix, or that of the index
	size   int64
}

// run does the whole check.
func (c *checker) run(ctx context.Context) (admin.CheckResult, error) {
	if err := c.loadRegistry(); err != nil {
		return c.result, err
	}
	if err := c.state(); err != nil {
		return c.result, err
	}
	c.expected = make(map[string]map[string]want)
	if err := c.directory(ctx, c.root, ""); err != nil {
		return c.result, err
	}
	return c.result, c.objects(ctx)
}

func (c *checker) found(path, problem, remedy string) {
	c.result.Findings++
	c.report(admin.Finding{Path: path, Problem: problem, Remedy: remedy})
}

// loadRegistry reads what the incarnations stand for; see package tier for its form.
func (c *checker) loadRegistry() error {
	c.registry = make(map[string]string)
	const where = ".tierfs/partitions"
	fd, err := unix.Openat(c.root, where, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return errors.New("the directory has no .tierfs/partitions: it has never been mounted by tierfs, or lost its state")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	dir := os.NewFile(uintptr(fd), where)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, durable.TempPrefix) {
			continue // an entry that is being written, or that a crash left
		}
		var entry struct {
			Prefix string `json:"prefix"`
		}
		b, err := durable.ReadFile(fd, name, 64<<10)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(b, &entry)
		}
		if err == nil && !strings.HasSuffix("/"+entry.Prefix, "/"+name) {
			err = fmt.Errorf("it has the prefix %q", entry.Prefix)
		}
		if err != nil {
			c.found(where+"/"+name, fmt.Sprintf("cannot be read: %v", err), "restore it from a backup")
			continue
		}
		c.registry[name] = entry.Prefix
	}
	return nil
}

// directory checks one directory and those below it.
func (c *checker) directory(ctx context.Context, fd int, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	look, err := c.look(fd, path)
	if err != nil {
		return err
	}
	if len(look.findings) > 0 { // perhaps a step was under way
		if look, err = c.look(fd, path); err != nil {
			return err
		}
	}
	for _, f := range look.findings {
		c.found(f.Path, f.Problem, f.Remedy)
	}
	for key, w := range look.objects {
		prefix := key[:strings.LastIndexByte(key, '/')+1]
		if c.expected[prefix] == nil {
			c.expected[prefix] = make(map[string]want)
			c.result.Partitions++
		}
		c.expected[prefix][key] = w
	}
	c.result.Records += look.records
	if c.deep {
		if err := c.deepPartition(ctx, fd, path, look.files); err != nil {
			return err
		}
	}
	for _, name := range look.subdirectories {
		if err := c.subdirectory(ctx, fd, path, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) subdirectory(ctx context.Context, parent int, path, name string) error {
	below := strings.TrimPrefix(path+"/"+name, "/")
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // gone meanwhile
	}
	if err != nil {
		return fmt.Errorf("%s: %w", below, err)
	}
	defer unix.Close(fd)
	return c.directory(ctx, fd, below)
}

// look is what one look at a directory saw.
type look struct {
	subdirectories []string
	files          map[string]bool // the regular ones
	findings       []admin.Finding
	objects        map[string]want
	records        int64
}

func (l *look) found(path, problem, remedy string) {
	l.findings = append(l.findings, admin.Finding{Path: path, Problem: problem, Remedy: remedy})
}

// look reads the names of a directory and the records among them.
func (c *checker) look(fd int, path string) (*look, error) {
	listing, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	dir := os.NewFile(uintptr(listing), path)
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	l := &look{objects: make(map[string]want)}
	files := make(map[string]bool)
	for _, e := range entries {
		switch {
		case e.Type().IsRegular():
			files[e.Name()] = true
		case e.IsDir() && !tier.Hidden(e.Name()):
			l.subdirectories = append(l.subdirectories, e.Name())
		}
	}
	l.files = files
	c.names(l, fd, path, entries, files)
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		at := strings.TrimPrefix(path+"/"+name, "/")
		switch {
		case strings.HasSuffix(name, remoteSuffix), strings.HasSuffix(name, uploadedSuffix):
			c.record(l, fd, name, at, files)
		}
	}
	for _, start := range tier.Holes(c.rules, path, tier.Counting(entries)) {
		l.found(strings.TrimPrefix(path+"/"+segment.Stem(start)+indexSuffix, "/"), "is an index without its log: the segment is gone",
			"restore the .log or .remote from a backup; until then, or until the index is deleted too, nothing of the partition is deleted from the store")
	}
	return l, nil
}

// record checks one marker and notes the objects that it names.
func (c *checker) record(l *look, fd int, name, at string, files map[string]bool) {
	l.records++
	base, remote := strings.CutSuffix(name, remoteSuffix)
	if !remote {
		base = strings.TrimSuffix(name, uploadedSuffix)
	}
	rec, err := marker.Read(fd, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.found(at, "went away while it was looked at", "check again")
		return
	case err != nil && remote && files[base+uploadedSuffix]:
		return // an eviction under way, or one that the next mount finishes
	case err != nil && remote:
		l.found(at, fmt.Sprintf("is no valid marker: %v", err), "reads of it fail; restore it from a backup")
		return
	case err != nil:
		l.found(at, fmt.Sprintf("is no valid marker: %v", err), "delete it: the segment is uploaded again")
		return
	}
	if start, suffix, ok := segment.ParseStem(base); ok && suffix == "" && start != rec.Start {
		l.found(at, fmt.Sprintf("is the marker of segment %d", rec.Start), "restore it from a backup")
		return
	}
	prefix, ok := c.registry[rec.Incarnation.String()]
	if !ok {
		l.found(at, fmt.Sprintf("names incarnation %s, which .tierfs/partitions does not have", rec.Incarnation), "restore that entry from a backup")
		return
	}
	if !remote && files[base+logSuffix] {
		checkLocal(l, fd, base+logSuffix, at, rec)
	}
	key := fmt.Sprintf("%s/%s-%s", prefix, segment.Stem(rec.Start), rec.UploadID)
	l.objects[key+logSuffix] = want{at, rec, logSuffix, rec.Size}
	if rec.IndexSize > 0 {
		l.objects[key+indexSuffix] = want{at, rec, indexSuffix, rec.IndexSize}
	}
}

// checkLocal compares a local segment with the record beside it.
func checkLocal(l *look, fd int, name, at string, rec marker.Record) {
	var st unix.Stat_t
	err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Size != rec.Size {
		l.found(at, fmt.Sprintf("says that %s has %d bytes; it has %d", name, rec.Size, st.Size),
			"the file was changed without tierfs; delete the marker: the segment is uploaded again")
	}
}
