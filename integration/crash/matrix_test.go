package crash

import (
	"errors"
	"os"
	"slices"
)

// group is the scenarios that share a volume.
type group struct {
	name      string
	scenarios []*scenario
}

func groups() []group {
	return []group{
		{"tiering", tiering()},
		{"bringing back", bringingBack()},
		{"removing", removing()},
		{"renaming", renaming()},
		{"identity", identity()},
	}
}

func tiering() []*scenario {
	return []*scenario{{
		name: "upload", finds: none,
		steps: []string{"upload:fsync", "mint:registry", "mint:partition", "upload:intent", "upload:record", "upload:intent-gone"},
		boot:  map[point][]string{"upload:intent:done": {"boot:tombstone"}, "upload:record:done": {"boot:intent"}},
		run:   simple(func(_ *volume, p *partition, _ int) error { return p.fill() }),
	}, {
		name: "upload of a segment that changes", finds: none, quiet: true,
		steps: []string{"upload:abort"},
		run:   changingUpload,
	}, {
		name: "evict", finds: uploaded,
		steps: []string{"evict:leave", "evict:times", "evict:rename", "evict:dirsync", "evict:empty", "evict:record"},
		boot:  map[point][]string{"evict:rename:done": {"boot:back"}, "evict:empty:done": {"boot:record"}},
		run:   simple(evict),
	}, {
		name: "evict what is needed", finds: uploaded, quiet: true,
		steps: []string{"evict:back"},
		run:   held("evict:leave:done", evicting, turns(touchFirst, renameFirst, unlinkFirst, emptyFirst)),
	}, {
		name: "evict what the store lost", finds: uploaded, quiet: true, says: "an object is lost",
		steps: []string{"evict:tombstone"},
		before: func(v *volume, p *partition) error {
			object, err := p.object(0)
			if err != nil {
				return err
			}
			return errors.Join(v.daemon.Kill(), os.Remove(object), v.restart())
		},
		run:   simple(evict),
		after: evictAll,
	}, {
		name: "upload where a lost segment was", finds: uploaded, quiet: true,
		steps: []string{"upload:tombstone"},
		before: func(v *volume, p *partition) error {
			if err := v.daemon.Kill(); err != nil {
				return err
			}
			return errors.Join(v.loseBelow(p.log(0)), v.restart())
		},
		run: simple(func(v *volume, p *partition, _ int) error {
			b, _, _, _ := content(p.starts[0], 2)
			b[epochAt+3] = 5
			return v.put(p.log(0), b)
		}),
		after: evictAll, // which compares what a start found beside the record of the lost one
	}}
}

