package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/marker"
)

// ownDamage is something that was planted in tierfs' own directory.
type ownDamage struct {
	path  string
	check bool // a check finds it
	says  bool // the daemon says so
}

// damageState plants damage in tierfs' own directory, and in the cache, whose files may all be wrong.
func (p *plain) damageState() []ownDamage {
	p.t.Helper()
	rec, err := marker.Parse(p.read("registry-0" + remote))
	p.must(err)
	own := []ownDamage{
		{path: ".tierfs/partitions/" + rec.Incarnation.String(), check: true, says: true},
		{path: ".tierfs/partitions/stranger", check: true, says: true},
		{path: ".tierfs/partitions/" + marker.NewIncarnation().String(), check: true, says: true},
		{path: ".tierfs/intents/stranger", check: true, says: true},
		{path: ".tierfs/tombstones/stranger", check: true, says: true},
	}
	for _, o := range own {
		p.write(o.path, []byte("{ damaged"))
	}
	upload := "/" + strings.Repeat("a", 32) + "-00000000000000000000-" + strings.Repeat("b", 16)
	for _, dir := range []string{".tierfs/intents", ".tierfs/tombstones"} {
		p.must(os.Mkdir(p.path(dir+upload), 0o700))
		own = append(own, ownDamage{path: dir + upload, check: true})
	}
	p.must(filepath.WalkDir(p.path(".tierfs/cache")+"/.", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var b []byte
			if b, err = os.ReadFile(path); err == nil {
				for i := range b {
					b[i] ^= 0x55
				}
				err = os.WriteFile(path, b, 0o600)
			}
		}
		return err
	}))
	return own
}

// namesState looks whether what was planted in tierfs' own directory is named, and was left alone.
func (p *plain) namesState(t *testing.T, own []ownDamage, found, online []string) {
	text := strings.Split(p.daemon.Log().Text(), "\n")
	for _, o := range own {
		if o.check && !hasLine(found, []string{o.path}) {
			t.Errorf("a check does not find %s", o.path)
		}
		if o.says && (!hasLine(online, []string{o.path}) || !hasLine(text, []string{o.path})) {
			t.Errorf("tierfs does not name %s", o.path)
		}
	}
	if _, err := p.cold("registry-0" + log); err == nil {
		t.Error("a segment of a partition that nothing explains gives bytes")
	}
	p.whole("registry-0" + stem(p.starts[len(p.starts)-1]) + ".log")
}
