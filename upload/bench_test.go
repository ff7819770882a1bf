package upload

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/dirstore"
	"github.com/tierfs/tierfs/segment/segmenttest"
	"github.com/tierfs/tierfs/tier"
)

const benchSegments = 8

// benchSource is a partition as Kafka left it, with segments of 64 MiB.
func benchSource(b *testing.B) (root string, logs []string, size int64) {
	b.Helper()
	root = b.TempDir()
	check(b, os.WriteFile(filepath.Join(root, "meta.properties"), []byte("node.id=1\n"), 0o644))
	check(b, os.Mkdir(filepath.Join(root, "a-0"), 0o755))
	next := uint64(0)
	for range benchSegments {
		start := next
		var log, index []byte
		log, index, next = segmenttest.Kafka(start, 256, 32, 8<<10)
		path := filepath.Join(root, logName("a-0", start))
		check(b, os.WriteFile(path, log, 0o644))
		check(b, os.WriteFile(strings.TrimSuffix(path, ".log")+".index", index, 0o644))
		logs, size = append(logs, path), size+int64(len(log))
	}
	check(b, os.WriteFile(filepath.Join(root, logName("a-0", next)), nil, 0o644))
	unix.Sync()
	return root, logs, size
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOnePartition uploads a backlog of one partition into a directory, and
// puts the same files by hand.
func BenchmarkOnePartition(b *testing.B) {
	root, logs, size := benchSource(b)
	for _, c := range []struct {
		name string
		run  func(*testing.B, *dirstore.Store)
	}{
		{"tierfs", func(b *testing.B, s *dirstore.Store) { benchBackground(b, s, root) }},
		{"raw", func(b *testing.B, s *dirstore.Store) { benchPuts(b, s, logs) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				b.StopTimer()
				dir, err := os.MkdirTemp(b.TempDir(), "")
				check(b, err)
				s, err := dirstore.Open(dir)
				check(b, err)
				b.StartTimer()
				c.run(b, s)
				b.StopTimer()
				check(b, s.Close())
				check(b, os.RemoveAll(dir))
				b.StartTimer()
			}
		})
	}
}

func benchPuts(b *testing.B, s *dirstore.Store, logs []string) {
	for _, path := range logs {
		f, err := os.Open(path)
		check(b, err)
		info, err := f.Stat()
		check(b, err)
		body, err := objstore.NewBody(f, info.Size())
		check(b, err)
		check(b, s.Put(b.Context(), filepath.Base(path), body, objstore.PutOptions{IfAbsent: true}))
		check(b, f.Close())
	}
}

// benchBackground uploads the partition from its mount on, and forgets that.
func benchBackground(b *testing.B, s *dirstore.Store, root string) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(b, err)
	v, err := tier.Open(b.Context(), tier.Options{Root: fd, Store: s, Prefix: "p"})
	check(b, err)
	bg := New(Options{
		Volume: v, Store: s, ConditionalWrites: true, Retention: keepAll(),
		Features: func() objstore.Features { return objstore.Features{EnforcesChecksum: true, ConditionalPut: true} },
	})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- bg.Run(ctx) }()
	for {
		changed := bg.uploader.changed.wait()
		if p, ok := v.PartitionOf("a-0"); ok && uploadedOf(p) == benchSegments {
			break
		}
		<-changed
	}
	cancel()
	check(b, <-ended)
	b.StopTimer()
	check(b, v.Close())
	check(b, unix.Close(fd))
	for _, pattern := range []string{".tierfs*", "a-0/.tierfs*", "a-0/*.uploaded"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		check(b, err)
		for _, name := range names {
			check(b, os.RemoveAll(name))
		}
	}
	b.StartTimer()
}

func uploadedOf(p *tier.Partition) (n int) {
	for _, s := range p.Segments() {
		if s.State == tier.Uploaded {
			n++
		}
	}
	return n
}
