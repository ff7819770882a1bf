package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tierfs/tierfs/marker"
)

// Named is what a volume's own directory says that the store has.
type Named struct {
	Live map[string]string // path of the record, by the upload's key without a suffix
	Dead map[string]bool   // the same keys of tombstones and intents
}

// ReadNamed reads every record of a source as it is below the mount; the path may be a link. A name is enough for an upload that is to be deleted.
func ReadNamed(source string) (Named, error) {
	n := Named{map[string]string{}, map[string]bool{}}
	prefixes, err := prefixes(source)
	if err != nil {
		return n, err
	}
	err = filepath.WalkDir(source+"/.", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !strings.HasSuffix(path, ".remote") && !strings.HasSuffix(path, ".uploaded") {
			return skipGone(err)
		}
		rec, err := readMarker(path)
		if err != nil {
			return skipGone(err)
		}
		prefix, ok := prefixes[rec.Incarnation.String()]
		if !ok {
			return fmt.Errorf("%s names incarnation %s, which nothing explains", path, rec.Incarnation)
		}
		n.Live[fmt.Sprintf("%s/%020d-%s", prefix, rec.Start, rec.UploadID)] = path
		return nil
	})
	if err != nil {
		return n, err
	}
	for _, dir := range []string{"tombstones", "intents"} {
		entries, err := os.ReadDir(filepath.Join(source, ".tierfs", dir))
		if err != nil {
			return n, err
		}
		for _, e := range entries {
			incarnation, rest, _ := strings.Cut(e.Name(), "-")
			n.Dead[prefixes[incarnation]+"/"+rest] = true
		}
	}
	return n, nil
}

func skipGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readMarker(path string) (marker.Record, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return marker.Record{}, err
	}
	rec, err := marker.Read(int(dir.Fd()), filepath.Base(path))
	return rec, errors.Join(err, dir.Close())
}

// prefixes are those of the keys of each incarnation.
func prefixes(source string) (map[string]string, error) {
	dir := filepath.Join(source, ".tierfs", "partitions")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		var entry struct{ Prefix string }
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = json.Unmarshal(text, &entry)
		}
		if err != nil {
			return nil, err
		}
		all[e.Name()] = entry.Prefix
	}
	return all, nil
}

// Uploads are the keys of a store's segments without their suffixes, as far as they contain part.
func (s Store) Uploads(part string) (map[string]bool, error) {
	objects, err := s.Objects(part, "")
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for key := range objects {
		if dir, name := filepath.Split(key); name != "owner" {
			stem, _, _ := strings.Cut(name, ".")
			all[dir+stem] = true
		}
	}
	return all, nil
}
