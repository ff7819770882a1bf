package powercut

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The files of a disk, in its directory.
const (
	baseFile  = "base"  // the image as it was at first
	stateFile = "state" // the image as it is
	logFile   = "log"   // what was done to it, see entry
	viewDir   = "view"  // the mount point of the file system that serves the image
	imageFile = "image" // the name of the image there
)

const imageNode = 2

// The orders to stand still.
const (
	atOnce      = "now"
	atEntry     = "at"
	withFlush   = "flush"  // with the first flush from there on
	beforeFlush = "before" // right before it
)

// served is a file system with one file, the disk's image. It runs in a process of its own, which touches nothing below its mount.
// Requests may come in parallel; those that change something are written down one by one.
type served struct {
	fuse.RawFileSystem
	state *os.File
	size  uint64

	mu      sync.Mutex // guards what follows; held while the disk stands still
	log     *bufio.Writer
	entries int
	order   string // how the disk is to stand still, "" = not at all
	stopAt  int    // not before there are so many entries
	thaw    chan struct{}
}

// serveDisk mounts the image of the disk in dir, says "ready" on stdout, and serves until it is unmounted. Orders come on stdin: one
// of those below with a number N makes the disk stand still after N more entries of its log, and is answered by "still" and the
// number of its entries; "thaw" lets it go on.
func serveDisk(dir string) error {
	state, err := os.OpenFile(filepath.Join(dir, stateFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := state.Stat()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	s := &served{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), state: state, size: uint64(info.Size()),
		log: bufio.NewWriterSize(log, 1<<20), thaw: make(chan struct{}),
	}
	server, err := fuse.NewServer(s, filepath.Join(dir, viewDir), &fuse.MountOptions{
		DirectMount: true, MaxWrite: 1 << 20, FsName: "tierfs-test-disk", Name: "tierfs-test-disk",
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	go s.orders(os.Stdin) // ends with the process
	server.Serve()
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.log.Flush(), log.Close(), state.Close())
}

func (s *served) orders(from io.Reader) {
	for {
		var word string
		if _, err := fmt.Fscan(from, &word); err != nil {
			return // the parent is gone, and so is this process soon
		}
		if word == "thaw" {
			s.thaw <- struct{}{}
			continue
		}
		var at int
		if _, err := fmt.Fscan(from, &at); err != nil {
			return
		}
		if word == atOnce {
			go s.now()
			continue
		}
		s.mu.Lock()
		s.order, s.stopAt = word, s.entries+at
		s.mu.Unlock()
	}
}

// now stands still at once.
func (s *served) now() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stand(); err != nil {
		fmt.Fprintln(os.Stderr, "disk:", err) // the parent waits in vain
	}
}

// note writes down what was done to the image. s.mu is held, and kept while the disk stands still.
func (s *served) note(e entry, data []byte) error {
	if err := e.write(s.log, data); err != nil {
		return err
	}
	s.entries++
	if s.due(atEntry) || e.kind == flushEntry && s.due(withFlush) {
		return s.stand()
	}
	return nil
}

func (s *served) due(order string) bool { return s.order == order && s.entries >= s.stopAt }

// stand stands still until the thaw. s.mu is held.
func (s *served) stand() error {
	s.order = ""
	if err := s.log.Flush(); err != nil {
		return err
	}
	fmt.Printf("still %d\n", s.entries)
	<-s.thaw
	return nil
}

func status(err error) fuse.Status {
	if err != nil {
		fmt.Fprintln(os.Stderr, "disk:", err)
		return fuse.EIO
	}
	return fuse.OK
}

// Lookup finds the image.
func (s *served) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if name != imageFile {
		return fuse.ENOENT
	}
	out.NodeId = imageNode
	out.SetEntryTimeout(1 << 40)
	out.SetAttrTimeout(1 << 40)
	s.attr(imageNode, &out.Attr)
	return fuse.OK
}

// GetAttr gives the size of the image, which never changes.
func (s *served) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(1 << 40)
	s.attr(in.NodeId, &out.Attr)
	return fuse.OK
}

func (s *served) attr(node uint64, out *fuse.Attr) {
	*out = fuse.Attr{Ino: node, Mode: fuse.S_IFDIR | 0o700, Nlink: 2}
	if node == imageNode {
		*out = fuse.Attr{Ino: node, Mode: fuse.S_IFREG | 0o600, Nlink: 1, Size: s.size, Blocks: s.size / 512, Blksize: blockSize}
	}
}

// Open leaves the kernel without a cache of its own: each request of the loop device comes here.
func (s *served) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	return fuse.OK
}

// Read reads the newest state.
func (s *served) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, err := s.state.ReadAt(buf, int64(in.Offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, status(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write changes the state.
func (s *served) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.state.WriteAt(data, int64(in.Offset))
	if err == nil {
		err = s.note(entry{kind: writeEntry, offset: int64(in.Offset), length: int64(len(data))}, data)
	}
	return uint32(len(data)), status(err)
}

// Fallocate writes zeros, which is all that a loop device asks for.
func (s *served) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if in.Mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 || in.Mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		return fuse.Status(unix.EOPNOTSUPP)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := entry{kind: zeroEntry, offset: int64(in.Offset), length: int64(in.Length)}
	err := e.apply(s.state, nil)
	if err == nil {
		err = s.note(e, nil)
	}
	return status(err)
}

// Fsync is the disk's flush: what was answered before is safe from now on.
func (s *served) Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due(beforeFlush) {
		if err := s.stand(); err != nil {
			return status(err)
		}
	}
	return status(s.note(entry{kind: flushEntry}, nil))
}

// Flush is the close of a descriptor, which promises nothing.
func (s *served) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }
