package tier

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
)

// event is one line of a trace: a system call, a call of the store, or the
// beginning of a step.
type event struct {
	op    string   // "rename", "fsync", ...; "step"; "store"
	paths []string // relative to the volume; of a step its name; of the store the operation and the key
}

func (e event) String() string {
	if e.op == "step" {
		return "-- " + e.paths[0]
	}
	return e.op + " " + strings.Join(e.paths, " ")
}

type trace struct{ events []event }

func (t *trace) String() string {
	var b strings.Builder
	last := ""
	for _, e := range t.events {
		if line := e.String(); line != last { // one of a file written in pieces
			b.WriteString(line + "\n")
			last = line
		}
	}
	return b.String()
}

// calls are those that change something on the disk or make it durable, under the
// names that the traces give them. byFD: their first argument alone is the file.
var calls = map[string]struct {
	op   string
	byFD bool
}{
	"openat": {"create", false}, "open_by_handle_at": {"create", false}, "mkdirat": {"mkdir", false},
	"write": {"write", true}, "pwrite64": {"write", true}, "writev": {"write", true}, "copy_file_range": {"write", true},
	"fsync": {"fsync", true}, "fdatasync": {"fdatasync", true}, "sync_file_range": {"sync-range", true}, "syncfs": {"syncfs", true},
	"ftruncate": {"truncate", true}, "fallocate": {"allocate", true},
	"renameat": {"rename", false}, "renameat2": {"rename", false}, "linkat": {"link", false}, "symlinkat": {"symlink", false},
	"unlinkat": {"unlink", false}, "mknodat": {"mknod", false},
	"fstat": {"", true}, "pread64": {"", true}, // these only tell what a descriptor is: of a handle strace does not know
	"utimensat": {"times", false}, "fchmod": {"chmod", true}, "fchown": {"chown", true}, "fsetxattr": {"xattr", true},
	// Not every machine has these.
	"?open": {"create", false}, "?creat": {"create", false}, "?rename": {"rename", false}, "?link": {"link", false},
	"?unlink": {"unlink", false}, "?mkdir": {"mkdir", false}, "?rmdir": {"unlink", false}, "?truncate": {"truncate", false},
}

func tracedCalls() []string {
	var out []string
	for name := range calls {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

var (
	straceLine = regexp.MustCompile(`^(\w+)\((.*)\)\s+= (-?\d+)(?:<([^>]*)>)?`)
	straceFD   = regexp.MustCompile(`(\d+|AT_FDCWD)<([^>]*)>(?:\(deleted\))?(?:, "([^"]*)")?`)
	straceName = regexp.MustCompile(`"([^"]*)"`)
	procFD     = regexp.MustCompile(`^/proc/self/fd/(\d+)$`)
)

// straceReader turns the lines of strace into events.
type straceReader struct {
	unfinished map[string]string // by thread
	fds        map[string]string // the paths that descriptors had last
	now        *trace            // nil between two operations
	root       string
	names      renamer
	traces     map[string]*trace
}

func parseStrace(r io.Reader) (map[string]*trace, error) {
	s := &straceReader{unfinished: map[string]string{}, fds: map[string]string{}, traces: map[string]*trace{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		thread, line, _ := strings.Cut(lines.Text(), " ")
		line = strings.TrimSpace(line)
		if begun, ok := strings.CutSuffix(line, " <unfinished ...>"); ok {
			s.unfinished[thread] = begun
			continue
		}
		if _, rest, ok := strings.Cut(line, " resumed>"); ok && strings.HasPrefix(line, "<... ") {
			line = s.unfinished[thread] + rest
			delete(s.unfinished, thread)
		}
		if err := s.line(line); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return s.traces, lines.Err()
}

func (s *straceReader) line(line string) error {
	m := straceLine.FindStringSubmatch(line)
	if m == nil {
		return nil // a thread's end
	}
	if m[1] == "syscall_0x1c3" {
		return nil // cachestat, which strace may not know by its name; it only looks
	}
	call, ok := calls[m[1]]
	if !ok {
		if call, ok = calls["?"+m[1]]; !ok {
			return fmt.Errorf("a call that was not asked for")
		}
	}
	paths := s.paths(m[2], call.byFD)
	if len(paths) > 0 {
		if what, ok := strings.CutPrefix(paths[0], traceRoot+"/"); ok {
			s.said(what)
			return nil
		}
	}
	failed := strings.HasPrefix(m[3], "-")
	if call.op == "create" && !failed {
		s.fds[m[3]] = m[4]
	}
	if s.now == nil || failed || call.op == "" {
		return nil
	}
	if call.op == "create" && !strings.Contains(m[2], "O_CREAT") && !strings.Contains(m[2], "O_TRUNC") {
		return nil
	}
	for i, p := range paths {
		rel, ok := strings.CutPrefix(p, s.root)
		if !ok {
			return nil
		}
		paths[i] = s.names.path(strings.TrimPrefix(rel, "/"))
	}
	if len(paths) == 0 {
		return fmt.Errorf("a call of no file")
	}
	s.now.events = append(s.now.events, event{call.op, paths})
	return nil
}

// paths are the files that a call is about. What the path of a descriptor is may
// have changed since it was opened; strace looks at each call.
func (s *straceReader) paths(args string, byFD bool) (out []string) {
	found := straceFD.FindAllStringSubmatch(args, -1)
	for _, m := range found {
		s.fds[m[1]] = m[2]
		name := m[3]
		if fd := procFD.FindStringSubmatch(name); fd != nil && !byFD {
			if out = append(out, s.fds[fd[1]]); s.fds[fd[1]] == "" {
				out = append(out[:len(out)-1], s.root+"/?")
			}
			continue
		}
		switch {
		case byFD:
			return []string{m[2]}
		case strings.HasPrefix(name, "/"):
			out = append(out, name)
		default:
			out = append(out, path.Join(m[2], name))
		}
	}
	if len(found) == 0 {
		for _, m := range straceName.FindAllStringSubmatch(args, -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// said takes what the child says.
func (s *straceReader) said(what string) {
	word, rest, _ := strings.Cut(what, "/")
	switch {
	case word == "begin":
		s.now, s.root, s.names = &trace{}, "/"+rest, renamer{}
	case s.now == nil: // while it prepares
	case word == "end":
		s.traces[rest] = s.now
		s.now = nil
	case word == "step":
		s.now.events = append(s.now.events, event{"step", []string{rest}})
	case word == "store":
		op, key, _ := strings.Cut(rest, "/")
		s.now.events = append(s.now.events, event{"store", []string{op, s.names.path(key)}})
	}
}

var random = regexp.MustCompile(`\.tierfs-tmp-[0-9a-zA-Z]+|\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b|\b\d{20}\b`)

// renamer gives what is random, or long, a name by its kind and first appearance.
type renamer map[string]string

func (r renamer) path(p string) string {
	if p == "" {
		return "."
	}
	return random.ReplaceAllStringFunc(p, func(s string) string {
		if r[s] == "" {
			kind := "upload"
			switch {
			case strings.HasPrefix(s, ".tierfs-tmp-"):
				kind = "temp"
			case len(s) == 32:
				kind = "incarnation"
			case len(s) == 20:
				return "N" + strings.TrimLeft(s, "0")
			}
			n := 1
			for _, have := range r {
				if strings.HasPrefix(have, kind) {
					n++
				}
			}
			r[s] = fmt.Sprint(kind, n)
		}
		return r[s]
	})
}
