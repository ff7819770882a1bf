package chunkcache

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// walk finds what an earlier run left in the directory. Until it is done nothing new is written, so that the budget holds;
// reads work: an object that is asked for is looked up out of turn.
func (c *Cache) walk() {
	table, err := c.loadAccess()
	if err != nil {
		c.log.Warn("access table not usable; files count by their age", "error", err)
	}
	c.mu.Lock()
	c.access = table
	c.mu.Unlock()
	if err := c.disk.tag(); err != nil {
		c.diskFailed("mark directory", err)
	}
	err = c.disk.each(chunksDir, func(d fs.DirEntry) error {
		if c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		if h, ok := parseDirName(d.Name()); ok && d.IsDir() {
			c.adopt(h, d.Name())
		} else {
			c.removeStranger(chunksDir, d)
		}
		return nil
	})
	if c.ctx.Err() != nil {
		return
	}
	if err != nil {
		c.diskFailed("read directory", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.scans > 0 { // those that readers have asked for
		c.freed.Wait()
	}
	c.rank(c.found)
	c.found, c.access, c.scanned = nil, nil, nil
	c.walked = true
	close(c.walkDone)
	c.kickIfFull()
	c.dispatch()
}

// adopt takes over the directory of an object, unless somebody has asked for that object already.
func (c *Cache) adopt(h hash, dir string) {
	c.mu.Lock()
	if mine, ok := c.scanned[h]; ok {
		c.mu.Unlock()
		if mine != dir {
			c.removeAll(dir)
		}
		return
	}
	obj := &object{hash: h, dir: dir}
	c.objects[h] = obj
	c.beginScan(obj)
	c.mu.Unlock()
	c.scanObject(obj)
}

// meet makes the object known that a reader asks for, and waits until its directory has been looked at. c.mu is held, but
// not while waiting.
func (c *Cache) meet(ctx context.Context, key string) error {
	h := hashKey(key)
	obj := c.objects[h]
	if obj == nil {
		obj = &object{hash: h, dir: dirName(h, key)}
		c.objects[h] = obj
		if _, ok := c.scanned[h]; !ok && !c.walked {
			c.beginScan(obj)
			c.wg.Go(func() { c.scanObject(obj) })
		}
	}
	obj.key = key
	c.byKey[key] = obj
	if obj.scan == nil {
		return nil
	}
	scan := obj.scan
	obj.users++
	c.mu.Unlock()
	var err error
	select {
	case <-scan:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	obj.users--
	if err != nil {
		c.settle(obj)
	}
	return err
}

// beginScan announces a scanObject. c.mu is held.
func (c *Cache) beginScan(obj *object) {
	obj.scan = make(chan struct{})
	c.scans++
	c.scanned[obj.hash] = obj.dir
}

// scanObject reads the directory of obj: chunk files become extents, everything else goes.
func (c *Cache) scanObject(obj *object) {
	var found []*extent
	dir := chunksDir + "/" + obj.dir
	err := c.disk.each(dir, func(d fs.DirEntry) error {
		start, length, nonce, ok := parseFileName(d.Name())
		if !ok || !d.Type().IsRegular() {
			c.removeStranger(dir, d)
			return nil
		}
		e := &extent{obj: obj, start: start, end: start + length, nonce: nonce, state: stored, size: fileSize(length)}
		e.accessed = c.lastAccess(dir, d.Name(), nonce)
		found = append(found, e)
		return nil
	})
	if err != nil {
		c.diskFailed("read directory", err)
	}
	slices.SortFunc(found, func(a, b *extent) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.end, a.end), cmp.Compare(a.nonce, b.nonce))
	})
	var drop []*extent
	c.mu.Lock()
	for _, e := range found {
		c.space.used += e.size
		c.space.files++
		if obj.insert(e) {
			c.found = append(c.found, e)
			continue
		}
		c.space.dying += e.size
		c.space.dyingFiles++
		e.state = gone
		drop = append(drop, e)
	}
	close(obj.scan)
	obj.scan = nil
	c.scans--
	c.freed.Broadcast()
	c.settle(obj)
	c.mu.Unlock()
	c.dispose(drop)
	if len(found) == 0 {
		c.disk.rmdir(obj.dir)
	}
}

// lastAccess is when a file that was found was last read, as far as one can know.
func (c *Cache) lastAccess(dir, name string, nonce uint64) int64 {
	c.mu.Lock()
	at, ok := c.access[nonce]
	c.mu.Unlock()
	if ok {
		return at
	}
	var st unix.Stat_t
	if err := unix.Fstatat(c.opts.Dir, dir+"/"+name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0
	}
	return st.Mtim.Nano()
}

// removeStranger removes what the cache did not put into dir, or did not finish. A directory goes only when it is empty.
func (c *Cache) removeStranger(dir string, d fs.DirEntry) {
	flags := 0
	if d.IsDir() {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(c.opts.Dir, dir+"/"+d.Name(), flags); err != nil && err != unix.ENOENT {
		c.log.Warn("something in the cache's directory is not the cache's and cannot be removed", "name", dir+"/"+d.Name(), "error", err)
	}
}

// removeAll empties and removes a directory that another version of the cache named.
func (c *Cache) removeAll(dir string) {
	path := chunksDir + "/" + dir
	err := c.disk.each(path, func(d fs.DirEntry) error {
		c.removeStranger(path, d)
		return nil
	})
	if err != nil {
		c.diskFailed("read directory", err)
	}
	c.disk.rmdir(dir)
}

// each calls fn for everything in a directory; a directory that does not exist is empty.
func (d disk) each(path string, fn func(fs.DirEntry) error) error {
	f, err := d.list(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(256)
		for _, e := range entries {
			if err := fn(e); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// tag marks the directory as a cache for backup programs.
func (d disk) tag() error {
	fd, err := d.open(tagFile, os.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return pwrite(fd, []byte(tagText), 0)
}
