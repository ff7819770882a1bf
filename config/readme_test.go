package config

import (
	"os"
	"strings"
	"testing"
)

// TestReadme: who reads the limits need not run a command to learn what has no effect.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(readme), "Settings that are accepted and have no effect yet")
	list, _, end := strings.Cut(list, "Settings that do only a part")
	if !ok || !end {
		t.Fatal("the lists are not there")
	}
	for _, name := range idle {
		if strings.HasSuffix(name, ".") {
			name += "*"
		}
		if !strings.Contains(list, "`"+name+"`") {
			t.Errorf("%s is not in the list", name)
		}
	}
}
