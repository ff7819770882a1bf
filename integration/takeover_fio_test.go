package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
)

// fioJobs write each in its own way, and read what they wrote.
const fioJobs = `[global]
verify=crc32c
verify_fatal=1
do_verify=1
verify_state_save=0
randrepeat=0
direct=0
size=8m
thread=0
unlink=1
[appends]
rw=write
bs=16k
fsync=16
[small]
rw=randwrite
bsrange=512-16k
bs_unaligned
fsync=64
[synced]
rw=write
bs=4k
size=1m
fsync=1
[large]
rw=write
bs=1m
size=32m
[mixed]
rw=randrw
bs=4k
fdatasync=32
[mapped]
ioengine=mmap
rw=randwrite
bs=4k
size=4m
fsync=128
`

// TestTakeoverUnderFio ends daemons at any moment, and upgrades, while fio writes and checks what it wrote: it sees no error and no
// byte that is wrong.
func TestTakeoverUnderFio(t *testing.T) {
	eachWrites(t, func(t *testing.T, mode string) {
		p := newPlain(t, writing(fsStore(t), mode), "", "cold", "held")
		p.mountAs(mode)
		p.evict()
		p.must(os.Mkdir(p.view("fio"), 0o755))
		stop, result := make(chan struct{}), make(chan fioResult, 1)
		go func() { result <- p.fioUntil(stop) }()
		binaries := []string{copyOf(t, checked), copyOf(t, checked)}
		kills, upgrades := takeovers()
		n := uint64(0)
		for ; n < uint64(kills+upgrades) && len(result) == 0; n++ {
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // a random moment
			if (n+1)%uint64((kills+upgrades)/upgrades) == 0 {
				_, err := p.daemon.DoWith(p.ctx, binaries[int(n)%2], "upgrade", p.source)
				p.must(err)
				continue
			}
			_, err := p.daemon.KillRole(daemon.Serves)
			p.must(err)
			p.must(p.daemon.TakenOver(p.ctx, n+1))
		}
		close(stop)
		r := <-result
		p.must(r.err)
		t.Logf("after %d takeovers: fio has run %d times, its longest call took %v", n, r.runs, r.longest)
		if s := p.status(); s.Takeovers != n {
			t.Errorf("status says %+v", s)
		}
		p.allWhole()
		p.stop()
	})
}

// fioResult is what became of many runs.
type fioResult struct {
	runs    int
	longest time.Duration // of a read, a write or an fsync
	err     error
}

// fioUntil runs fio again and again.
func (p *plain) fioUntil(stop <-chan struct{}) (r fioResult) {
	for {
		longest, err := p.fio()
		if err != nil {
			r.err = fmt.Errorf("run %d: %w", r.runs, err)
			return r
		}
		r.runs, r.longest = r.runs+1, max(r.longest, longest)
		select {
		case <-stop:
			return r
		default:
		}
	}
}

// fio runs all jobs once.
func (p *plain) fio() (longest time.Duration, err error) {
	cmd := exec.Command("fio", "--output-format=json", "--directory="+p.view("fio"), "-")
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(fioJobs), &out, &said, p.t.TempDir()
	run, err := child.Start(cmd)
	if err != nil {
		return 0, err
	}
	select {
	case <-run.Done():
	case <-p.ctx.Done():
		return 0, fmt.Errorf("fio does not end: %w", run.Kill())
	}
	if run.Err() != nil {
		return 0, fmt.Errorf("fio: %w: %s %.4000s", run.Err(), said.String(), out.String())
	}
	type latency struct {
		Total struct {
			Max float64 `json:"max"`
		} `json:"lat_ns"`
	}
	var report struct {
		Jobs []struct {
			Error             int
			Read, Write, Sync latency
		}
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || len(report.Jobs) == 0 {
		return 0, fmt.Errorf("fio said %.1000s: %w", out.String(), err)
	}
	for _, job := range report.Jobs {
		if job.Error != 0 {
			return 0, fmt.Errorf("fio: error %d: %s", job.Error, said.String())
		}
		for _, l := range []latency{job.Read, job.Write, job.Sync} {
			longest = max(longest, time.Duration(l.Total.Max))
		}
	}
	return longest, nil
}
