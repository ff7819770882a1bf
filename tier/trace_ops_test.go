package tier

import (
	"errors"
	"os"
	"path/filepath"
)

func evictFirst(w *world) error { return w.evict("t-0", w.starts[0]) }

// leaving is an eviction that waits for its last reader.
func leaving(w *world) {
	uploaded(w)
	w.crashIn("evict:empty", func() { _ = evictFirst(w) })
}

func tracedOperations() []tracedOperation {
	var all []tracedOperation
	for _, ops := range [][]tracedOperation{tracedUploads(), tracedMutations(), tracedMoves(), tracedReturns(), tracedBoots()} {
		all = append(all, ops...)
	}
	return all
}

func tracedUploads() []tracedOperation {
	return []tracedOperation{
		{name: "mint", prepare: func(w *world) {
			w.close()
			w.do(os.RemoveAll(filepath.Join(w.path, stateDir)))
		}, run: (*world).tryOpen},
		{name: "claim", prepare: local, run: claim},
		{name: "claim again", prepare: both(claimed, (*world).reopen), run: claim},
		{name: "upload", prepare: local, run: proveUpload(0)},
		{name: "upload of another", prepare: uploaded, run: proveUpload(1)},
		{name: "upload overtaken", prepare: local, run: func(w *world) error {
			err := proveUpload(0, write)(w)
			if r := (*Refused)(nil); !errors.As(err, &r) {
				return errors.Join(err, errors.New("the upload was not refused"))
			}
			return nil
		}},
		{name: "evict", prepare: uploaded, run: evictFirst},
		{name: "evict what was found", prepare: both(uploaded, (*world).reopen), run: evictFirst},
		{name: "retire", prepare: func(w *world) {
			uploaded(w)
			w.do(write(w))
			claimed(w)
		}, run: (*world).retireDue},
	}
}

func tracedMutations() []tracedOperation {
	return []tracedOperation{
		{name: "write uploaded", prepare: uploaded, run: write},
		{name: "truncate uploaded", prepare: uploaded, run: mutation(Truncate, 100, truncate(100))},
		{name: "empty uploaded", prepare: uploaded, run: empty(first)},
		{name: "punch uploaded", prepare: uploaded, run: mutation(Allocate, 0, punch(0, 100))},
		{name: "write leaving", prepare: leaving, run: write},
		{name: "write remote", prepare: remote, run: write},
		{name: "truncate remote", prepare: remote, run: mutation(Truncate, 100, truncate(100))},
		{name: "empty remote", prepare: remote, run: empty(first)},
		{name: "empty filling", prepare: remote, run: filling(empty(first))},
		{name: "punch remote", prepare: remote, run: mutation(Allocate, 0, punch(0, 100))},
	}
}

func tracedMoves() []tracedOperation {
	overUploaded := both(remote, func(w *world) { w.do(w.upload("t-0", w.starts[1])) })
	return []tracedOperation{
		{name: "unlink uploaded", prepare: uploaded, run: unlink},
		{name: "unlink leaving", prepare: leaving, run: unlink},
		{name: "unlink remote", prepare: remote, run: unlink},
		{name: "unlink filling", prepare: remote, run: filling(unlink)},
		{name: "rename uploaded", prepare: uploaded, run: rename(first, deleted)},
		{name: "rename leaving", prepare: leaving, run: rename(first, deleted)},
		{name: "rename remote", prepare: remote, run: rename(first, deleted)},
		{name: "rename filling", prepare: remote, run: filling(rename(first, deleted))},
		{name: "rename over uploaded", prepare: withSwap(uploaded), run: replace},
		{name: "rename over remote", prepare: withSwap(remote), run: replace},
		{name: "rename over filling", prepare: withSwap(remote), run: filling(replace)},
		{name: "rename remote over local", prepare: remote, run: rename(first, second)},
		{name: "rename remote over uploaded", prepare: overUploaded, run: rename(first, second)},
		{name: "rename uploaded over remote", prepare: overUploaded, run: rename(second, first)},
		{name: "rmdir", prepare: func(w *world) { // a record beside nothing, as a crash leaves it
			uploaded(w)
			w.empty("t-0")
			w.do(os.Remove(filepath.Join(w.path, "t-0", partitionFile)))
			w.do(os.Rename(filepath.Join(w.path, ".tierfs/tombstones", w.below(".tierfs/tombstones")[0]),
				filepath.Join(w.path, "t-0", uploadedName(first(w)))))
		}, run: func(w *world) error { return w.v.Rmdir(w.dir("."), "t-0") }},
	}
}

func tracedReturns() []tracedOperation {
	return []tracedOperation{
		{name: "rehydrate", prepare: remote, run: rehydrate},
		{name: "rehydrate from a bad object", prepare: func(w *world) {
			remote(w)
			w.store.Corrupt(w.logObjects()[0], func(b []byte) []byte { b[0]++; return b })
		}, run: func(w *world) error {
			if rehydrate(w) == nil {
				return errors.New("bad bytes were taken")
			}
			return nil
		}},
	}
}

// tracedBoots are starts behind a kill.
func tracedBoots() []tracedOperation {
	upload := func(w *world) error { return w.upload("t-0", w.starts[0]) }
	cut := func(w *world) { w.do(os.Truncate(filepath.Join(w.path, "t-0", remoteName(first(w))), 100)) }
	all := []tracedOperation{
		{name: "boot of an intent", prepare: crashed(local, "upload:record", upload)},
		{name: "boot of an intent that ended", prepare: crashed(local, "upload:intent-gone", upload)},
		{name: "boot of an eviction", prepare: crashed(uploaded, "evict:empty", evictFirst)},
		{name: "boot of an emptied eviction", prepare: both(crashed(uploaded, "evict:empty", evictFirst), cut)},
		{name: "boot of an eviction that ended", prepare: crashed(uploaded, "evict:record", evictFirst)},
		{name: "boot of a fill", prepare: both(crashed(remote, "rehydrate:fill:done", rehydrate), cut)},
		{name: "boot of a whole fill", prepare: crashed(remote, "rehydrate:fsync", rehydrate)},
		{name: "boot of a truncation", prepare: crashed(remote, "truncate:empty", empty(first))},
		{name: "boot of an unlink", prepare: crashed(both(remote, indexGone), "unlink:tombstone", whileFilling(unlink))},
		{name: "boot of a replacement", prepare: crashed(withSwap(remote), "rename:discard", replace)},
		{name: "boot of a replacement to come", prepare: crashed(withSwap(remote), "rename:name", replace)},
	}
	for i := range all {
		all[i].run, all[i].found = (*world).tryOpen, true
	}
	return all
}
