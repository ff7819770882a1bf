package mountinfo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const table = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:50 / /var/lib/kafka rw,nosuid,nodev shared:7 master:2 - fuse.tierfs 11 rw,user_id=0
41 40 0:51 / /var/lib/kafka rw,nosuid - fuse.tierfs 22 rw
42 22 0:52 / /mnt/with\040blank\134and\011tab rw - fuse.tierfs vol\040ume rw
broken line
43 22 0:53 / /plain rw - tmpfs none rw
`

func TestParse(t *testing.T) {
	mounts, err := parse(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []Mount{
		{"254:0", "/", "ext4", "/dev/root"},
		{"0:50", "/var/lib/kafka", "fuse.tierfs", "11"},
		{"0:51", "/var/lib/kafka", "fuse.tierfs", "22"},
		{"0:52", "/mnt/with blank\\and\ttab", "fuse.tierfs", "vol ume"},
		{"0:53", "/plain", "tmpfs", "none"},
	}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Error(diff)
	}
	if on := stack(mounts, "/var/lib/kafka"); len(on) != 2 || on[1].Source != "22" {
		t.Errorf("there are %v", on)
	}
	if on := stack(mounts, "/var/lib"); len(on) > 0 {
		t.Errorf("found %v where there is no mount", on)
	}
}

func TestFindWithout(t *testing.T) {
	_, _, err := Find(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "no tierfs is mounted there") {
		t.Errorf("got %v", err)
	}
}

func TestClean(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"link": filepath.Join(dir, "a"), "a/rel": "b", "round": "round", "to": "fro", "fro": "to"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"link":          "a",
		"link/b":        "a/b",
		"link/rel":      "a/b",
		"a/../a/./b":    "a/b",
		"link/b/no":     "a/b/no",
		"link/no/where": "link/no/where",
		"round":         "round",
		"to":            "to",
	} {
		got, err := Clean(filepath.Join(dir, path))
		if err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s is %s, %v", path, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(table)
	f.Add(`1 2 3:4 / /a\04 rw - x y`)
	f.Fuzz(func(t *testing.T, s string) {
		mounts, err := parse(strings.NewReader(s))
		if err == nil && len(mounts) > strings.Count(s, "\n")+1 {
			t.Errorf("%d mounts of %d lines", len(mounts), strings.Count(s, "\n")+1)
		}
	})
}
