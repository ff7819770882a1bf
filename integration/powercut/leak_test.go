package powercut

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/marker"
)

// leaked says which uploads of a store nothing on the disk names, neither a record nor an intent nor a tombstone: nobody would delete them.
// Nothing is mounted over the source.
func leaked(source string, store rig.Store) (wrong []string, err error) {
	all, err := uploadsNamed(source)
	if err != nil {
		return nil, err
	}
	uploads, err := store.Uploads("")
	if err != nil {
		return nil, err
	}
	for key := range uploads {
		if dir, upload := filepath.Split(key); !strings.Contains(dir, "/probe-") && !all[filepath.Base(dir)+"-"+upload] {
			wrong = append(wrong, "leaked: "+key)
		}
	}
	return wrong, nil
}

// uploadsNamed are the uploads that a source names, each by its incarnation, start and id. A record that is not whole names nothing: there
// is another one then.
func uploadsNamed(source string) (map[string]bool, error) {
	names := map[string]bool{}
	err := filepath.WalkDir(source, func(path string, e fs.DirEntry, err error) error {
		dir, name := filepath.Split(path)
		switch {
		case err != nil || !e.Type().IsRegular():
			return err
		case strings.HasSuffix(dir, "/.tierfs/intents/"), strings.HasSuffix(dir, "/.tierfs/tombstones/"):
			names[name] = true
		case strings.HasSuffix(name, ".remote"), strings.HasSuffix(name, ".uploaded"):
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if rec, err := marker.Parse(b); err == nil {
				names[fmt.Sprintf("%s-%020d-%s", rec.Incarnation, rec.Start, rec.UploadID)] = true
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return names, err
}
