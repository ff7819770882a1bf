package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// probeTimeout bounds one operation of a probe.
const probeTimeout = 5 * time.Second

// Features are what Probe learned about a store.
type Features struct {
	// EnforcesChecksum: a Put whose bytes do not match Body.CRC64NVME is refused.
	EnforcesChecksum bool
	// ReturnsChecksum: Head gives the checksum back.
	ReturnsChecksum bool
	// ConditionalPut: IfAbsent keeps an existing object.
	ConditionalPut bool
	// Metadata comes back as it was put.
	Metadata bool
}

// Report is the result of a probe.
type Report struct {
	Features Features
	Steps    []Step   // in the order in which they were tried
	Warnings []string // settings of the store that undo what tierfs does; one line each
}

// Step is one operation of a probe and how long it took.
type Step struct {
	Name string
	Took time.Duration
}

// Inspector is implemented by stores that can tell of settings which would undo
// what tierfs does, such as a lifecycle rule that expires objects. What cannot be
// read is left out.
type Inspector interface {
	Inspect(ctx context.Context, prefix string) (warnings []string)
}

type probe struct {
	s      Store
	prefix string
	key    string
	body   []byte
	report Report
	gone   bool      // the scratch keys are deleted
	made   time.Time // when the store says that the scratch object was put
}

// Probe tries every operation on scratch keys below prefix ("" for the top), and
// learns what the store enforces. s must be bare: without retries, so that a wrong
// setting is known at once. It takes at most a few seconds for each operation and
// leaves nothing behind if the store lets it; what a probe left that was killed, a
// later one removes after an hour. The error is one line that says
// which setting is wrong, as far as the store tells.
func Probe(ctx context.Context, s Store, prefix string) (Report, error) {
	p := &probe{s: s, prefix: strings.TrimSuffix(prefix, "/"), body: make([]byte, 4096)}
	rand.Read(p.body) // never fails
	p.key = strings.TrimPrefix(p.prefix+"/probe-"+strings.ToLower(rand.Text()), "/")
	defer p.clean(ctx)
	steps := []struct {
		name string
		run  func(context.Context) error
	}{
		{"put", p.put}, {"head", p.head}, {"get", p.get}, {"list", p.list},
		{"conditional put", p.conditional}, {"wrong checksum", p.wrongChecksum}, {"delete", p.delete},
	}
	for _, step := range steps {
		start := time.Now()
		err := p.bounded(ctx, step.run)
		p.report.Steps = append(p.report.Steps, Step{step.name, time.Since(start)})
		if err != nil {
			return p.report, fmt.Errorf("probe of the store failed at %s: %w", step.name, err)
		}
	}
	_ = p.bounded(ctx, p.sweep) // best effort: scratch keys
	if i, ok := s.(Inspector); ok {
		ictx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		p.report.Warnings = i.Inspect(ictx, p.prefix)
	}
	return p.report, nil
}

func (p *probe) bounded(ctx context.Context, f func(context.Context) error) error {
	try, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return outcome(ctx, try, probeTimeout, "request", f(try))
}

// clean removes what a failed probe left, also when ctx is over.
func (p *probe) clean(ctx context.Context) {
	if p.gone || len(p.report.Steps) < 2 {
		return // all done, or the first put failed: there is nothing that a delete could reach
	}
	_ = p.bounded(context.WithoutCancel(ctx), func(ctx context.Context) error { // best effort: scratch keys
		return p.s.Delete(ctx, p.key, p.key+"-bad")
	})
}

func (p *probe) put(ctx context.Context) error {
	err := p.s.Put(ctx, p.key, BytesBody(p.body), PutOptions{Metadata: map[string]string{"probe": "1"}})
	if errors.Is(err, ErrAuth) {
		if _, lerr := p.s.List(ctx, p.prefix, ""); lerr == nil {
			return fmt.Errorf("%w (listing works: the credentials may read but not write)", err)
		}
	}
	return err
}

func (p *probe) head(ctx context.Context) error {
	info, err := p.s.Head(ctx, p.key)
	if err != nil {
		return err
	}
	if info.Size != int64(len(p.body)) {
		return notAStore("an object of %d bytes came back with %d", len(p.body), info.Size)
	}
	p.report.Features.Metadata = info.Metadata["probe"] == "1"
	p.report.Features.ReturnsChecksum = info.HasCRC && info.CRC64NVME == BytesBody(p.body).CRC64NVME
	return nil
}

func (p *probe) get(ctx context.Context) error {
	const off, n = 1000, 2000
	r, err := p.s.GetRange(ctx, p.key, off, n)
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, p.body[off:off+n]) {
		return notAStore("a range came back with other bytes")
	}
	return nil
}

func (p *probe) list(ctx context.Context) error {
	page, err := p.s.List(ctx, p.key, "")
	if err != nil {
		return err
	}
	if len(page.Objects) != 1 || page.Objects[0].Key != p.key || page.Objects[0].Size != int64(len(p.body)) {
		return notAStore("a listing does not show an object that is there")
	}
	p.made = page.Objects[0].Modified
	return nil
}

func (p *probe) conditional(ctx context.Context) error {
	err := p.s.Put(ctx, p.key, BytesBody(p.body[1:]), PutOptions{IfAbsent: true})
	p.report.Features.ConditionalPut = errors.Is(err, ErrExists)
	return serious(err)
}

func (p *probe) wrongChecksum(ctx context.Context) error {
	body := BytesBody(p.body)
	body.CRC64NVME ^= 1
	err := p.s.Put(ctx, p.key+"-bad", body, PutOptions{})
	p.report.Features.EnforcesChecksum = errors.Is(err, ErrChecksum)
	return serious(err)
}

// serious returns the failure of a Put that asks more of the store than every store
// can: a refusal in whatever words is none, the store then just lacks the feature.
func serious(err error) error {
	if Retryable(err) || errors.Is(err, ErrAuth) || errors.Is(err, ErrConfig) || errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (p *probe) delete(ctx context.Context) error {
	if err := p.s.Delete(ctx, p.key, p.key+"-bad"); err != nil {
		return err
	}
	if _, err := p.s.Head(ctx, p.key); !errors.Is(err, ErrNotFound) {
		if err == nil {
			return notAStore("an object is there after its delete")
		}
		return err
	}
	p.gone = true
	return nil
}

// scratchAge is after how long a scratch object is nobody's: by far longer than a
// probe can take. The store's own clock counts.
const scratchAge = time.Hour

// scratchKey matches the last part of a scratch object's key.
var scratchKey = regexp.MustCompile(`^probe-[a-z2-7]{26}(-bad)?$`)

// sweep deletes the scratch objects that killed probes left.
func (p *probe) sweep(ctx context.Context) error {
	dir := strings.TrimPrefix(p.prefix+"/", "/")
	page, err := p.s.List(ctx, dir+"probe-", "")
	if err != nil {
		return err
	}
	var old []string
	for _, o := range page.Objects {
		if scratchKey.MatchString(strings.TrimPrefix(o.Key, dir)) && p.made.Sub(o.Modified) > scratchAge {
			old = append(old, o.Key)
		}
	}
	if len(old) == 0 {
		return nil
	}
	return p.s.Delete(ctx, old...)
}

func notAStore(format string, args ...any) error {
	return fmt.Errorf("%w: endpoint does not behave like an object store: %s", ErrConfig, fmt.Sprintf(format, args...))
}
