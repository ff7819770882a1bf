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

// environment applies variables that start with TIERFS_. One that names no
// setting is an error, so that a slip of the pen is not a silent default.
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
			return &Error{
				Where: name, Problem: "names no setting",
				Remedy: suggestion(name, slices.Sorted(maps.Keys(byEnv))),
			}
		}
	}
	return nil
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
	best, limit := "", 2+len(strings.TrimPrefix(name, parent(name)))/3
	for _, n := range names {
		if d := editDistance(name, n); d < limit {
			best, limit = n, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "take it out; `tierfs config` lists all settings"
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
