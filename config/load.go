package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// DefaultFile is read when no other file is named, if it is there.
const DefaultFile = "/etc/tierfs/tierfs.toml"

// Kinds of sources, from the weakest to the strongest.
const (
	FromDefault = "default"
	FromFile    = "file"
	FromEnv     = "environment"
	FromFlag    = "flag"
)

// Origin is where a value came from.
type Origin struct {
	Source string // one of the kinds of sources
	Where  string // "/etc/tierfs/tierfs.toml:12", "TIERFS_CACHE_SIZE", "--cache-size"; "" for a default
}

// String is one word or two, for people.
func (o Origin) String() string {
	if o.Source == FromDefault {
		return FromDefault
	}
	return o.Source + " " + o.Where
}

// Setting is one value from the command line.
type Setting struct {
	Path  string // the key
	Value string
	Where string // "--cache-size", or the argument's name
}

// Input is what Load puts together.
type Input struct {
	File  string    // must be there; "" = DefaultFile if it is there
	Env   []string  // as os.Environ has it
	Flags []Setting // a later one beats an earlier one
}

// Load returns the effective settings, not yet validated. Errors are *Error,
// or what the system says of a file that cannot be read.
func Load(in Input) (*Config, error) {
	c := Default()
	c.origins = make(map[string]Origin)
	l := loader{cfg: c, keys: make(map[string]key)}
	for _, k := range c.keys() {
		l.keys[k.path] = k
	}
	if err := l.file(in.File); err != nil {
		return nil, err
	}
	if err := l.environment(in.Env); err != nil {
		return nil, err
	}
	for _, s := range in.Flags {
		if err := l.text(s.Path, s.Value, Origin{FromFlag, s.Where}); err != nil {
			return nil, err
		}
	}
	if err := l.topics(); err != nil {
		return nil, err
	}
	return c, nil
}

// loader fills one Config.
type loader struct {
	cfg         *Config
	keys        map[string]key
	topicTables []map[string]any // of the strongest source that has them
	topicOrigin func(path string) Origin
}

func (l *loader) file(path string) error {
	name := path
	if name == "" {
		name = DefaultFile
	}
	data, err := os.ReadFile(name)
	if path == "" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	var root map[string]any
	if _, err := toml.Decode(string(data), &root); err != nil {
		return tomlError(name, err)
	}
	at := scanLines(string(data))
	origin := func(path string) Origin {
		return Origin{FromFile, fmt.Sprintf("%s:%d", name, max(1, at.of(path)))}
	}
	return l.table("", root, origin)
}

// tomlError gives an error of the TOML parser its place.
func tomlError(where string, err error) error {
	var p toml.ParseError
	if !errors.As(err, &p) {
		return &Error{Where: where, Problem: err.Error()}
	}
	return &Error{
		Where:   fmt.Sprintf("%s:%d", where, p.Position.Line),
		Problem: "not TOML: " + strings.TrimSuffix(p.Message, "."),
		Remedy:  "correct this line",
	}
}

// table applies a table of the file, in the order of its lines.
func (l *loader) table(prefix string, table map[string]any, origin func(string) Origin) error {
	names := slices.Sorted(maps.Keys(table))
	slices.SortStableFunc(names, func(a, b string) int {
		return strings.Compare(lineOrder(origin(prefix+a)), lineOrder(origin(prefix+b)))
	})
	for _, name := range names {
		path, v := prefix+name, table[name]
		sub, isTable := v.(map[string]any)
		switch {
		case path == topicPath:
			if err := l.setTopics(v, origin); err != nil {
				return err
			}
		case isTable && l.isTable(path):
			if err := l.table(path+".", sub, origin); err != nil {
				return err
			}
		default:
			if err := l.value(path, v, origin(path)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lineOrder makes "file:9" sort before "file:10".
func lineOrder(o Origin) string {
	return fmt.Sprintf("%20s", o.Where[strings.LastIndexByte(o.Where, ':')+1:])
}

func (l *loader) isTable(path string) bool {
	for k := range l.keys {
		if strings.HasPrefix(k, path+".") {
			return true
		}
	}
	return false
}

// value applies one value of the file.
func (l *loader) value(path string, v any, origin Origin) error {
	k, ok := l.keys[path]
	if !ok && l.isTable(path) {
		return &Error{
			Where: origin.Where, Key: path, Value: fmt.Sprint(v), Problem: "is a table, not a value",
			Remedy: fmt.Sprintf("start a line with [%s]", path),
		}
	}
	if !ok {
		return l.unknown(path, origin)
	}
	if err := k.setValue(v); err != nil {
		return wrong(k, fmt.Sprint(v), err.Error(), origin)
	}
	l.cfg.origins[path] = origin
	return nil
}

// text applies one value of the environment or the command line.
func (l *loader) text(path, s string, origin Origin) error {
	k, ok := l.keys[path]
	if !ok {
		return l.unknown(path, origin)
	}
	if err := k.setText(s); err != nil {
		return wrong(k, s, err.Error(), origin)
	}
	l.cfg.origins[path] = origin
	return nil
}

func wrong(k key, value, problem string, origin Origin) *Error {
	if value == "" {
		value = `""`
	}
	return &Error{Where: origin.Where, Key: k.path, Value: k.shown(value), Problem: problem, Remedy: k.example()}
}

// unknown is the error for a key that is not there.
func (l *loader) unknown(path string, origin Origin) *Error {
	names := make(map[string]bool)
	for name := range l.keys {
		for at := name; at != ""; at = parent(at) {
			names[at] = true
		}
	}
	return &Error{
		Where: origin.Where, Key: path, Problem: "is no setting",
		Remedy: suggestion(path, slices.Sorted(maps.Keys(names))),
	}
}

// parent is the path of the table around a key, "" at the top.
func parent(path string) string { return path[:max(0, strings.LastIndexByte(path, '.'))] }
