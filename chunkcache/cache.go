package chunkcache

import (
	"container/list"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/ristretto/v2"
)

// Cache is a cache of objects' bytes on a local disk. All methods may be called in parallel.
//
// Lock order: Cache.mu, then load.mu. Neither is held during I/O.
type Cache struct {
	opts    Options
	log     *slog.Logger
	disk    disk
	memory  *ristretto.Cache[uint64, any] // *table by the object's hash, *sums by nonce
	scratch sync.Pool                     // *[blockSize]byte
	buffers buffers

	ctx      context.Context // ends with the cache
	cancel   context.CancelFunc
	wg       sync.WaitGroup // every goroutine of the cache
	walkDone chan struct{}  // closed when it is known what is on the disk
	kick     chan struct{}  // asks for a trim

	hits, misses     atomic.Uint64
	waiting, readers atomic.Int64
	closing          atomic.Bool

	mu      sync.Mutex // guards all that follows
	freed   *sync.Cond // a file was unlinked, a directory read, or a reader left a cache that is being closed
	closed  bool
	walked  bool // what walkDone says
	objects map[hash]*object
	byKey   map[string]*object // those of objects that have been read
	nonce   uint64
	scans   int              // directories of objects that are being read
	found   []*extent        // on the disk, until walked
	scanned map[hash]string  // directories that have been or are being read, until walked
	access  map[uint64]int64 // the access table of the last run, until walked

	queues                     [classes]list.List // of *extent
	busy, busyBehind           int                // fetches under way, and those of them that nobody waits for
	busyBytes, busyBehindBytes int64
	space                      space
	lru, unread, held          lru // stored and read; stored, read ahead, not read yet; held, in memory
	aheadBytes, writing        int64
	heldBytes                  int64
	open                       []*extent // with an open file, for the clock
	hand                       int
	failing                    bool // the disk
	retryAt                    time.Time
}

// New returns a cache on the directory o.Dir. What an earlier run left there is looked through in the background, and
// counts as soon as it is read. The directory may be unusable: the cache then reads past it, and says so in the log.
func New(o Options) (*Cache, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("chunk cache: %w", err)
	}
	c := &Cache{
		opts: o, log: o.Log, disk: disk{o.Dir},
		walkDone: make(chan struct{}), kick: make(chan struct{}, 1),
		objects: map[hash]*object{}, byKey: map[string]*object{}, scanned: map[hash]string{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	var seed [8]byte
	rand.Read(seed[:])
	c.nonce = binary.LittleEndian.Uint64(seed[:])
	c.scratch.New = func() any { return new([blockSize]byte) }
	c.freed = sync.NewCond(&c.mu)
	var err error
	c.memory, err = ristretto.NewCache(&ristretto.Config[uint64, any]{
		NumCounters: max(1000, 10*o.Memory/(4<<10)), MaxCost: o.Memory, BufferItems: 64,
	})
	if err != nil {
		return nil, fmt.Errorf("chunk cache: %w", err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.refreshBudget()
	c.wg.Go(c.walk)
	c.wg.Go(c.housekeep)
	return c, nil
}

// Drop forgets what the cache has of an object, its index included. Reads that are under way end as they would have. It does not wait for
// the store.
func (c *Cache) Drop(key string) {
	c.mu.Lock()
	for c.byKey[key] == nil || c.byKey[key].scan != nil {
		if c.closed || c.meet(c.ctx, key) != nil {
			c.mu.Unlock()
			return
		}
	}
	obj := c.byKey[key]
	obj.users++
	obj.table = nil
	c.memory.Del(tableKey(obj.hash))
	var files []*extent
	for len(obj.extents) > 0 {
		e := obj.extents[0]
		switch {
		case e.state == queued && e.pins == 0:
			c.abort(e, errForgotten)
		case e.state == held:
			c.letGo(e)
		case e.state == stored:
			files = append(files, e)
			fallthrough
		default:
			c.remove(e)
		}
	}
	obj.users--
	c.settle(obj)
	c.mu.Unlock()
	c.dispose(files)
}

// Stats says how the cache is doing. Until the directory has been looked through, what is on the disk is not counted.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Bytes: c.space.used, Budget: c.space.budget, Chunks: c.space.files,
		Hits: c.hits.Load(), Misses: c.misses.Load(), Waiting: int(c.waiting.Load()), Degraded: c.failing,
	}
}

// Close ends every fetch and every read with ErrClosed, waits for them and for all goroutines of the cache, saves the
// access table and closes all files. The first call returns the error of saving; further ones wait too and return nil.
func (c *Cache) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.closing.Store(true)
	c.cancel()
	for k := range c.queues {
		for c.queues[k].Len() > 0 {
			c.abort(c.queues[k].Front().Value.(*extent), ErrClosed)
		}
	}
	c.mu.Unlock()
	c.wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.readers.Load() > 0 {
		c.freed.Wait()
	}
	if !first {
		return nil
	}
	for _, e := range c.open {
		e.file.close()
		e.file, e.slot = nil, 0
	}
	c.open = nil
	for c.held.last != nil {
		c.letGo(c.held.last)
	}
	c.memory.Close()
	if !c.walked {
		return nil // what is on the disk is known only in part: the last table is better
	}
	return c.saveAccess()
}
