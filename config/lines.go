package config

import (
	"fmt"
	"strings"
)

// lines says on which line of a file each key stands. It looks at headers and
// at what is left of an equals sign, which is enough for a file that has
// parsed: a key that it misses has the line of the table around it.
type lines map[string]int

// scanLines reads a file. Tables of an array are numbered from 0:
// "retention.topic.0.name".
func scanLines(data string) lines {
	found := make(lines)
	count := make(map[string]int)
	table := ""
	number := 0
	for line := range strings.SplitSeq(data, "\n") {
		number++
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[["):
			name := plainKey(strings.TrimPrefix(line, "[["))
			table = fmt.Sprintf("%s.%d", name, count[name])
			count[name]++
			found.add(table, number)
		case strings.HasPrefix(line, "["):
			table = plainKey(strings.TrimPrefix(line, "["))
			found.add(table, number)
		default:
			left, _, ok := strings.Cut(line, "=")
			if name := plainKey(left); ok && table == "" {
				found.add(name, number)
			} else if ok {
				found.add(table+"."+name, number)
			}
		}
	}
	return found
}

func (l lines) add(path string, number int) {
	if _, ok := l[path]; !ok {
		l[path] = number
	}
}

// plainKey takes quotes, blanks and a closing bracket off a key.
func plainKey(s string) string {
	s, _, _ = strings.Cut(s, "]")
	parts := strings.Split(s, ".")
	for i, p := range parts {
		parts[i] = strings.Trim(strings.TrimSpace(p), `"'`)
	}
	return strings.Join(parts, ".")
}

// of returns the line of path, or of the nearest table around it; 0 when
// there is none.
func (l lines) of(path string) int {
	for ; path != ""; path = parent(path) {
		if n, ok := l[path]; ok {
			return n
		}
	}
	return 0
}
