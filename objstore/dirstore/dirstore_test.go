package dirstore_test

import (
	"testing"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/dirstore"
	"github.com/tierfs/tierfs/objstore/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, dir string) *dirstore.Store {
	t.Helper()
	s, err := dirstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, "fs", func(t testing.TB) objstore.Store { return open(t, t.TempDir()) })
}
