package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && helpers[os.Args[1]] != nil {
		if err := helpers[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// startedLoad is a load on a plain directory of three files to read, and five others.
func startedLoad(t *testing.T) (dir string, l *loader) {
	t.Helper()
	dir = t.TempDir()
	for n := range 3 {
		content := make([]byte, 5*readSize+100)
		pattern(content, int64(n))
		put := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.log", n)), content, 0o600)
		for m := range 2 - n%2 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("other", n, m)), nil, 0o600); err != nil || put != nil {
				t.Fatal(err, put)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := startLoad("-dir", dir, "-read", "*.log", "-append", "a.log", "-open", "6", "-sync")
	if err != nil {
		t.Fatal(err)
	}
	return dir, l
}

func TestLoad(t *testing.T) {
	dir, l := startedLoad(t)
	ask := func(request string) loadReply {
		t.Helper()
		r, err := l.ask(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := ask(askReady); r.Known != 10 || r.Open != 6 { // with the directory itself
		t.Errorf("ready: %+v", r)
	}
	for range 2 {
		if r := ask(askPauses); r.Reads == 0 || r.Read == 0 || r.Append == 0 || r.Sync == 0 || r.writer() < milliseconds(r.Append) {
			t.Errorf("pauses: %+v", r)
		}
	}
	ask(askRest)
	r := ask(askVerify)
	if info, err := os.Stat(filepath.Join(dir, "a.log")); err != nil || r.Appended == 0 || info.Size() != r.Appended {
		t.Errorf("verified: %+v; %v, %v", r, info, err)
	}
	ask(askWork)
	ask(askPauses)
	if err := l.end(); err != nil {
		t.Error(err)
	}
}

// TestLoadThatFails: what a file has lost is noticed, whoever looks.
func TestLoadThatFails(t *testing.T) {
	t.Run("read", func(t *testing.T) {
		dir, l := startedLoad(t)
		if _, err := l.ask(t.Context(), askReady); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			if err := os.Truncate(filepath.Join(dir, fmt.Sprintf("%d.log", n)), 0); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-l.process.Done():
		case <-time.After(10 * time.Second):
			t.Error("the load goes on")
		}
		if err := l.end(); err == nil {
			t.Error("no error at the end")
		}
	})
	t.Run("verify", func(t *testing.T) {
		dir, l := startedLoad(t)
		for _, request := range []string{askPauses, askRest} {
			if _, err := l.ask(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.OpenFile(filepath.Join(dir, "a.log"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xff}, 100); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if r, err := l.ask(t.Context(), askVerify); err == nil {
			t.Errorf("verified: %+v", r)
		}
		if err := l.end(); err == nil {
			t.Error("no error at the end")
		}
	})
}
