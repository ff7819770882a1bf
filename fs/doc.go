// Package fs is the POSIX view of a volume: a FUSE file system whose every name
// and inode is one of the source directory below. It is the only package that
// knows FUSE. Where the bytes of a segment are is the business of package tier;
// fs asks it for each request and keeps no answer.
//
// # What it promises
//
//   - Below is reached by descriptors and file handles only, never by a path, so
//     that the mount may cover the source itself.
//   - What the daemon holds for an inode is a number, a file handle, a type and
//     the kernel's lookup count; for an open file it is a descriptor, the inode's
//     number and the open flags. A successor can rebuild all of it: there is no
//     path, no position and no unwritten byte in this process. An inode that has
//     lost its last name has a descriptor until the kernel forgets it.
//   - A number of an inode is never given to another one while the mount lives.
//     Hard links share a number, because inodes are found by handle.
//   - A READ is answered in full, up to the end of the file, or with an error.
//   - ENOSYS is never an answer (but one: see Lseek): the kernel would stop asking. One table, in
//     errno.go, turns errors into numbers; what it does not know is EIO.
//   - No lock of this package is held while a request waits for the store.
//   - Nothing here touches the mount: a daemon that waits for an answer of its own
//     could not be killed.
//
// # The kernel's caches
//
// Only tierfs changes the tree, so names, missing names and attributes are valid
// for an hour, and pages until memory is short. When the volume changes something
// behind the kernel's back (the blocks of an evicted segment), it says so, and a
// goroutine of its own tells the kernel.
//
// # A successor
//
// A server may die at any moment, and another process serve the same mount on
// ([TakeOver]). The kernel keeps what was not answered and sends it again; until then
// callers wait. What a successor needs is in a [holder.Table], changed before the
// kernel learns of a change; descriptors of inodes without a name are with a [Keeper].
// A request that was carried out and not answered is answered as the first time.
// Requests and replies pass through memory that is locked, if that is allowed: see
// [Server.Locked].
//
// # Limits
//
//   - POSIX ACLs are neither shown nor set. Locks are the kernel's.
//   - File systems that are mounted below the source are not shown: EXDEV.
//   - An inode that is gone below, behind the mount's back, answers ESTALE.
//
// Nothing is kept on disk.
package fs
