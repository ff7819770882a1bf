// Package tiertest writes volumes as a long life leaves them, for tests and
// benchmarks that need many segments: files are written straight, without a broker,
// an upload or an fsync. It also makes the small disks that fill up.
//
// The on-disk form is that of package tier's documentation.
package tiertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
)

const (
	perSegment = 1_000_000 // records
	// SegmentSize is what the broker sees of each remote segment, in bytes.
	SegmentSize = 1 << 30
	// writers is how many directories are written at once; more only wait for each other.
	writers = 2
	// id is the volume's; there is only ever one of them on a machine.
	id = "00112233445566778899aabbccddeeff"
)

// Plan says what Plant writes.
type Plan struct {
	Prefix     string // of the store's keys
	Partitions int    // of one topic, "t"
	Segments   int    // remote ones in each, beside an empty active one
}

// Plant makes the empty directory root a Kafka log directory that was tiered for
// long: each partition has remote segments with their index files, and an active
// segment. Its objects are named but do not exist.
func Plant(root string, plan Plan) error {
	for _, dir := range []string{".tierfs", ".tierfs/partitions"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "meta.properties"), []byte("version=1\nnode.id=1\n"), 0o644); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(root, ".tierfs/volume"), map[string]string{"id": id, "name": id}); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(writers)
	for n := range plan.Partitions {
		g.Go(func() error { return plan.partition(root, fmt.Sprintf("t-%d", n)) })
	}
	return g.Wait()
}

func (plan Plan) partition(root, name string) error {
	inc := marker.NewIncarnation()
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	prefix := fmt.Sprintf("%s/%s/%s/%s", plan.Prefix, id, name, inc)
	err := writeJSON(filepath.Join(root, ".tierfs/partitions", inc.String()),
		map[string]string{"prefix": prefix, "path": name, "layout": "kafka"})
	if err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, ".tierfs-partition"), map[string]string{"incarnation": inc.String()}); err != nil {
		return err
	}
	for i := range plan.Segments {
		if err := remote(dir, inc, uint64(i)*perSegment); err != nil {
			return err
		}
	}
	active := filepath.Join(dir, segment.Stem(uint64(plan.Segments)*perSegment))
	for _, suffix := range []string{".log", ".index", ".timeindex"} {
		if err := os.WriteFile(active+suffix, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// remote writes an evicted segment and what Kafka keeps beside it.
func remote(dir string, inc marker.Incarnation, start uint64) error {
	index := []byte("\x00\x00\x00\x00\x00\x00\x00\x00")
	rec := marker.Record{
		Start: start, End: start + perSegment - 1, Size: SegmentSize, IndexSize: int64(len(index)),
		FirstTimestamp: int64(start), MaxTimestamp: int64(start) + perSegment, Incarnation: inc, UploadID: marker.NewUploadID(),
	}
	bytes := rec.Marshal()
	stem := filepath.Join(dir, segment.Stem(start))
	if err := os.WriteFile(stem+".remote", bytes[:], 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(stem+".index", index, 0o644); err != nil {
		return err
	}
	return os.WriteFile(stem+".timeindex", index, 0o644)
}

func writeJSON(path string, from any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}
