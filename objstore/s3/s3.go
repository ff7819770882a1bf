// Package s3 is the backend for Amazon S3 and the stores that speak its protocol.
//
// It uses aws-sdk-go-v2 for the protocol and for credentials, and for nothing
// else: every call is one try (apart from one immediate repetition when the store
// says that the clock is off, or when credentials had to be renewed), times out
// only where a connection hangs, and streams. The SDK's own retries, checksums,
// transfer manager and connection pool are not used.
//
// An object is one PUT with an exact Content-Length, an unsigned payload and the
// header x-amz-checksum-crc64nvme, so the store can refuse what was damaged on the
// way. (The length alone does not protect: versitygw takes a request whose
// connection ended early for whole, and only the checksum stops it.) Metadata are
// x-amz-meta-* headers. Nothing is kept on local disk.
//
// Keys that no store could tell apart are refused by objstore.CheckKey. Stores
// that keep objects in a file system (versitygw, for one) cannot hold a key that
// is the directory of another.
package s3

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/tierfs/tierfs/objstore"
)

// Config says which bucket and how to reach it; fields are those of [store.s3]. (Its
// storage_class is in the PutOptions of whoever stores a segment.)
type Config struct {
	Bucket            string
	Region            string // "" = us-east-1 with an endpoint, else what the SDK's settings say
	Endpoint          string // "" = AWS; else a URL such as http://127.0.0.1:9000
	URLStyle          string // "" or auto: path with an endpoint, virtual without; path; virtual
	AccessKey         string
	SecretKey         string
	CredentialsSource string // "" or auto: the keys if they are set, else the SDK's chain; static: the keys
	SSE               string // "" | AES256 | aws:kms
	SSEKMSKey         string

	IdleTimeout time.Duration // a connection idle for longer is not used again; 0 = 5 s
	CAFile      string        // PEM certificates to trust beside the system's
	Proxy       string        // URL; "" = from the environment
	Log         *slog.Logger  // may be nil
}

// Store is an objstore.Store in a bucket. All methods may be called in parallel.
type Store struct {
	cfg   Config
	where string     // endpoint for messages
	put   *s3.Client // Put, Delete, List: the answer may take 30 s
	get   *s3.Client // GetRange, Head: the answer must begin within 5 s
	pools []*http.Transport
	creds *renewable
	stall time.Duration // no byte of a body for so long ends it

	singleDeletes atomic.Bool // the store refused DeleteObjects
}

var _ objstore.Store = (*Store)(nil)
var _ objstore.Inspector = (*Store)(nil)

// New returns the store for cfg. It checks the settings and contacts nobody but,
// for credentials_source auto, the SDK's files and environment. Close releases
// idle connections.
func New(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	putPool, err := transport(cfg, 30*time.Second)
	if err != nil {
		return nil, err
	}
	getPool, err := transport(cfg, 5*time.Second)
	if err != nil {
		return nil, err
	}
	base, creds, err := awsConfig(ctx, cfg, getPool)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, pools: []*http.Transport{putPool, getPool}, creds: creds, where: cfg.Endpoint, stall: stallTimeout}
	if s.where == "" {
		s.where = "AWS region " + base.Region
	}
	s.put = s3.NewFromConfig(base, func(o *s3.Options) { s.options(o, putPool) })
	s.get = s3.NewFromConfig(base, func(o *s3.Options) { s.options(o, getPool) })
	return s, nil
}

func (c *Config) check() error {
	switch {
	case c.Bucket == "":
		return fmt.Errorf("store.s3.bucket is not set")
	case (c.AccessKey == "") != (c.SecretKey == ""):
		return fmt.Errorf("store.s3.access_key and store.s3.secret_key belong together: one of them is not set")
	case c.CredentialsSource == "static" && c.AccessKey == "":
		return fmt.Errorf("store.s3.credentials_source is static, but store.s3.access_key is not set")
	case c.CredentialsSource != "" && c.CredentialsSource != "auto" && c.CredentialsSource != "static":
		return fmt.Errorf("store.s3.credentials_source: %q is neither auto nor static", c.CredentialsSource)
	case c.URLStyle != "" && c.URLStyle != "auto" && c.URLStyle != "path" && c.URLStyle != "virtual":
		return fmt.Errorf("store.s3.url_style: %q is none of auto, path, virtual", c.URLStyle)
	case c.SSE != "" && c.SSE != "AES256" && c.SSE != "aws:kms":
		return fmt.Errorf("store.s3.sse: %q is neither AES256 nor aws:kms", c.SSE)
	case c.Endpoint == "":
		return nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("store.s3.endpoint is no URL of the form https://host:port")
	}
	if u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("store.s3.endpoint must not contain credentials or a query")
	}
	return nil
}

// options is how the SDK is to be set up: one try, no checksums of its own.
func (s *Store) options(o *s3.Options, pool *http.Transport) {
	if s.cfg.Endpoint != "" {
		o.BaseEndpoint = aws.String(s.cfg.Endpoint)
	}
	switch s.cfg.URLStyle {
	case "path":
		o.UsePathStyle = true
	case "virtual":
		o.UsePathStyle = false
	default:
		o.UsePathStyle = o.BaseEndpoint != nil
	}
	o.HTTPClient = &http.Client{
		Transport:     pool,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	o.Retryer = aws.NopRetryer{}
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	o.DisableLogOutputChecksumValidationSkipped = true
	o.Logger = logging.Nop{}
	o.AppID = "tierfs"
	o.APIOptions = append(o.APIOptions, leaveEncodingUnsigned)
}

// leaveEncodingUnsigned removes accept-encoding before the request is signed:
// Google's front end changes it on the way. The transport never asks for
// compression.
func leaveEncodingUnsigned(stack *middleware.Stack) error {
	return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("tierfsEncoding",
		func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
			if r, ok := in.Request.(*smithyhttp.Request); ok {
				r.Header.Del("Accept-Encoding")
			}
			return next.HandleFinalize(ctx, in)
		}), "Signing", middleware.Before)
}

// String says which store it is, for people; without secrets.
func (s *Store) String() string { return fmt.Sprintf("s3: bucket %s at %s", s.cfg.Bucket, s.where) }

// Close closes idle connections. Calls under way go on.
func (s *Store) Close() error {
	for _, p := range s.pools {
		p.CloseIdleConnections()
	}
	return nil
}

// try makes one call, and a second one at once when the first taught the SDK the
// store's clock, or when fresh credentials can be had.
func (s *Store) try(call func() error) error {
	err := call()
	if isSkew(err) || isAuth(err) && s.creds.renew() {
		return call()
	}
	return err
}

// renewable lets credentials be thrown away at most once a minute.
type renewable struct {
	invalidate func() // nil for static keys

	mu   sync.Mutex
	last time.Time // guarded by mu
}

func (r *renewable) renew() bool {
	if r.invalidate == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < time.Minute {
		return false
	}
	r.last = time.Now()
	r.invalidate()
	return true
}
