package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"golang.org/x/sys/unix"
)

// Limits of a connection; those of whole calls are objstore.WithDeadline's.
const (
	dialTimeout    = 3 * time.Second
	tlsTimeout     = 5 * time.Second
	continueWait   = time.Second      // for "100 Continue" before a large body
	unackedTimeout = 10 * time.Second // TCP_USER_TIMEOUT: bytes sent and not acknowledged
	stallTimeout   = 10 * time.Second // no byte of a body
	idleTimeout    = 5 * time.Second  // many servers close at 10 to 15 s without a word
)

// transport is a pool of connections whose answers must begin within answer,
// counted from the end of the request.
func transport(cfg Config, answer time.Duration) (*http.Transport, error) {
	roots, err := certificates(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	proxy := http.ProxyFromEnvironment
	if cfg.Proxy != "" {
		u, err := url.Parse(cfg.Proxy)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("store.proxy is no URL of the form http://host:port")
		}
		proxy = http.ProxyURL(u)
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = idleTimeout
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second, Control: userTimeout}
	return &http.Transport{
		Proxy:                 proxy,
		DialContext:           dialer.DialContext,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   tlsTimeout,
		ResponseHeaderTimeout: answer,
		ExpectContinueTimeout: continueWait,
		IdleConnTimeout:       cfg.IdleTimeout,
		MaxIdleConnsPerHost:   64,
		DisableCompression:    true,
		Protocols:             protocols,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}, nil
}

func userTimeout(_, _ string, c syscall.RawConn) error {
	var serr error
	err := c.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
	})
	if err == nil {
		err = serr
	}
	return err
}

// certificates returns the system's certificates and those of file, or of the file
// that AWS_CA_BUNDLE names; nil for the system's alone.
func certificates(file string) (*x509.CertPool, error) {
	name := "store.ca_file"
	if file == "" {
		name, file = "AWS_CA_BUNDLE", os.Getenv("AWS_CA_BUNDLE")
	}
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %s holds no PEM certificate", name, file)
	}
	return pool, nil
}

// awsConfig finds region and credentials.
func awsConfig(ctx context.Context, cfg Config, pool *http.Transport) (aws.Config, *renewable, error) {
	if cfg.Region == "" && cfg.Endpoint != "" {
		cfg.Region = "us-east-1"
	}
	if cfg.AccessKey != "" && cfg.Region != "" {
		keys := credentials.NewStaticCredentialsProvider(cfg.AccessKey, cfg.SecretKey, "")
		return aws.Config{Region: cfg.Region, Credentials: keys}, &renewable{}, nil
	}
	opts := []func(*config.LoadOptions) error{
		config.WithRegion(cfg.Region),
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.Proxy = pool.Proxy
			t.TLSClientConfig.RootCAs = pool.TLSClientConfig.RootCAs
		})),
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow = 5 * time.Minute
			o.ExpiryWindowJitterFrac = 0.5
		}),
	}
	if cfg.AccessKey != "" {
		opts = append(opts, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(cfg.AccessKey, cfg.SecretKey, "")))
	}
	base, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return aws.Config{}, nil, fmt.Errorf("settings of the AWS SDK: %w", err)
	}
	if base.Region == "" {
		return aws.Config{}, nil, fmt.Errorf("store.s3.region is not set")
	}
	r := &renewable{}
	if cache, ok := base.Credentials.(*aws.CredentialsCache); ok && cfg.AccessKey == "" {
		r.invalidate = cache.Invalidate
	}
	base.Credentials = marked{base.Credentials}
	return base, r, nil
}

// marked makes the failure to find credentials recognisable.
type marked struct{ aws.CredentialsProvider }

type credentialsError struct{ error }

func (e credentialsError) Unwrap() error { return e.error }

func (m marked) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := m.CredentialsProvider.Retrieve(ctx)
	if err != nil {
		return c, credentialsError{err}
	}
	return c, nil
}
