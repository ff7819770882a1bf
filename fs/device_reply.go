package fs

import "github.com/hanwen/go-fuse/v2/fuse"

// inPlace is the result of a READ whose bytes the handler has put at the beginning
// of the READ's own buffer, which is a part of the reply: nothing is copied again.
type inPlace int

// Size is how many bytes there are.
func (n inPlace) Size() int { return int(n) }

// Bytes is for a caller that has not given the reply itself to the handler.
func (n inPlace) Bytes(buf []byte) ([]byte, fuse.Status) { return buf[:n], fuse.OK }

// Readv finds the bytes in dst already.
func (n inPlace) Readv(dst [][]byte) (int, fuse.Status) { return int(n), fuse.OK }

// Done has nothing to give back.
func (n inPlace) Done() {}
