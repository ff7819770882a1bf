package integration

import (
	"testing"

	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// stores names every kind of store; open makes one that is empty and lives as long as the test. A process can have one S3 server
// at a time, so a store is opened by the subtest that uses it, and of the tests that run in parallel only TestStoreOutage has one.
var stores = []struct {
	name string
	open func(*testing.T) rig.Store
}{
	{"fs", fsStore},
	{"s3", func(t *testing.T) rig.Store { store, _ := s3Store(t); return store }},
}

func fsStore(t *testing.T) rig.Store { return rig.FS(t.TempDir()) }

// s3Store is a bucket of a real S3 server in this process. The server can be stopped and started again.
func s3Store(t *testing.T) (rig.Store, *s3test.Server) {
	t.Helper()
	root := t.TempDir()
	server, err := s3test.Run(root, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return rig.S3(server.Endpoint, s3test.Region, server.Bucket(t), s3test.AccessKey, s3test.SecretKey, root), server
}
