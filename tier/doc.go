// Package tier is the sole owner of the answer to one question: where are a
// segment's bytes? It keeps the catalog of a volume's segments, takes each of
// them through its durable steps, and gives every READ its source.
//
// # What it promises
//
//   - No local copy goes before a verified object of exactly these bytes exists
//     and a durable record names it.
//   - A key is used once. Whatever changes a segment's bytes first turns the
//     record of its object into a tombstone, durably. A start takes one back only
//     below the valid marker of a remote segment: nothing was changed then, and the
//     object is the only copy.
//   - A read of a remote segment gives exactly the segment's bytes, or fails.
//   - No lock is held across the store, a checksum of a file, or a flush of data.
//   - A crash between any two steps leaves a state that [Open] finishes or undoes.
//
// # On disk
//
// Below the volume's root, in a directory that the mount never shows:
//
//	.tierfs/lock                      held (flock) by the one process that serves the volume
//	.tierfs/volume                    JSON: id, name; written once, never replaced: its inode is part of the instance
//	.tierfs/epoch                     JSON: epoch and nonce of the last mount; replaced at each
//	.tierfs/reserve/{00 to 07}        nothing: room for tierfs' own files on a disk that is full
//	.tierfs/reserve/late              nothing: room for what the kernel has accepted; shorter while it is used
//	.tierfs/root                      JSON: mode and owner of the root as the broker sees them
//	.tierfs/partitions/{incarnation}  JSON: key prefix, path at minting, layout
//	.tierfs/intents/{upload}          record: an upload that has begun
//	.tierfs/tombstones/{upload}       record: an object that goes after the grace
//	.tierfs/unlinked/{upload}         the inode of a segment that lost its names while it was open, if no
//	                                  tombstone is that; for a successor, gone with the last handle
//
// where {upload} is {incarnation}-{start:020}-{upload id}. In a partition's
// directory:
//
//	.tierfs-partition                 JSON: incarnation, or why the partition is never tiered
//	N.log                             a local segment
//	N.uploaded                        record beside N.log: the object of exactly these bytes exists;
//	                                  its times are N.log's while a step may move those
//	N.remote                          the segment's own inode, emptied; its content is the record
//
// Records are those of package marker. For a name that is not a segment's own
// (N.log.deleted, or a hard link), ".uploaded" and ".remote" are appended to the
// whole name.
//
// # Locks
//
// In this order: two files' locks in the order of their handles; then the lock of
// a directory's listings; then the volume's catalog lock, which is a leaf. Lookups
// take no lock.
package tier
