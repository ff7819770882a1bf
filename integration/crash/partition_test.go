package crash

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// Segments of the tests: some batches of 4 KiB each, so that each has an entry in its index.
const (
	recordsPerBatch = 4
	payload         = 1100
)

// content is a segment of a number of batches, its index, the start of the next one, and where each batch ends.
func content(start uint64, batches int) (log, index []byte, next uint64, ends []int) {
	log, index, next = segmenttest.Kafka(start, batches, recordsPerBatch, payload)
	for end := 0; end < len(log); {
		end += 12 + int(binary.BigEndian.Uint32(log[end+8:]))
		ends = append(ends, end)
	}
	return log, index, next, ends
}

// partition is a directory of segments.
type partition struct {
	v      *volume
	topic  string
	dir    string
	starts []uint64 // of the segments as they were made; the last one is active
}

// newPartition names a partition of a topic of its own; nothing is there yet.
func (v *volume) newPartition(prefix string) *partition {
	topic := fmt.Sprintf("%s%d", prefix, v.made.Add(1))
	return &partition{v: v, topic: topic, dir: topic + "-0"}
}

func (p *partition) file(i int, suffix string) string {
	return p.dir + "/" + segment.Stem(p.starts[i]) + suffix
}

func (p *partition) log(i int) string   { return p.file(i, ".log") }
func (p *partition) index(i int) string { return p.file(i, ".index") }

// sealed is how many sealed segments a scenario's partition has.
const sealed = 2

// fill makes the sealed segments and an active one, all flushed and below the checkpoints.
func (p *partition) fill() error {
	if err := p.v.mkdir(p.dir); err != nil {
		return err
	}
	var next uint64
	for i := range sealed + 1 {
		p.starts = append(p.starts, next)
		log, index, end, _ := content(next, 2)
		if err := errors.Join(p.v.put(p.log(i), log), p.v.put(p.index(i), index)); err != nil {
			return err
		}
		next = end
	}
	return p.v.flushedTo(p.dir, p.starts[sealed])
}

// flushedTo raises the broker's recovery point and high watermark of a partition.
func (v *volume) flushedTo(dir string, offset uint64) error {
	v.checkpoint.Lock()
	defer v.checkpoint.Unlock()
	v.offsets[dir] = offset
	var names []string
	for name := range v.offsets {
		names = append(names, name)
	}
	slices.Sort(names)
	text := fmt.Sprintf("0\n%d\n", len(names))
	for _, name := range names {
		dash := strings.LastIndexByte(name, '-')
		text += fmt.Sprintf("%s %s %d\n", name[:dash], name[dash+1:], v.offsets[name])
	}
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		if err := v.replaceBy(name, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// replaceBy replaces a small file as Kafka does.
func (v *volume) replaceBy(name string, b []byte) error {
	if _, left := v.ledger.of(name + ".tmp"); left {
		if err := v.unlink(name + ".tmp"); err != nil {
			return err
		}
	}
	if err := v.put(name+".tmp", b); err != nil {
		return err
	}
	return v.rename(name+".tmp", name)
}

// awaitUploaded waits for the records of all sealed segments.
func (p *partition) awaitUploaded() error {
	for i := range sealed {
		err := p.v.eventually("upload of "+p.log(i), func() (bool, error) { return p.v.isUploaded(p.log(i)) || p.v.isRemote(p.log(i)), nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// recover does what Kafka does when it loads a partition: what was being deleted goes, and so does an index without its log.
func (p *partition) recover() error {
	for _, path := range p.v.ledger.below(p.dir + "/") {
		base, _ := strings.CutSuffix(path, ".index")
		_, whole := p.v.ledger.of(base + ".log")
		orphan := base != path && !whole
		if strings.HasSuffix(path, ".deleted") || orphan {
			if err := p.v.unlink(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteSegment does what Kafka does for retention.
func (p *partition) deleteSegment(start uint64) error {
	stem := p.dir + "/" + segment.Stem(start)
	for _, suffix := range []string{".log", ".index"} {
		if _, there := p.v.ledger.of(stem + suffix); !there {
			continue
		}
		if err := p.v.rename(stem+suffix, stem+suffix+".deleted"); err != nil {
			return err
		}
	}
	return p.recover()
}

// deleteTopic does what Kafka does when a topic is deleted. It goes on where an earlier try ended.
func (p *partition) deleteTopic() error {
	if !strings.HasSuffix(p.dir, "-delete") {
		to := fmt.Sprintf("%s.%032x-delete", p.dir, len(p.dir))
		err := p.v.renameDir(p.dir, to)
		if err != nil {
			return err
		}
		p.dir = to
	}
	return p.remove()
}

func (p *partition) remove() error {
	for _, path := range p.v.ledger.below(p.dir + "/") {
		if path == p.dir+"/" {
			continue
		}
		if err := p.v.unlink(path); err != nil {
			return err
		}
	}
	return p.v.rmdir(p.dir)
}

// placed finds the directory again after an operation on it that was in doubt.
func (p *partition) placed() (there bool) {
	for _, dir := range p.v.ledger.below(p.topic + "-0") {
		if strings.HasSuffix(dir, "/") {
			p.dir = strings.TrimSuffix(dir, "/")
			return true
		}
	}
	return false
}

// object is the path of a segment's object in the store's directory.
func (p *partition) object(i int) (string, error) {
	found, err := p.v.store.Objects("/"+p.topic+"-0/", ".log")
	if err != nil {
		return "", err
	}
	for key := range found {
		if strings.Contains(key, "/"+segment.Stem(p.starts[i])+"-") {
			return p.v.store.Root + "/" + key, nil
		}
	}
	return "", fmt.Errorf("%s: %w", p.log(i), os.ErrNotExist)
}
