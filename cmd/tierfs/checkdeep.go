package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/tier"
)

const (
	// maxIndexFile is more than any index has, in bytes.
	maxIndexFile = 64 << 20
	// objectTime bounds the reading of one object, with all its connections: more than any takes that gets on. The store's
	// patience ends the reading of one that does not.
	objectTime = 6 * time.Hour
)

// deepPartition reads the sealed segments of a directory that are local: each has to
// be what a broker writes, its record has to be of these bytes, and the index beside
// it has to fit. A segment that changes meanwhile is left out.
func (c *checker) deepPartition(ctx context.Context, fd int, path string, files map[string]bool) error {
	if c.rules == nil {
		return nil
	}
	if _, why := c.rules.Classify(path); why != "" {
		return nil
	}
	starts := map[uint64]bool{}
	for name := range files {
		if start, suffix, ok := segment.ParseStem(name); ok && (suffix == logSuffix || suffix == remoteSuffix) {
			starts[start] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(starts))
	for _, start := range sorted[:max(0, len(sorted)-1)] { // the last one is being written
		if err := ctx.Err(); err != nil {
			return err
		}
		if stem := segment.Stem(start); files[stem+logSuffix] {
			if err := c.deepLocal(ctx, fd, path, start); err != nil {
				return fmt.Errorf("%s/%s: %w", path, stem+logSuffix, err)
			}
		}
	}
	return nil
}

func (c *checker) deepLocal(ctx context.Context, dir int, path string, start uint64) error {
	stem := segment.Stem(start)
	at := strings.TrimPrefix(path+"/"+stem, "/")
	fd, err := unix.Openat(dir, stem+logSuffix, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // gone meanwhile
	}
	if err != nil {
		return err
	}
	log := os.NewFile(uintptr(fd), stem+logSuffix)
	defer log.Close()
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return err
	}
	defer tier.FindCold(fd, before.Size).Drop()                       // a check pushes nothing out of memory that consumers read
	index, _ := durable.ReadFile(dir, stem+indexSuffix, maxIndexFile) // none is nothing wrong
	w := c.walk(ctx, log, before.Size, start, index)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	rec, recErr := marker.Read(dir, stem+uploadedSuffix)
	// The change time, too: what was evicted and brought back has its size and its time again.
	if err := unix.Fstat(fd, &after); err != nil || after.Size != before.Size || after.Mtim != before.Mtim || after.Ctim != before.Ctim {
		return err
	}
	switch {
	case recErr == nil && rec.Size == before.Size && rec.LogHash != w.hash:
		c.found(at+logSuffix, "has other bytes than its record", "the file was changed without tierfs, or its disk is failing: the object has the bytes of the record")
	case errors.Is(w.err, segment.ErrEmpty) && rewritten(dir):
	case w.err != nil:
		c.found(at+logSuffix, fmt.Sprintf("does not verify: %v", w.err), "its broker has to repair or delete it; it is not uploaded")
	case w.index[0] != nil:
		c.found(at+indexSuffix, fmt.Sprintf("does not fit its segment: %v", w.index[0]), "stop the broker and delete it: the broker makes it anew")
	}
	return nil
}

// rewritten reports whether the partition's own file says that its segments are compacted: one of which nothing is left is
// as it should be then.
func rewritten(dir int) bool {
	var state struct {
		Never layout.Reason `json:"never"`
	}
	b, err := durable.ReadFile(dir, partitionFile, maxState)
	return err == nil && json.Unmarshal(b, &state) == nil && state.Never == layout.Compaction
}

// walked is what one pass over a segment showed.
type walked struct {
	hash  [16]byte
	read  error   // why its bytes could not be had
	err   error   // why it is no segment, read included
	index []error // why each of the indexes is not its own; only if err is nil
}

