// Package s3test starts a real S3 server, versitygw, inside a test's process.
//
// The server keeps its buckets in a directory (which needs user extended
// attributes), listens on a free port of the loopback device, and enforces
// credentials, conditions and checksums. It can be stopped and started again on
// the same port with the same buckets.
//
// A process can have one server at a time, and while it runs the working
// directory of the process is the server's: tests must use absolute paths.
package s3test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// What every Server accepts.
const (
	AccessKey = "tierfs-test"
	SecretKey = "tierfs-test-secret"
	Region    = "us-east-1"
)

// Server is a running (or stopped) server. Its methods are not for several
// goroutines at once.
type Server struct {
	Endpoint string // http://127.0.0.1:port

	dir    string
	addr   string
	cancel context.CancelFunc // nil while stopped
	done   chan error
}

// Start starts a server over a temporary directory and stops it when t ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := Run(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Run starts a server over dir on addr (port 0: a free one). Stop it.
func Run(dir, addr string) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	addr = l.Addr().String()
	l.Close() // only to find a free port
	s := &Server{Endpoint: "http://" + addr, dir: dir, addr: addr}
	return s, s.Restart()
}

// Restart starts a stopped server again on its port, and returns when it answers.
func (s *Server) Restart() error {
	if s.cancel != nil {
		return errors.New("the S3 server is running")
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	store, err := posix.New(s.dir, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 64})
	if err != nil {
		return fmt.Errorf("S3 server: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.done = cancel, make(chan error, 1)
	go func() {
		err := embedgw.RunVersityGW(ctx, store, &embedgw.Config{
			RootUserAccess: AccessKey, RootUserSecret: SecretKey, Region: Region,
			Ports: []string{s.addr}, MaxConnections: 512, MaxRequests: 512, MultipartMaxParts: 10000,
			KeepAlive: true, Quiet: true,
		})
		store.Shutdown()
		s.done <- errors.Join(err, os.Chdir(wd))
	}()
	return s.await()
}

// await waits until the port answers. The server has no way to tell that it
// listens, so this tries.
func (s *Server) await() error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(15 * time.Second)
	for {
		if c, err := net.DialTimeout("tcp", s.addr, time.Second); err == nil {
			return c.Close()
		}
		select {
		case err := <-s.done:
			s.cancel = nil
			return fmt.Errorf("S3 server on %s: %w", s.addr, err)
		case <-deadline:
			return errors.Join(fmt.Errorf("S3 server on %s does not answer", s.addr), s.Stop())
		case <-tick.C:
		}
	}
}

// Stop ends the server, waits for it, and puts the working directory back. To
// stop a stopped server does nothing.
func (s *Server) Stop() error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	s.cancel = nil
	return <-s.done
}

// Bucket makes a bucket with an unused name and returns it.
func (s *Server) Bucket(t testing.TB) string {
	t.Helper()
	name, err := s.MakeBucket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// MakeBucket is Bucket for programs.
func (s *Server) MakeBucket(ctx context.Context) (string, error) {
	name := fmt.Sprintf("bucket-%d", time.Now().UnixNano())
	client := s3.New(s3.Options{
		Region: Region, BaseEndpoint: aws.String(s.Endpoint), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(AccessKey, SecretKey, ""),
		HTTPClient:  oneShot(),
	})
	_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &name})
	if err != nil {
		return "", fmt.Errorf("create bucket %s: %w", name, err)
	}
	return name, nil
}
