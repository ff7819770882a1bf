package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/tier"
)

const (
	logSuffix      = ".log"
	indexSuffix    = ".index"
	remoteSuffix   = ".remote"
	uploadedSuffix = ".uploaded"

	partitionFile = ".tierfs-partition"
	twinPrefix    = ".tierfs-twin-"

	maxState = 64 << 10 // of a file below .tierfs
)

// names looks at what the entries of a directory are, apart from the records.
func (c *checker) names(l *look, fd int, path string, entries []os.DirEntry, files map[string]bool) {
	for _, e := range entries {
		name := e.Name()
		at := strings.TrimPrefix(path+"/"+name, "/")
		switch {
		case !e.Type().IsRegular():
			if fileName(name) {
				l.found(at, "is "+kindOf(e.Type())+" where a file should be", "move it away")
			}
		case strings.HasPrefix(name, twinPrefix):
			l.found(at, "was set aside at a mount: its segment was there twice, as a local file and as this marker",
				"look which of them is right, and move this one away or in the other's place while nothing is mounted")
		case name == partitionFile:
			checkJSON(l, fd, name, at, "restore it from a backup; without it the partition is uploaded under a new name")
		}
		if stem, ok := strings.CutSuffix(name, remoteSuffix); ok && files[name] && files[stem+logSuffix] {
			l.found(at, "is there although "+stem+logSuffix+" is: the segment is there twice", "look which of them is right, and move the other away")
		}
	}
}

// fileName says whether tierfs or a broker has a file under that name, and nothing else.
func fileName(name string) bool {
	_, suffix, ok := segment.ParseStem(name)
	return ok && slices.Contains([]string{logSuffix, indexSuffix}, suffix) || name == partitionFile ||
		strings.HasSuffix(name, remoteSuffix) || strings.HasSuffix(name, uploadedSuffix)
}

// kindOf says what something is that is no regular file.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// checkJSON looks whether a file of tierfs' own can be read.
func checkJSON(l *look, fd int, name, at, remedy string) {
	b, err := durable.ReadFile(fd, name, maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		var into map[string]any
		err = json.Unmarshal(b, &into)
	}
	if err != nil {
		l.found(at, fmt.Sprintf("cannot be read: %v", err), remedy)
	}
}

// state looks at tierfs' own directory; the registry is read by loadRegistry.
func (c *checker) state() error {
	const where = ".tierfs"
	l := &look{}
	base, err := unix.Openat(c.root, where, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	defer unix.Close(base)
	for _, f := range []struct{ name, remedy string }{
		{"volume", "restore it from a backup: it says whose objects are whose"},
		{"epoch", "restore it from a backup, or remove it and mount with --take-ownership"},
		{"root", "restore it from a backup, or remove it and set mode and owner of the mount's root anew"},
	} {
		checkJSON(l, base, f.name, where+"/"+f.name, f.remedy)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(base, "volume", &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		l.found(where+"/volume", "is missing", "restore it from a backup: it says whose objects are whose")
	}
	for _, name := range []string{"intents", "tombstones"} {
		if err := c.uploads(l, base, name); err != nil {
			return err
		}
	}
	for _, f := range l.findings {
		c.found(f.Path, f.Problem, f.Remedy)
	}
	return nil
}

// uploads looks at the names of intents or tombstones, and at the records in intents:
// a tombstone may be a file that its broker goes on with.
func (c *checker) uploads(l *look, base int, where string) error {
	fd, err := unix.Openat(base, where, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf(".tierfs/%s: %w", where, err)
	}
	dir := os.NewFile(uintptr(fd), where)
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return fmt.Errorf(".tierfs/%s: %w", where, err)
	}
	for _, e := range entries {
		name := e.Name()
		at := ".tierfs/" + where + "/" + name
		switch {
		case strings.HasPrefix(name, durable.TempPrefix):
		case !e.Type().IsRegular():
			l.found(at, "is "+kindOf(e.Type())+" where a file should be", "move it away")
		case !tier.IsUpload(name):
			l.found(at, "is no file of tierfs'", "move it away")
		case where == "intents":
			if _, err := marker.Read(fd, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				l.found(at, fmt.Sprintf("is no valid record: %v", err), "nothing has to be done: its name says all")
			}
		}
	}
	return nil
}