// walk reads a segment once, to its end, and holds indexes against it; an empty one fits.
func (c *checker) walk(ctx context.Context, r io.Reader, size int64, start uint64, indexes ...[]byte) walked {
	w := walked{index: make([]error, len(indexes))}
	sum := xxh3.New()
	source := &endingReader{ctx: ctx, r: r}
	r = io.TeeReader(source, sum)
	format := c.format()
	starts := make([][]int64, len(indexes)) // positions still to be met
	for i, raw := range indexes {
		if len(raw) > 0 && format != segment.Generic {
			starts[i], w.index[i] = segment.Boundaries(raw, size, format)
		}
	}
	_, w.err = segment.Walk(r, size, start, format, func(b segment.Batch) error {
		for i, s := range starts {
			if len(s) > 0 && s[0] == b.Position {
				starts[i] = s[1:]
			}
		}
		return nil
	})
	for i, s := range starts {
		if len(s) > 0 {
			w.index[i] = fmt.Errorf("no batch starts at %d", s[0])
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil { // behind what does not verify
		w.err = errors.Join(w.err, err)
	}
	w.hash, w.read = sum.Sum128().Bytes(), source.failed
	return w
}

func (c *checker) format() segment.Format {
	if c.rules == nil {
		return segment.Generic
	}
	return c.rules.Format()
}

// deepObject reads the objects of one record and holds them against it. For a
// remote segment the index beside it is held against them, too.
func (c *checker) deepObject(ctx context.Context, key string, w want) error {
	if w.suffix == indexSuffix {
		return nil // read together with its segment
	}
	base := strings.TrimSuffix(key, logSuffix)
	beside, uploaded := c.besideRemote(w), []byte(nil) // a broker that made its index anew may have put in other batches
	if w.record.IndexSize > 0 {
		var err error
		uploaded, err = c.content(ctx, base+indexSuffix, w.record.IndexSize)
		if objstore.Retryable(err) || ctx.Err() != nil {
			return err
		} // what is wrong with the object itself is found without its content
	}
	reading, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	body, err := c.store.GetRange(reading, key, 0, w.size)
	if errors.Is(err, objstore.ErrNotFound) { // since it was listed
		c.missing(key, w)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	defer body.Close()
	seen := c.walk(ctx, body, w.size, w.record.Start, uploaded, beside)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case seen.read != nil: // says nothing of the bytes
		return fmt.Errorf("read %s: %w", key, seen.read)
	case seen.hash != w.record.LogHash:
		c.found(w.path, "its object "+key+" has other bytes than its record", "restore the object; a segment that is still local can be uploaded again")
	case seen.index[0] != nil:
		c.found(w.path, fmt.Sprintf("its object %s does not fit the segment: %v", base+indexSuffix, seen.index[0]), "restore the object")
	case seen.index[1] != nil && c.still(w):
		c.found(strings.TrimSuffix(w.path, remoteSuffix)+indexSuffix, fmt.Sprintf("does not fit its segment: %v", seen.index[1]),
			"stop the broker, and restore it from its object or delete it")
	}
	return nil
}

// besideRemote is the index beside a remote segment, if there is one.
func (c *checker) besideRemote(w want) []byte {
	stem, remote := strings.CutSuffix(w.path, remoteSuffix)
	if !remote {
		return nil
	}
	dir, err := c.dirOf(w.path)
	if err != nil {
		return nil // gone meanwhile
	}
	defer unix.Close(dir)
	b, _ := durable.ReadFile(dir, stem[strings.LastIndexByte(stem, '/')+1:]+indexSuffix, maxIndexFile) // without one, reads take the object's
	return b
}

func (c *checker) content(ctx context.Context, key string, size int64) ([]byte, error) {
	body, err := c.store.GetRange(ctx, key, 0, size)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return b, nil
}

// endingReader ends with the context, and keeps what it failed with.
type endingReader struct {
	ctx    context.Context
	r      io.Reader
	failed error
}

func (r *endingReader) Read(p []byte) (n int, err error) {
	if err = r.ctx.Err(); err == nil {
		n, err = r.r.Read(p)
	}
	if err != nil && err != io.EOF {
		r.failed = err
	}
	return n, err
}
