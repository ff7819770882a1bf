package upload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

// steps counts what tier does to the disk.
type steps struct {
	mu sync.Mutex
	n  map[string]int
}

func (w *world) countSteps() *steps {
	s := &steps{n: map[string]int{}}
	w.tier.Step = func(step string) {
		s.mu.Lock()
		s.n[step]++
		s.mu.Unlock()
	}
	return s
}

// want fails unless so many segments were read, and so many intents written.
func (s *steps) want(t *testing.T, looks, intents int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n["upload:fsync"] != looks || s.n["upload:intent"] != intents {
		t.Errorf("%d segments were read and %d intents written, want %d and %d", s.n["upload:fsync"], s.n["upload:intent"], looks, intents)
	}
}

// reading lists the segments that the process has open, as a-0/START.
func (w *world) reading() []string {
	w.t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	w.do(err)
	var out []string
	for _, fd := range fds {
		path, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if rel, ok := strings.CutPrefix(path, w.path+"/"); ok && err == nil && strings.HasSuffix(rel, ".log") {
			out = append(out, rel)
		}
	}
	slices.Sort(out)
	return out
}

func (w *world) wantReading(names ...string) {
	w.t.Helper()
	if got := w.reading(); !slices.Equal(got, names) {
		w.t.Errorf("open are %v, want %v", got, names)
	}
}

// sending is a partition of n segments of which the first is in its PUT.
func (w *world) sending(n int) (*gatekeeper, *steps) {
	w.t.Helper()
	w.fill("a-0", n)
	s, g := w.countSteps(), w.gate()
	w.open()
	w.after(time.Second)
	return g, s
}

func TestAheadOfTheNext(t *testing.T) {
	bubble(t, func(w *world) {
		g, steps := w.sending(5)
		steps.want(t, 2, 1)
		w.wantReading(logName("a-0", 0), logName("a-0", 10))
		if n := g.total(); n != 1 {
			t.Errorf("%d puts at once", n)
		}
		for i := 1; i < 5; i++ {
			g.release <- struct{}{}
			w.after(time.Second)
			steps.want(t, min(i+2, 5), i+1)
			w.want("a-0", strings.Repeat("u", i)+strings.Repeat("l", 6-i))
		}
		close(g.release)
		w.after(time.Second)
		w.want("a-0", "uuuuul")
		steps.want(t, 5, 5)
		w.wantReading()
		if got := w.puts.logs(); !slices.Equal(got, []string{"a-0/0", "a-0/10", "a-0/20", "a-0/30", "a-0/40"}) || g.most != 1 {
			t.Errorf("put were %v, %d at once", got, g.most)
		}
	})
}

func TestAheadIsReadAgain(t *testing.T) {
	for _, suffix := range []string{".log", ".index"} {
		t.Run(suffix+" changed", func(t *testing.T) {
			bubble(t, func(w *world) {
				g, steps := w.sending(2)
				steps.want(t, 2, 1)
				name := fmt.Sprintf("%020d%s", 10, suffix)
				b, err := os.ReadFile(filepath.Join(w.path, "a-0", name))
				w.do(err)
				f := w.edit("a-0", name)
				f.write(0, b)
				f.close()
				w.after(time.Second)
				close(g.release)
				w.after(5 * time.Second)
				w.want("a-0", "uul")
				steps.want(t, 3, 2)
				w.wantReading()
				if n := len(w.v.Tombstones()); n != 0 {
					t.Errorf("%d tombstones", n)
				}
			})
		})
	}
	t.Run("left alone when bad", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.fill("a-0", 3)
			w.write(logName("a-0", 10), []byte("no batch at all, whatever it is called, and long enough for a header"))
			steps := w.countSteps()
			w.open()
			w.after(time.Minute)
			w.want("a-0", "ulul")
			steps.want(t, 3, 2)
			w.wantReading()
		})
	})
	t.Run("good when it was bad", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.fill("a-0", 2)
			good, err := os.ReadFile(filepath.Join(w.path, logName("a-0", 10)))
			w.do(err)
			w.write(logName("a-0", 10), make([]byte, len(good)))
			g := w.gate()
			w.open()
			w.after(time.Second)
			f := w.edit("a-0", filepath.Base(logName("a-0", 10)))
			f.write(0, good)
			f.close()
			close(g.release)
			w.after(5 * time.Second)
			w.want("a-0", "uul")
		})
	})
}

