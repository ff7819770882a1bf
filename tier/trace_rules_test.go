package tier

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// namesOfBroker are the steps that only do what the broker asked for: as below a
// native directory, it is durable when the broker syncs the directory. What stands
// after a crash between them is settled by the next start, whichever of the names
// have reached the disk.
var namesOfBroker = []string{
	"rename:name", "rename:record", "rename:discard", "rename:replaced", "unlink:name", "rmdir", "rmdir:hidden",
}

// checkTrace holds a trace against what holds for every durable step, and returns
// what it breaks. found: a predecessor was killed, so that nothing that it wrote
// counts as durable.
//
//   - A file of tierfs is synced before it gets a name, before a name of another
//     file goes because of it, and before the store is told.
//   - A change of names is synced, in each of its directories, before the next thing
//     happens and before the operation ends.
//   - The broker's own change of a name is durable before a record or a marker goes
//     that the old name needed.
//   - An intent is there before the first PUT, the proof before the record, the
//     record before the intent goes.
//   - Nothing is deleted before the store was asked who owns the volume.
func checkTrace(t *trace, found bool) []string {
	c := &traceChecker{dirty: map[string]bool{}, filled: map[string]bool{}, loose: map[string]string{}, unsynced: map[string]string{}, synced: map[string]bool{}, found: found}
	for _, e := range t.events {
		c.event(e)
	}
	c.settled("the end")
	return c.problems
}

type traceChecker struct {
	problems []string
	found    bool
	step     string
	dirty    map[string]bool   // files written and not synced
	filled   map[string]bool   // those that are nothing yet: a record stands beside them
	unsynced map[string]string // directories with changed names, and by what
	loose    map[string]string // the same of names that are the broker's to sync
	synced   map[string]bool   // files that were synced in this trace
	said     []string          // calls of the store, and what was renamed into place
}

func (c *traceChecker) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

func (c *traceChecker) event(e event) {
	file := e.paths[0]
	switch e.op {
	case "step":
		c.step = file
	case "store":
		c.store(e)
	case "fsync":
		delete(c.dirty, file)
		delete(c.filled, file)
		delete(c.unsynced, file)
		delete(c.loose, file)
		c.synced[file] = true
	case "write", "truncate", "allocate", "times", "chmod":
		c.settled(e.String())
		if c.step == "rehydrate:fill" {
			c.filled[file] = true
		} else if ofTierfs(file) {
			c.dirty[file] = true
		}
		delete(c.synced, file)
	case "create":
		c.settled(e.String()) // a temporary file or the lock: nothing relies on its name
	case "mkdir":
		c.settled(e.String())
		c.dirty[file] = true
	case "rename":
		c.rename(e)
	case "unlink":
		c.settled(e.String())
		c.clean(e)
		c.firm(e)
		if base, ok := strings.CutSuffix(file, uploadedSuffix); ok && c.found && !c.synced[base+remoteSuffix] {
			c.problem("%s before the fsync of %s", e, base+remoteSuffix)
		}
		if path.Base(path.Dir(file)) == "intents" && !c.after("record ", uploadIn(file)) && !c.found {
			c.problem("%s: no record is there", e)
		}
		c.named(path.Dir(file), e)
	default:
		c.problem("%s: what is this?", e)
	}
}

func ofTierfs(file string) bool {
	return Hidden(path.Base(file)) || strings.HasPrefix(file, stateDir) || strings.HasPrefix(path.Base(file), "temp")
}

// settled: no name is changed and not synced.
func (c *traceChecker) settled(before string) {
	for _, dir := range slices.Sorted(maps.Keys(c.unsynced)) {
		c.problem("%s before the fsync of %s after %s", before, dir, c.unsynced[dir])
	}
}

// clean: no file of tierfs is written and not synced.
func (c *traceChecker) clean(e event) {
	for _, file := range slices.Sorted(maps.Keys(c.dirty)) {
		c.problem("%s before the fsync of %s", e, file)
	}
}

// firm: the broker's changes of names are durable before what they stood by goes.
func (c *traceChecker) firm(e event) {
	if !strings.HasSuffix(e.paths[0], remoteSuffix) && !strings.HasSuffix(e.paths[0], uploadedSuffix) {
		return
	}
	for _, dir := range slices.Sorted(maps.Keys(c.loose)) {
		c.problem("%s before the fsync of %s after %s", e, dir, c.loose[dir])
	}
}

// named notes a change of names in a directory.
func (c *traceChecker) named(dir string, e event) {
	switch {
	case !slices.Contains(namesOfBroker, c.step):
		c.unsynced[dir] = e.String()
	case c.step == "rename:name" || c.step == "unlink:name":
		c.loose[dir] = e.String()
	}
}

func (c *traceChecker) rename(e event) {
	from, to := e.paths[0], e.paths[1]
	c.settled(e.String())
	c.clean(e)
	if strings.HasPrefix(to, stateDir+"/tombstones/") {
		c.firm(e)
	}
	back := strings.HasSuffix(from, remoteSuffix) && !strings.HasSuffix(to, remoteSuffix)
	if back && path.Dir(from) == path.Dir(to) && (c.filled[from] || c.found && !c.synced[from]) {
		c.problem("%s before the fsync of %s", e, from)
	}
	c.named(path.Dir(to), e)
	if path.Dir(from) != path.Dir(to) {
		c.named(path.Dir(from), e)
	}
	switch {
	case path.Base(path.Dir(to)) == "intents":
		c.said = append(c.said, "intent "+to)
	case strings.HasSuffix(to, uploadedSuffix) && strings.HasPrefix(c.step, "upload:"):
		if !c.after("head ", ".log") {
			c.problem("%s: nobody has looked at what the store has", e)
		}
		c.said = append(c.said, "record "+to)
	}
	if c.filled[from] {
		delete(c.filled, from)
		c.filled[to] = true
	}
}

func (c *traceChecker) store(e event) {
	op, key := e.paths[0], e.paths[1]
	switch op {
	case "put":
		c.settled(e.String())
		c.clean(e)
		if path.Base(key) != ownerName && !c.after("intent ", uploadIn(key)) {
			c.problem("%s: no intent says so", e)
		}
	case "delete":
		c.settled(e.String())
		if !c.after("get ", ownerName) {
			c.problem("%s: nobody has asked who owns the volume", e)
		}
	}
	c.said = append(c.said, op+" "+key)
}

// uploadIn is the part of a path that names an upload.
func uploadIn(path string) string {
	i := strings.Index(path, "upload")
	if i < 0 {
		return ""
	}
	id, _, _ := strings.Cut(path[i:], ".")
	return id
}

// after reports whether something was said that begins and goes on so; of a record
// the file does not tell the upload.
func (c *traceChecker) after(begin, within string) bool {
	return slices.ContainsFunc(c.said, func(s string) bool {
		return strings.HasPrefix(s, begin) && (begin == "record " || strings.Contains(s, within))
	})
}
