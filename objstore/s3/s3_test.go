package s3_test

import (
	"testing"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/s3"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
	"github.com/tierfs/tierfs/objstore/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, s3test.Leftovers()...) }

func config(srv *s3test.Server, bucket string) s3.Config {
	return s3.Config{
		Bucket: bucket, Region: s3test.Region, Endpoint: srv.Endpoint,
		AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
	}
}

func open(t testing.TB, cfg s3.Config) *s3.Store {
	t.Helper()
	s, err := s3.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStore(t *testing.T) {
	srv := s3test.Start(t)
	storetest.Run(t, "s3", func(t testing.TB) objstore.Store { return open(t, config(srv, srv.Bucket(t))) })
}
