package main

import (
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progressRate is how often a bar is drawn.
const progressRate = 100 * time.Millisecond

// isTerminal says whether somebody watches what is written to w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
