package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// FileVariable names the file of settings, as --config does.
const FileVariable = "TIERFS_CONFIG"

// serviceVariable matches what Kubernetes and Docker put into the environment
// for a service that is called tierfs: nobody's settings.
var serviceVariable = regexp.MustCompile(`^TIERFS_(.*_)?(SERVICE_(HOST|PORT)|PORT)(_[0-9A-Z_]+)?$`)

// environment applies variables that start with TIERFS_. One that is nearly a
// setting, or starts like one, is an error, so that a slip of the pen is not a
// silent default; what else starts with TIERFS_ is somebody else's.
func (l *loader) environment(environ []string) error {
	byEnv := make(map[string]string)
	for path, k := range l.keys {
		byEnv[k.env()] = path
	}
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "TIERFS_") || name == FileVariable {
			continue
		}
		origin := Origin{FromEnv, name}
		path, ok := byEnv[name]
		switch {
		case path == topicPath:
			if err := l.topicVariable(value, origin); err != nil {
				return err
			}
		case ok:
			if err := l.text(path, value, origin); err != nil {
				return err
			}
		case serviceVariable.MatchString(name):
		default:
			if e := unknownVariable(name, slices.Sorted(maps.Keys(byEnv))); e != nil {
				return e
			}
		}
	}
	return nil
}

func unknownVariable(name string, known []string) error {
	near := nearest(name, known, 4)
	table, _, _ := strings.Cut(strings.TrimPrefix(name, "TIERFS_"), "_")
	inTable := slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(k, "TIERFS_"+table+"_") })
	if near == "" && !inTable {
		return nil
	}
	remedy := "take it out; `tierfs config` lists all settings"
	if near != "" {
		remedy = fmt.Sprintf("did you mean %s?", near)
	}
	return &Error{Where: name, Problem: "names no setting", Remedy: remedy}
}

// topicVariable reads TIERFS_RETENTION_TOPIC: the list as TOML writes it in
// one line, [{name = "a", local_retention_age = "6 h"}].
func (l *loader) topicVariable(value string, origin Origin) error {
	var v map[string]any
	if _, err := toml.Decode("v = "+value, &v); err != nil {
		return &Error{
			Where: origin.Where, Key: topicPath, Value: value, Problem: "is not TOML",
			Remedy: `write it like [{name = "orders-*", local_retention_age = "6 h"}]`,
		}
	}
	return l.setTopics(v["v"], func(string) Origin { return origin })
}

// suggestion is the remedy for a name that is not there.
func suggestion(name string, names []string) string {
	if n := nearest(name, names, 2+len(strings.TrimPrefix(name, parent(name)))/3); n != "" {
		return fmt.Sprintf("did you mean %s?", n)
	}
	return "take it out; `tierfs config` lists all settings"
}

// nearest is the name that is the nearest to name, if it is nearer than limit.
func nearest(name string, names []string, limit int) string {
	best := ""
	for _, n := range names {
		if d := editDistance(name, n); d < limit {
			best, limit = n, d
		}
	}
	return best
}

// editDistance is how many characters have to change to turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
