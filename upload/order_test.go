package upload

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

// The durable steps of an upload and its calls of the store, each before the next:
// the volume is owned and the intent there before the first PUT of a segment, and
// the store was asked what it has before the record says that it has it.
func TestOrderOfAnUpload(t *testing.T) {
	for name, features := range map[string]objstore.Features{
		"the store checks":      {EnforcesChecksum: true, ConditionalPut: true},
		"the bytes are checked": {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.opt.Features = func() objstore.Features { return features }
				w.fill("a-0", 1)
				var mu sync.Mutex
				var order []string
				see := func(what string) {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, what)
				}
				w.tier.Step = func(step string) {
					if _, ended := strings.CutSuffix(step, ":done"); ended {
						see(step)
					}
				}
				w.store.SetHook(func(_ context.Context, op, key string) error {
					if op != "read" {
						see(op + " " + strings.TrimPrefix(path.Ext(key), "."))
					}
					return nil
				})
				w.openVolume()
				order = nil
				w.run()
				w.after(time.Minute)
				w.want("a-0", "ul")
				proof := func(ext string) []string {
					if features.EnforcesChecksum {
						return []string{"head " + ext}
					}
					return []string{"head " + ext, "get " + ext}
				}
				want := slices.Concat(
					[]string{"head ", "epoch:local:done", "put ", "epoch:store:done", "head ", "get ", "epoch:claimed:done"},
					[]string{"upload:fsync:done", "mint:registry:done", "mint:partition:done", "upload:intent:done"},
					[]string{"put index"}, proof("index"), []string{"put log"}, proof("log"),
					[]string{"upload:record:done", "upload:intent-gone:done"})
				mu.Lock()
				defer mu.Unlock()
				if !slices.Equal(order, want) {
					t.Errorf("order\n%q, want\n%q", order, want)
				}
			})
		})
	}
}
