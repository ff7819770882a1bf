// Package upload is the background of a volume: it takes sealed segments to the
// object store, drops local copies that retention does not keep, and deletes the
// objects of segments that are gone.
//
// Three loops share nothing but the volume:
//
//   - The uploader (uploader.go) has a lane for each partition with work. A lane
//     uploads its oldest segment first and one at a time, and reads and proves the
//     one behind it meanwhile (ahead.go); how many lanes run at once grows with the
//     backlog.
//   - The evictor (evictor.go) drops local copies by age, by size, and when the
//     disk fills up, the oldest of a partition first.
//   - The retirer (retirer.go) deletes what has a tombstone whose grace is over.
//
// # What it promises
//
//   - It decides when, never whether: each step is package tier's, which looks at
//     every condition itself. No local copy goes because of a mistake made here.
//   - A segment's record is committed only after each of its objects was put and
//     proved to be what was sent.
//   - A failure is retried for ever, with a pause that grows; it blocks its own
//     partition and no other. While the whole store fails, one upload at a time
//     tries whether it is back.
//   - Nothing is put, evicted or deleted before the store has confirmed that this
//     mount owns the volume, or after it has said that it does not.
//   - The file system is never waited for and never made to wait: the loops hold
//     no lock of tier, have no queue that grows, and cost nothing while nothing
//     changes but one statfs and a look at what is due every few seconds.
//
// It keeps nothing on disk.
package upload
