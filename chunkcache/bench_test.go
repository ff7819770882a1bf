package chunkcache

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkWarm reads from an open chunk file in the page cache.
func BenchmarkWarm(b *testing.B) {
	for _, n := range []int64{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n>>10, "KiB"), func(b *testing.B) {
			f := newFixture(b, func(o *Options) { o.ChunkSize = 8 << 20 })
			o, data := f.store.object("k", 32<<20, 16<<10)
			f.read(o, data, 0, o.Size)
			f.settleDown()
			p := make([]byte, n)
			ctx := b.Context()
			b.SetBytes(n)
			b.ReportAllocs()
			off := int64(0)
			for b.Loop() {
				if err := f.ReadAt(ctx, o, p, off); err != nil {
					b.Fatal(err)
				}
				if off += n; off+n > o.Size {
					off = 0
				}
			}
		})
	}
}

// BenchmarkPlain is what BenchmarkWarm is to be compared with: the same reads from a plain file.
func BenchmarkPlain(b *testing.B) {
	const size = 32 << 20
	f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		b.Fatal(err)
	}
	for _, n := range []int64{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n>>10, "KiB"), func(b *testing.B) {
			p := make([]byte, n)
			b.SetBytes(n)
			b.ReportAllocs()
			off := int64(0)
			for b.Loop() {
				if _, err := f.ReadAt(p, off); err != nil {
					b.Fatal(err)
				}
				if off += n; off+n > size {
					off = 0
				}
			}
		})
	}
}

// BenchmarkCold scans objects that nobody has read, from a store in memory.
func BenchmarkCold(b *testing.B) {
	f := newFixture(b, func(o *Options) { o.ChunkSize, o.FirstFetch, o.Size = 8<<20, 1<<20, 256<<20 })
	o, data := f.store.object("k", 64<<20, 16<<10)
	p := make([]byte, 128<<10)
	b.SetBytes(o.Size)
	for i := 0; b.Loop(); i++ {
		v := o
		v.Key = fmt.Sprint("k", i)
		f.store.set(func(s *fakeStore) { s.objects[v.Key] = data })
		for off := int64(0); off < o.Size; off += int64(len(p)) {
			if err := f.ReadAt(b.Context(), v, p[:min(int64(len(p)), o.Size-off)], off); err != nil {
				b.Fatal(err)
			}
		}
	}
}
