package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A load is a process that uses a mount as a broker does while tierfs is taken over: this program again, with "load" as its first
// argument. It looks up every file, keeps some open, and then one thread reads what no cache of the kernel has, and another one appends.
// A call that fails, or reads something wrong, ends the process.

const (
	loadPause  = time.Millisecond // of each thread, after each call
	appendSize = 4000             // not a part of a page
	syncEvery  = 16               // appends
	readSize   = 4096
)

// load is the state of such a process.
type load struct {
	gate     sync.RWMutex // held for reading while a call lasts, for writing at rest
	known    int          // files and directories that were looked up
	open     []*os.File
	read     []readFile // those that are read
	appendTo *os.File
	syncs    bool
	appended int64 // only by the thread that appends, and at rest

	reads, appends, fsyncs watch
}

// readFile is a file of known content.
type readFile struct {
	f    *os.File
	sums []uint32 // of each whole page
}

// watch times calls. One thread calls, another one takes.
type watch struct {
	mu      sync.Mutex
	ended   *sync.Cond // on mu: a call has ended
	begun   time.Time  // the last one that has ended
	longest time.Duration
	calls   int
}

// call does something, and lets no error pass.
func (w *watch) call(gate *sync.RWMutex, do func() error) {
	gate.RLock()
	defer gate.RUnlock()
	begun := time.Now()
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "bench load:", err)
		os.Exit(1) // nobody can be told while a thread waits for a mount that does not answer
	}
	took := time.Since(begun)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun, w.longest, w.calls = begun, max(w.longest, took), w.calls+1
	w.ended.Broadcast()
}

// take waits until a call has ended that began after now, and returns the longest one, and how many there were, since the last take.
func (w *watch) take() (longest time.Duration, calls int) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.begun.After(now) {
		w.ended.Wait()
	}
	longest, calls = w.longest, w.calls
	w.longest, w.calls = 0, 0
	return longest, calls
}

// runLoad is what the process does, until its stdin ends.
func runLoad(args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	dir := flags.String("dir", "", "the mount")
	segments := flags.String("read", "", "pattern of the files below it that are read, and open for that")
	open := flags.Int("open", 0, "how many files are open in all")
	appendTo := flags.String("append", "", "the file below it that is appended to")
	l := &load{}
	flags.BoolVar(&l.syncs, "sync", false, "fsync after some appends")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, w := range []*watch{&l.reads, &l.appends, &l.fsyncs} {
		w.ended = sync.NewCond(&w.mu)
	}
	if err := l.prepare(*dir, *segments, *open, *appendTo); err != nil {
		return err
	}
	go l.reader()
	go l.appender()
	return l.answer(os.Stdin, os.Stdout)
}

// prepare looks up everything below the mount, and opens what is to be open. Segments are open for writing, too, as a broker has them.
func (l *load) prepare(dir, segments string, open int, appendTo string) (err error) {
	var others []string
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		l.known++
		name := strings.TrimPrefix(path, dir+"/")
		matched, err := filepath.Match(segments, name)
		switch {
		case err != nil || e.IsDir() || name == appendTo:
		case matched && info.Size() >= readSize:
			err = l.openRead(path)
		default:
			others = append(others, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	if l.appendTo, err = os.OpenFile(filepath.Join(dir, appendTo), os.O_RDWR, 0); err != nil {
		return err
	}
	l.open = append(l.open, l.appendTo)
	for _, path := range others[:max(0, min(len(others), open-len(l.open)))] {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		l.open = append(l.open, f)
	}
	if len(l.read) == 0 {
		return errors.New("there is nothing to read")
	}
	return nil
}

func (l *load) openRead(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	l.open = append(l.open, f)
	content, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	r := readFile{f: f}
	for ; len(content) >= readSize; content = content[readSize:] {
		r.sums = append(r.sums, crc32.ChecksumIEEE(content[:readSize]))
	}
	l.read = append(l.read, r)
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) // one READ for one read
}

// reader reads pages anywhere.
func (l *load) reader() {
	page := make([]byte, readSize)
	for {
		r := l.read[rand.IntN(len(l.read))]
		n := rand.IntN(len(r.sums))
		l.reads.call(&l.gate, func() error {
			if err := unix.Fadvise(int(r.f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
				return err
			}
			if _, err := r.f.ReadAt(page, int64(n)*readSize); err != nil {
				return err
			}
			if crc32.ChecksumIEEE(page) != r.sums[n] {
				return fmt.Errorf("page %d of %s has changed", n, r.f.Name())
			}
			return nil
		})
		time.Sleep(loadPause)
	}
}

// appender appends, and waits for the disk now and then if it shall.
func (l *load) appender() {
	piece := make([]byte, appendSize)
	for n := 1; ; n++ {
		l.appends.call(&l.gate, func() error {
			pattern(piece, l.appended)
			n, err := l.appendTo.Write(piece)
			l.appended += int64(n)
			return err
		})
		if l.syncs && n%syncEvery == 0 {
			l.fsyncs.call(&l.gate, l.appendTo.Sync)
		}
		time.Sleep(loadPause)
	}
}

// pattern is what stands at a position of the file that is appended to.
func pattern(p []byte, at int64) {
	for i := range p {
		n := (at + int64(i)) % 4093
		p[i] = byte(n) ^ byte(n>>5)
	}
}

// verify reads back what was appended, from below the kernel's cache. At rest.
func (l *load) verify() error {
	if err := l.appendTo.Sync(); err != nil {
		return err
	}
	if err := unix.Fadvise(int(l.appendTo.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	info, err := l.appendTo.Stat()
	if err != nil {
		return err
	}
	if info.Size() != l.appended {
		return fmt.Errorf("%d bytes were appended, but the file has %d", l.appended, info.Size())
	}
	got, want := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); at < l.appended; at += int64(len(got)) {
		n := min(int64(len(got)), l.appended-at)
		if _, err := l.appendTo.ReadAt(got[:n], at); err != nil {
			return err
		}
		if pattern(want[:n], at); !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("what was appended at %d to %d has changed", at, at+n)
		}
	}
	return nil
}
