// Package chunkcache reads ranges of immutable objects of an object store through a cache on a local disk. It knows keys,
// sizes and where batches start, and nothing of brokers.
//
// # What it promises
//
//   - A read gives exactly the bytes that were asked for, or an error: never fewer, never zeros, never another object's.
//   - Bytes from the store are served only after Object.Check has accepted the whole batches that they belong to; bytes
//     from the disk only after the checksums of their blocks have matched. Without an index there is no telling where
//     batches start: then only what begins at 0 is checked, as far as whole batches reach.
//   - A range is fetched once, however many readers wait for it. A reader that leaves does not end the fetch; one that has
//     not begun then goes behind those that somebody waits for, and of these only a few are kept. A fetch that
//     fails fails those who wait for it, once, and the next reader has it tried afresh. Each fetch ends when the store's
//     decorators say so; readers leave with their own contexts.
//   - The files on disk, together with what is reserved for those to come, never exceed the budget.
//   - A disk that fails costs speed, nothing else: reads go past it.
//   - Close ends and waits for everything.
//
// # Extents and chunks
//
// What the cache holds of an object is a set of extents that do not overlap. An extent is what one GET brought, and one file.
// It starts and ends at batch boundaries.
//
// A grid of chunks says what is fetched behind a read: chunk k starts at the batch boundary nearest to k × ChunkSize. It is a
// function of the index alone.
//
// A reader that misses has one GET sent, for its own range: from the boundary at or below it, and on for FirstFetch bytes at
// least. It is answered from memory when these are there and checked; readers that come later wait for their own bytes only.
// FirstFetch serves brokers that read a header first and then send what follows on a thread that must not wait.
//
// When that has succeeded, what is still missing of the chunk around it is fetched behind it: what follows in one GET, what
// stands before it in another, later. So no byte is fetched twice, at the price of one or two more requests a chunk that is
// entered in the middle; a scan has one request a chunk and one more at its beginning. The alternative, one GET of the whole
// chunk behind the small one, fetches every first range twice; and one GET from the read to the chunk's end, answered on the
// way, would keep a slot and bandwidth from the next reader for all of a chunk. The fill starts when the first GET has ended:
// it does not slow it, and a store that fails is not asked for more.
//
// A fill may be read while it grows. One that has not begun is given up when a reader wants bytes far inside it: those are
// fetched first, and what is left is planned again behind them.
//
// A reader that goes forward is read ahead of: one chunk, twice as many at each chunk that it comes to, up to ReadaheadMax.
// All that was read ahead and not read yet may take a quarter of the budget; 30 s later it goes before all else.
//
// Readers come before fills, fills before what is read ahead; the last quarter of the slots is for readers alone.
//
// # Memory
//
// A fetch under way has its extent in memory; together they are bounded by 32 MiB (or one extent), complete ones that wait
// for a slow disk by 24 MiB, and those that cannot be written by 16 MiB. Decoded indexes and checksums of closed files
// share Options.Memory. An extent costs about 150 bytes, an object that has extents about 500 and 300 more once it has been
// read; an object of which nothing is cached costs nothing. Up to 512 files are kept open.
//
// # On disk
//
// Nothing here is flushed: a crash may lose or damage any of it, and the checksums tell. Everything is reached relative to
// the directory's descriptor:
//
//	CACHEDIR.TAG                            for backup programs
//	access                                  the access table
//	chunks/{object}-{readable}/             object: 32 hex digits, the first 16 bytes of the key's SHA-256
//	                                        readable: the key's last 160 bytes, with _ for what is not [A-Za-z0-9._-]
//	chunks/…/{start:020}-{length}-{nonce}   an extent; start and length in bytes, nonce in 16 hex digits
//	*.part                                  a file that is being written; renamed when it is complete
//
// A nonce is never used twice, so that removing a file late can never hit its successor. In chunks everything else is
// removed at the start; beside it nothing is touched.
//
// An extent's file, little-endian:
//
//	 0 magic "TIERFSCH"         16 start u64                 48 nonce u64
//	 8 version u16 = 1          24 length u64, n             56 zeros
//	10 zeros u16                32 object, 16 bytes          64 XXH3-64 of each block, u64
//	12 block size u32 = 16384
//
// then the XXH3-64 of all bytes before it, zeros up to a multiple of 4096, and the n bytes of the object. The last block may
// be short.
//
// The access table: magic "TIERFSAC", then for each file its nonce u64 and the time of its last read i64 (ns since 1970), then
// the XXH3-64 of all before it. It is written every minute and at Close. Files that it lacks count by their mtime.
//
// Files that were cut by another index than today's are used as they are while they are whole; where they border on a range
// that must be fetched and are not cut at one of today's boundaries, they are dropped.
package chunkcache