// changingUpload writes into segments between the intents and the records of their uploads. Other uploads may be held up first:
// they go on, and it is tried again.
func changingUpload(v *volume, p *partition, armed point, round int) error {
	if err := p.fill(); err != nil {
		return err
	}
	touchAll := func(epoch int) error {
		for i := range sealed {
			if err := v.touch(p.log(i), byte(epoch)); err != nil {
				return err
			}
		}
		return nil
	}
	for try := round; !v.death.hasCome(); try++ {
		from := v.daemon.Log().Len()
		v.order("hold upload:intent:done", armed.order(v.verb))
		if err := touchAll(2 * try); err != nil {
			return err
		}
		if err := v.holding("upload:intent:done", from); err != nil {
			if v.death.hasCome() {
				return nil
			}
			return err
		}
		err := touchAll(2*try + 1)
		v.order(armed.order(v.verb))
		if err != nil {
			return err
		}
		err = v.eventually("end of the upload that was held", func() (bool, error) {
			left, err := os.ReadDir(v.below(".tierfs/intents"))
			return len(left) == 0 || v.death.hasCome(), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func bringingBack() []*scenario {
	return []*scenario{{
		name: "change an uploaded segment", finds: uploaded, quiet: true,
		steps: []string{"mutate:tombstone"},
		run:   simple(turns(touchFirst, emptyFirst, cutFirst)),
	}, {
		name: "change a remote segment", finds: remote, quiet: true,
		steps: []string{"rehydrate:record", "rehydrate:fill", "rehydrate:fsync", "rehydrate:name", "mutate:tombstone"},
		boot:  map[point][]string{"rehydrate:fill:done": {"boot:back"}},
		run:   simple(turns(touchFirst, cutFirst)),
	}, {
		name: "change a remote segment that the store lost", finds: remote, quiet: true,
		steps: []string{"rehydrate:empty", "rehydrate:record@2"},
		run:   withoutObject(touchFirst),
	}, {
		name: "empty a remote segment", finds: remote, quiet: true,
		steps: []string{"truncate:record", "truncate:empty", "truncate:name", "truncate:tombstone"},
		boot:  map[point][]string{"truncate:empty:done": {"boot:empty", "boot:record"}, "truncate:name:done": {"boot:tombstone"}},
		run:   simple(emptyFirst),
	}}
}

func removing() []*scenario {
	return []*scenario{{
		name: "unlink an uploaded segment", finds: uploaded,
		steps: []string{"unlink:tombstone", "unlink:name"},
		run:   simple(turns(deleteFirst, unlinkFirst)),
	}, {
		name: "unlink a remote segment", finds: remote,
		steps: []string{"unlink:remote"},
		run:   simple(turns(unlinkFirst, deleteFirst)),
	}, {
		name: "unlink a segment that comes back", finds: remote, quiet: true,
		steps: []string{"unlink:name", "unlink:tombstone"},
		run:   held("rehydrate:fill:done", filling, unlinkFirst),
	}, {
		name: "unlink a segment without an index that comes back", finds: remote, quiet: true,
		boot:   map[point][]string{"unlink:name:done": {"boot:tombstone"}},
		before: func(v *volume, p *partition) error { return v.unlink(p.index(0)) },
		run:    held("rehydrate:fill:done", filling, unlinkFirst),
	}, {
		name: "unlink one of two names of a segment that comes back", finds: remote, quiet: true,
		steps:  []string{"unlink:record"},
		before: func(v *volume, p *partition) error { return v.link(p.log(0), p.log(0)+".backup") },
		run:    held("rehydrate:fill:done", filling, unlinkFirst),
	}, {
		name: "delete a topic", finds: remote,
		steps: []string{"rename:dir", "rmdir:hidden", "rmdir"},
		run:   simple(func(_ *volume, p *partition, _ int) error { return p.deleteTopic() }),
	}, {
		name: "delete a directory with a record beside nothing", finds: uploaded, quiet: true,
		steps: []string{"leftover:tombstone"},
		before: func(v *volume, p *partition) error {
			for _, path := range v.ledger.below(p.dir + "/") {
				if path != p.dir+"/" && path != p.log(0) {
					if err := v.unlink(path); err != nil {
						return err
					}
				}
			}
			return v.loseBelow(p.log(0))
		},
		run: simple(func(v *volume, p *partition, _ int) error { return v.rmdir(p.dir) }),
	}, {
		name: "retire", finds: remote, quiet: true, closed: true,
		steps: []string{"retire:delete", "retire:tombstone", "retire:registry"},
		run:   simple(func(_ *volume, p *partition, _ int) error { return p.deleteTopic() }),
	}}
}

func renaming() []*scenario {
	return []*scenario{{
		name: "rename an uploaded segment", finds: uploaded, quiet: true,
		steps: []string{"rename:name", "rename:record"},
		run:   simple(renameFirst),
	}, {
		name: "rename a remote segment", finds: remote, quiet: true,
		steps: []string{"rename:name"},
		run:   simple(renameFirst),
	}, {
		name: "rename a segment that comes back", finds: remote, quiet: true,
		steps: []string{"rename:copy", "rename:name", "rename:discard"},
		boot:  map[point][]string{"rename:name:done": {"boot:leftover"}},
		run:   held("rehydrate:fill:done", filling, renameFirst),
	}, {
		name: "replace an uploaded segment", finds: uploaded, quiet: true,
		steps:  []string{"rename:tombstone", "rename:name"},
		before: putReplacement,
		run:    simple(replaceFirst),
	}, {
		name: "replace a remote segment", finds: remote, quiet: true,
		steps:  []string{"rename:tombstone", "rename:name", "rename:discard"},
		boot:   map[point][]string{"rename:tombstone:done": {"boot:unbury"}, "rename:name:done": {"boot:twin"}},
		before: putReplacement,
		run:    simple(replaceFirst),
	}, {
		name: "replace a segment that comes back", finds: remote, quiet: true,
		steps:  []string{"rename:tombstone", "rename:name", "rename:discard"},
		before: putReplacement,
		run:    held("rehydrate:fill:done", filling, replaceFirst),
	}, {
		name: "exchange an uploaded segment", finds: uploaded, quiet: true,
		steps:  []string{"exchange:tombstone", "exchange:name"},
		before: putReplacement,
		run:    simple(func(v *volume, p *partition, _ int) error { return v.exchange(p.replacement(), p.log(0)) }),
	}, {
		name: "exchange remote segments", finds: remote, quiet: true,
		steps: []string{"exchange:name"},
		before: func(v *volume, p *partition) error {
			return errors.Join(v.rename(p.log(0), p.log(0)+".deleted"), v.rename(p.log(1), p.log(1)+".deleted"))
		},
		run: simple(func(v *volume, p *partition, _ int) error {
			return v.exchange(p.log(0)+".deleted", p.log(1)+".deleted")
		}),
	}, {
		name: "replace a local segment by a remote one", finds: remote, quiet: true,
		steps:  []string{"rename:replaced", "rename:name"},
		before: setAside,
		run:    simple(func(v *volume, p *partition, _ int) error { return v.rename(p.log(0)+".deleted", p.log(0)) }),
	}}
}

func identity() []*scenario {
	return []*scenario{{
		name: "claim",
		boot: map[point][]string{"": {"epoch:local", "epoch:store", "epoch:claimed"}},
	}, {
		name: "change the root's mode", quiet: true,
		steps: []string{"root:attr"},
		run: simple(func(v *volume, _ *partition, _ int) error {
			return os.Chmod(v.daemon.Mountpoint(), 0o750+os.FileMode(v.made.Add(1)%8)) // another one each time
		}),
	}, {
		name: "compact", finds: uploaded,
		steps: []string{"partition:never"},
		run: simple(func(v *volume, p *partition, _ int) error {
			b, _ := v.ledger.of(p.log(0))
			return v.put(p.log(0)+".swap", slices.Clone(b[:len(b)/2]))
		}),
	}}
}

// Steps of a volume of its own for each kill.
var (
	// mintSteps are reached at the first mount only.
	mintSteps = []string{"mint:volume", "reserve:take@4"}
	// fullSteps are reached on a disk without room.
	fullSteps = []string{"reserve:give"}
)
