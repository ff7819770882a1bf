package integration

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// stores names every kind of store; open makes one that is empty and lives as long as the test.
var stores = []struct {
	name string
	open func(*testing.T) rig.Store
}{
	{"fs", fsStore},
	{"s3", func(t *testing.T) rig.Store { store, _ := s3Store(t); return store }},
}

func fsStore(t *testing.T) rig.Store { return rig.FS(t.TempDir()) }

// s3Server is the S3 server of this process, which can have only one: whoever is the first to want it starts it, the last one stops it.
var s3Server struct {
	mu    sync.Mutex
	users int
	root  string
	*s3test.Server
}

// s3Store is a bucket of a real S3 server in this process.
func s3Store(t *testing.T) (store rig.Store, endpoint string) {
	t.Helper()
	s := &s3Server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		var err error
		if s.root, err = os.MkdirTemp("", "tierfs-s3-"); err != nil {
			t.Fatal(err)
		}
		if s.Server, err = s3test.Run(s.root, "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	s.users++
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users--; s.users == 0 {
			if err := errors.Join(s.Stop(), os.RemoveAll(s.root)); err != nil {
				t.Error(err)
			}
		}
	})
	return rig.S3(s.Endpoint, s3test.Region, s.Bucket(t), s3test.AccessKey, s3test.SecretKey, s.root), s.Endpoint
}
