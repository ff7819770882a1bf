package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// Ways of writing, by the setting mount.writes.
const (
	writeback = "writeback"
	through   = "through"
)

// writesSetting are the lines of [mount] for a Kafka layout that is written to in one way.
func writesSetting(writes string) string {
	return fmt.Sprintf("layout = \"kafka\"\nwrites = %q", writes)
}

// writesAs fails if a mount writes in another way than it should: it must not be measured under a wrong name.
func writesAs(ctx context.Context, d *daemon.Daemon, writes string) error {
	s, err := d.Status(ctx)
	if err == nil && s.Writes != writes {
		err = fmt.Errorf("status says that the mount's writes are %q, not %q; tierfs' last lines:\n%s", s.Writes, writes, d.Log().Tail(5))
	}
	return err
}

// piece is how many batches of 16 KiB a generated segment grows by: 64 MiB.
const piece = 4096

// volume is a Kafka log directory without a broker, tiered by a daemon to an S3 server.
type volume struct {
	source string
	d      *daemon.Daemon
}

// newVolume makes an empty log directory whose broker would allow everything.
func newVolume(root string) (*volume, error) {
	v := &volume{source: filepath.Join(root, "data")}
	if err := os.MkdirAll(v.source, 0o755); err != nil {
		return nil, err
	}
	var partitions []string
	for _, topic := range []string{"cold", "big"} {
		for n := range 4 {
			partitions = append(partitions, fmt.Sprintf("%s %d %d\n", topic, n, 1<<50))
		}
	}
	checkpoint := []byte(fmt.Sprintf("0\n%d\n%s", len(partitions), strings.Join(partitions, "")))
	for name, content := range map[string][]byte{
		"meta.properties": []byte("version=1\nnode.id=1\n"), "recovery-point-offset-checkpoint": checkpoint, "replication-offset-checkpoint": checkpoint,
	} {
		if err := os.WriteFile(filepath.Join(v.source, name), content, 0o644); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// coldVolume is a volume with a partition of segments of one piece each, for reading cold. It returns their paths, too.
func (b bench) coldVolume(name string) (v *volume, cold []string, err error) {
	if v, err = newVolume(filepath.Join(b.root, name)); err != nil {
		return nil, nil, err
	}
	names, err := v.fill("cold-0", b.scaled(coldPieces), 1, piece)
	for _, name := range names {
		cold = append(cold, filepath.Join(v.source, name))
	}
	return v, cold, err
}

// fill gives a partition sealed segments of so many pieces, each of so many batches, and an empty active one. It returns the names of
// the sealed ones.
func (v *volume) fill(partition string, segments, pieces, batches int) (names []string, err error) {
	if err := os.MkdirAll(filepath.Join(v.source, partition), 0o755); err != nil {
		return nil, err
	}
	next := uint64(0)
	for range segments {
		name := filepath.Join(partition, segment.Stem(next))
		if next, err = writeSegment(filepath.Join(v.source, name), next, pieces, batches); err != nil {
			return nil, err
		}
		names = append(names, name+".log")
	}
	return names, os.WriteFile(filepath.Join(v.source, partition, segment.Stem(next)+".log"), nil, 0o644)
}

// writeSegment writes a segment and its index, and returns what offset comes next.
func writeSegment(stem string, start uint64, pieces, batches int) (next uint64, err error) {
	f, err := os.Create(stem + ".log")
	if err != nil {
		return 0, err
	}
	defer func() { err = joined(err, f.Close()) }()
	next = start
	size := uint32(0)
	var index []byte
	for range pieces {
		log, of, after := segmenttest.Kafka(next, batches, 2, 8<<10)
		if _, err := f.Write(log); err != nil {
			return 0, err
		}
		for ; len(of) > 0; of = of[8:] {
			index = binary.BigEndian.AppendUint32(index, binary.BigEndian.Uint32(of)+uint32(next-start))
			index = binary.BigEndian.AppendUint32(index, binary.BigEndian.Uint32(of[4:])+size)
		}
		size += uint32(len(log))
		next = after
	}
	return next, os.WriteFile(stem+".index", index, 0o644)
}

// mount starts a daemon over the volume. Settings are tables besides [store].
func (v *volume) mount(ctx context.Context, b bench, store rig.Store, mount, settings string) (err error) {
	dir, err := os.MkdirTemp(b.root, "daemon-")
	if err != nil {
		return err
	}
	v.d, err = daemon.New(daemon.Options{
		Binary: b.binary, Dir: dir, Source: v.source, Mount: mount, Settings: store.Settings + settings, Env: store.Env,
	})
	if err == nil {
		err = v.d.Start(ctx)
	}
	return err
}

// unmount ends the daemon, if there is one.
func (v *volume) unmount() error {
	if v.d == nil {
		return nil
	}
	err := v.d.Close()
	v.d = nil
	return err
}

// s3Server is an S3 server with a bucket.
type s3Server struct {
	*s3test.Server
	bucket, root string
}

func (b bench) s3Server(ctx context.Context) (*s3Server, error) {
	root, err := os.MkdirTemp(b.root, "served-")
	if err != nil {
		return nil, err
	}
	s := &s3Server{root: root}
	if s.Server, err = s3test.Run(root, "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if s.bucket, err = s.MakeBucket(ctx); err != nil {
		return nil, joined(err, s.Stop())
	}
	return s, nil
}

// at is the bucket as a store, by way of an endpoint.
func (s *s3Server) at(endpoint string) rig.Store {
	return rig.S3(endpoint, s3test.Region, s.bucket, s3test.AccessKey, s3test.SecretKey, s.root)
}
