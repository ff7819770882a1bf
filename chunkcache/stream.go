package chunkcache

// maxStreams is how many readers of one object are told apart.
const maxStreams = 8

// slack is how far from where it is expected a read may be and still belong to a stream: the kernel has several READs under
// way, and brokers read a header before they send the batch.
const slack = 1 << 20

// stream is a reader that goes forward through an object.
type stream struct {
	next   int64 // where its next read is expected; 0: unused
	ahead  int64 // up to where it has been read ahead
	window int64 // chunks to read ahead; 0: only one read so far
	turn   uint32
}

// streams are the readers of one object, told apart by where they are.
type streams struct {
	turn uint32
	list [maxStreams]stream
}

// match returns the stream that a read of [off, end) belongs to, and whether it goes on in it; else it begins a new one in
// place of the one longest unused.
func (s *streams) match(off, end int64) (m *stream, goesOn bool) {
	s.turn++
	oldest := &s.list[0]
	for i := range s.list {
		m := &s.list[i]
		if m.next > 0 && off >= m.next-slack && off <= m.next+slack {
			m.turn = s.turn
			return m, end > m.next
		}
		if s.turn-m.turn > s.turn-oldest.turn {
			oldest = m
		}
	}
	*oldest = stream{next: end, ahead: end, turn: s.turn}
	return oldest, false
}

// advance notes a read of n bytes at off and reads ahead of it: one chunk as soon as a second read follows on a first, and
// twice as many at each chunk that the reader comes to. c.mu is held.
func (c *Cache) advance(obj *object, o Object, off, n int64) {
	if obj.streams == nil {
		obj.streams = new(streams)
	}
	s, goesOn := obj.streams.match(off, off+n)
	if !goesOn || c.opts.ReadaheadMax == 0 {
		return
	}
	size := c.opts.ChunkSize
	before := s.next / size
	s.next = off + n
	switch {
	case s.window == 0:
		s.window = 1
	case s.next/size > before:
		s.window = min(2*s.window, int64(c.opts.ReadaheadMax))
	}
	until := min(o.Size, (s.next/size+1+s.window)*size)
	if until <= s.ahead || s.next >= o.Size || c.failing {
		return
	}
	from := max(s.next, s.ahead)
	s.ahead = until
	if t := c.cachedTable(obj, o.Size); t != nil {
		s.ahead = c.readAhead(obj, o, t, from, until)
		return
	}
	call := c.loadTable(obj, o)
	call.ahead = append(call.ahead, [2]int64{from, until})
}

// readAhead queues what is missing of the chunks from from to about until, and returns up to where it came before the
// budget was used up. c.mu is held.
func (c *Cache) readAhead(obj *object, o Object, t *table, from, until int64) int64 {
	defer c.dispatch()
	last := t.chunkAt(max(from, until-c.opts.ChunkSize/2))
	for k := t.chunkAt(from); k <= last; k++ {
		lo, hi := t.chunk(k)
		c.dropMisfits(obj, t, max(lo, t.floor(from)), hi)
		for _, g := range obj.gaps(max(lo, t.floor(from)), hi) {
			if !c.addBehind(obj, o, t, g, ahead) {
				return max(from, g[0])
			}
		}
	}
	return until
}
