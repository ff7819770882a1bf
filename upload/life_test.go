package upload

import (
	"flag"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// lifeTime is how long the model looks for a life that goes wrong.
func lifeTime() time.Duration {
	if os.Getenv("TIERFS_SOAK") != "" {
		return 10 * time.Minute
	}
	return 20 * time.Second
}

// TestLife leads a few partitions of one volume through any sequence of what a
// broker does to its files, what the background does with them, what becomes of the
// store, kills at a named step, and restarts. After each of them every file is what
// the broker made of it, and at the end the store has exactly what is live.
func TestLife(t *testing.T) {
	fewAtOnce(t)
	seen := map[string]int{}
	for began := time.Now(); ; {
		rapid.Check(t, func(t *rapid.T) {
			rapid.SyncTest(t, func(t *rapid.T) {
				m := newLife(t, seen)
				defer m.end()
				t.Repeat(m.actions())
				m.quiesce()
			})
		})
		// A busy machine may need longer until everything has been met.
		took := time.Since(began)
		if never := unseen(seen); took >= lifeTime() && (len(never) == 0 || took >= 5*lifeTime()) {
			t.Log(seen)
			if len(never) > 0 {
				t.Errorf("never: %q", never)
			}
			return
		}
	}
}

// unseen is what has to happen in some life and did not.
func unseen(seen map[string]int) (never []string) {
	for _, what := range []string{"evicted", "object deleted", "write into a remote segment", "unlinked while open and remote", "killed"} {
		if seen[what] == 0 {
			never = append(never, what)
		}
	}
	return never
}

// fewAtOnce makes rapid look at the clock more often, unless somebody has said how
// many lives there are to be.
func fewAtOnce(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	if before := checks.Value.String(); before == checks.DefValue {
		t.Cleanup(func() { _ = flag.Set(checks.Name, before) })
		if err := flag.Set(checks.Name, "10"); err != nil {
			t.Fatal(err)
		}
	}
}

// actions are all that can happen. What happens more often has several names.
func (m *life) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"append":           m.append,
		"roll":             m.roll,
		"grow":             m.grow,
		"grow more":        m.grow,
		"checkpoint":       func(*rapid.T) { m.checkpoint() },
		"delete oldest":    m.deleteOldest,
		"purge":            m.purge,
		"delete topic":     m.deleteTopic,
		"make topic":       m.makeTopic,
		"truncate":         m.truncate,
		"compact":          m.compact,
		"overwrite":        m.overwrite,
		"link":             m.link,
		"move away":        m.moveAway,
		"copy":             m.copyReplica,
		"copy is complete": m.swapReplica,
		"open":             m.openSome,
		"close":            m.closeSome,

		"upload":          m.upload,
		"upload all":      func(*rapid.T) { m.uploadAll() },
		"step":            m.uploadStep,
		"another step":    m.uploadStep,
		"evict":           m.evict,
		"evict backwards": m.evictBackwards,
		"undermine":       m.undermine,
		"evict by age":    func(*rapid.T) { m.evictByRule(Rule{Tiered: true, Age: time.Minute, Size: Unlimited}) },
		"evict by size": func(t *rapid.T) {
			m.evictByRule(Rule{Tiered: true, Age: time.Duration(Unlimited), Size: rapid.Int64Range(0, 5000).Draw(t, "size")})
		},
		"tier out":  m.tierOut,
		"rehydrate": m.rehydrate,
		"retire":    func(*rapid.T) { m.retire(0) },
		"graces":    func(*rapid.T) { m.retire(2 * lifeGrace) },
		"claim":     func(*rapid.T) { m.claim() },

		"weather":      m.changeWeather,
		"fair weather": func(*rapid.T) { m.clear() },
		"arm":          m.arm,
		"arm again":    m.arm,
		"arm anyway":   m.arm,
		"restart":      m.restart,
		"":             func(*rapid.T) { m.check() },
	}
	for name, act := range actions {
		if name != "" {
			actions[name] = func(t *rapid.T) { m.untilKilled(func() { act(t) }) }
		}
	}
	return actions
}
