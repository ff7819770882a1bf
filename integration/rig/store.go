package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// Store is where a daemon tiers to.
type Store struct {
	Name     string
	Settings string   // the [store] tables
	Env      []string // credentials
	Root     string   // the directory under which the store keeps an object as a file named by its key
}

// FS is the embedded store in a directory, which must exist.
func FS(dir string) Store {
	return Store{
		Name:     "fs",
		Settings: fmt.Sprintf("[store]\nbackend = \"fs\"\nprefix = \"tierfs\"\n[store.fs]\npath = %q\n", dir),
		Root:     dir,
	}
}

// Objects returns the size of every object whose key contains part and ends in suffix, by key. It looks at the store's own files,
// not through any client.
func (s Store) Objects(part, suffix string) (map[string]int64, error) {
	found := map[string]int64{}
	err := filepath.WalkDir(s.Root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		key, err := filepath.Rel(s.Root, path)
		if err != nil || !e.Type().IsRegular() || !strings.Contains(key, part) || !strings.HasSuffix(key, suffix) {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		found[key] = info.Size()
		return nil
	})
	return found, err
}

// S3 is a bucket of an S3 server that keeps its objects as files below root.
func S3(endpoint, region, bucket, accessKey, secretKey, root string) Store {
	return Store{
		Name: "s3",
		Settings: fmt.Sprintf("[store]\nbackend = \"s3\"\nprefix = \"tierfs\"\n[store.s3]\nbucket = %q\nregion = %q\nendpoint = %q\naccess_key = %q\n",
			bucket, region, endpoint, accessKey),
		Env:  []string{"TIERFS_STORE_S3_SECRET_KEY=" + secretKey},
		Root: filepath.Join(root, bucket),
	}
}
