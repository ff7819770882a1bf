// Package powercut shows what a power cut leaves: the real daemon serves a source on an ext4 of its own, a load that behaves like a
// broker works on it, and the disk below stops at many moments, with what was not flushed lost, kept, or kept in part.
//
// The disk is a loop device over one file of a small FUSE file system, which a child process serves and which writes down every
// write and every flush, in order. At a cut it holds all requests while the ledger of the load and the store are copied; the
// store is another machine, so it has all that it has acknowledged. Afterwards, for each cut, an image is made of the
// disk's log: all that was flushed, and of the rest some blocks of 4 KiB, chosen by a seed. The image is mounted (which replays
// its journal), a fresh daemon serves it with the store as it was, and everything is read and held against the ledger.
//
// What has to be there: the bytes of a file as of its last fsync that returned; a name, a rename and an unlink whose directory was
// fsynced since; a name whose file was fsynced after its creation, which is ext4's promise. What came later may be there or not, zeros
// where a size arrived before its bytes; but a rename is done or not done. `tierfs check --deep` may name only segments
// that the load had not fsynced, and no object may be in the store that nothing on the disk names. Then everything that may be
// evicted is, and has to read as before.
//
// Other tests cut where tierfs owes a flush to the store or to its next mount, and show that a lie is seen.
//
// TIERFS_SOAK=1 makes many cuts, and several images of each.
package powercut
