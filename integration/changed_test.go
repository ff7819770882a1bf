package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/segment/segmenttest"
)

// change is something that is done to an evicted segment through a handle that is older than its eviction. It returns what the segment
// holds then.
type change struct {
	topic string
	make  func(p *plain, file *os.File, data []byte) []byte
}

var changes = []change{
	{"cut", func(p *plain, file *os.File, data []byte) []byte { // as a follower does: the later segments go, the rest is written anew
		for _, start := range p.starts[1:] {
			for _, suffix := range []string{".log", ".index"} {
				p.must(os.Remove(p.view(fmt.Sprintf("cut-0/%020d%s", start, suffix))))
			}
			delete(p.logs, fmt.Sprintf("cut-0/%020d.log", start))
		}
		at := 0
		for range 3 { // batches
			at += 12 + int(data[at+9])<<16 + int(data[at+10])<<8 + int(data[at+11])
		}
		more, _, _ := segmenttest.Kafka(15, 4, 5, 700)
		p.must(file.Truncate(int64(at)))
		_, err := file.WriteAt(more, int64(at))
		p.must(err)
		return append(data[:at:at], more...)
	}},
	{"written", func(p *plain, file *os.File, data []byte) []byte {
		_, err := file.WriteAt([]byte("not what it was"), 3000)
		p.must(err)
		copy(data[3000:], "not what it was")
		return data
	}},
	{"emptied", func(p *plain, file *os.File, data []byte) []byte {
		p.must(file.Truncate(0))
		_, err := file.WriteAt(data[:1000], 0)
		p.must(err)
		return data[:1000]
	}},
	{"opened", func(p *plain, file *os.File, data []byte) []byte {
		again, err := os.OpenFile(file.Name(), os.O_RDWR|os.O_TRUNC, 0)
		p.must(err)
		p.must(again.Close())
		return nil
	}},
}

// TestChangedWhileEvicted changes evicted segments as a broker might, and insists on the bytes at once and after a restart, and of the
// store on exactly what is live.
func TestChangedWhileEvicted(t *testing.T) {
	t.Parallel()
	var topics []string
	for _, c := range changes {
		topics = append(topics, c.topic)
	}
	p := newPlain(t, fsStore(t), "[retention]\ndelete_grace = \"1 s\"\n", topics...)
	p.mount()
	const first = "-0/00000000000000000000"
	open := map[string]*os.File{}
	for _, topic := range topics {
		file, err := os.OpenFile(p.view(topic+first+".log"), os.O_RDWR, 0)
		p.must(err)
		defer file.Close() // once more where the test got that far
		open[topic] = file
	}
	p.evict()
	old, err := p.store.Objects("/00000000000000000000-", ".log")
	p.must(err)
	if len(old) != len(changes) {
		t.Fatalf("objects of the segments to be changed: %v", old)
	}
	for _, c := range changes {
		name := c.topic + first
		if _, err := os.Lstat(p.path(name + ".remote")); err != nil {
			t.Fatalf("%s is not evicted: %v", name, err)
		}
		p.logs[name+".log"] = c.make(p, open[c.topic], append([]byte(nil), p.logs[name+".log"]...))
		p.whole(name + ".log")
		p.must(open[c.topic].Close())
	}
	p.stop()
	p.mount()
	for name := range p.logs {
		p.whole(name)
	}
	p.evict()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if ok, err := exactly(p.store, p.path("")+"/."); err != nil || ok {
			p.must(err)
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the store does not hold exactly what is live")
		}
	}
	now, err := p.store.Objects("/", ".log")
	p.must(err)
	for key := range old {
		if _, ok := now[key]; ok {
			t.Errorf("%s is still in the store", key)
		}
	}
	if found := p.check(); len(found) != 0 {
		t.Errorf("tierfs check: %s", strings.Join(found, "\n"))
	}
	for name := range p.logs {
		p.whole(name)
	}
}
