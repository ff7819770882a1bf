package config

import "strings"

// Error is one setting that is wrong.
type Error struct {
	Where   string // file and line, variable or flag; "" when nobody set it
	Key     string // "cache.chunk_size"; "" when the file is not TOML
	Value   string // as it was written, "***" for a secret
	Problem string // "is not a multiple of 4096"
	Remedy  string // what to do
}

// Error is one line: where, key and value, problem, remedy.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Where != "" {
		b.WriteString(e.Where + ": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key + " ")
	}
	if e.Value != "" {
		b.WriteString("= " + e.Value + " ")
	}
	b.WriteString(e.Problem)
	if e.Remedy != "" {
		b.WriteString(": " + e.Remedy)
	}
	return strings.ReplaceAll(b.String(), "\n", " ")
}