func TestAheadWhenPaused(t *testing.T) {
	bubble(t, func(w *world) {
		g, steps := w.sending(3)
		w.b.Pause()
		close(g.release)
		w.after(time.Minute)
		w.want("a-0", "ulll")
		steps.want(t, 2, 1)
		w.wantReading()
		w.b.Resume()
		w.after(time.Second)
		w.want("a-0", "uuul")
		if n := len(w.v.Tombstones()); n != 0 {
			t.Errorf("%d tombstones", n)
		}
	})
}

func TestAheadNotWhenPausedBefore(t *testing.T) {
	bubble(t, func(w *world) {
		var looks atomic.Int64
		w.tier.Step = func(step string) {
			if step == "upload:fsync" && looks.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
		}
		w.fill("a-0", 3)
		w.open()
		w.after(time.Second)
		w.b.Pause()
		w.after(time.Hour)
		w.want("a-0", "ulll")
		if n := looks.Load(); n != 1 {
			t.Errorf("%d segments were read", n)
		}
	})
}

// TestAheadOfAFailure: while uploads fail, nothing is looked at ahead of them.
func TestAheadOfAFailure(t *testing.T) {
	bubble(t, func(w *world) {
		g, steps := w.sending(3)
		w.store.SetHook(func(_ context.Context, op, _ string) error {
			if op == "head" || op == "put" {
				return objstore.ErrTransient
			}
			return nil
		})
		close(g.release)
		w.after(10 * time.Minute)
		steps.want(t, 2, 1)
		w.wantReading(logName("a-0", 0))
		w.store.SetHook(nil)
		w.after(time.Minute)
		w.want("a-0", "uuul")
		steps.want(t, 4, 3)
		if got := slices.Compact(w.puts.logs()); !slices.Equal(got, []string{"a-0/0", "a-0/10", "a-0/20"}) {
			t.Errorf("put were %v", got)
		}
		if n := len(w.v.Tombstones()); n != 0 {
			t.Errorf("%d tombstones", n)
		}
	})
}

// TestAheadGivesWay: a lane looks ahead only while no other one waits.
func TestAheadGivesWay(t *testing.T) {
	t.Run("one waits already", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.opt.Concurrency = 1
			w.fill("b-0", 3)
			g, steps := w.sending(3)
			steps.want(t, 1, 1)
			close(g.release)
			w.after(time.Minute)
			w.want("a-0", "uuul")
			w.want("b-0", "uuul")
		})
	})
	t.Run("one comes later", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.opt.Concurrency = 1
			w.fill("b-0", 0)
			g, steps := w.sending(3)
			steps.want(t, 2, 1)
			w.seal("b-0", 0)
			w.after(time.Second)
			g.release <- struct{}{}
			w.after(time.Second)
			steps.want(t, 3, 2)
			w.wantReading(logName("b-0", 0))
			close(g.release)
			w.after(time.Minute)
			w.want("a-0", "uuul")
			w.want("b-0", "ul")
		})
	})
}

func TestAheadAtTheEnd(t *testing.T) {
	for _, slow := range []time.Duration{0, time.Minute} {
		t.Run(fmt.Sprintf("a look of %v", slow), func(t *testing.T) {
			bubble(t, func(w *world) {
				w.fill("a-0", 3)
				var looks atomic.Int64
				w.tier.Step = func(step string) {
					if step == "upload:fsync" && looks.Add(1) == 2 {
						time.Sleep(slow)
					}
				}
				w.gate()
				w.open()
				w.after(time.Second)
				w.wantReading(logName("a-0", 0), logName("a-0", 10))
				w.halt()
				w.wantReading()
				w.want("a-0", "llll")
				if n, looks := len(w.v.Tombstones()), looks.Load(); n != 1 || looks != 2 {
					t.Errorf("%d tombstones, %d looks", n, looks)
				}
			})
		})
	}
}
