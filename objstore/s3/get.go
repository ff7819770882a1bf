package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/tierfs/tierfs/objstore"
)

// errStalled ends a body of which nothing came for Store.stall.
var errStalled = errors.New("the body stalled")

// GetRange implements objstore.Store with one ranged GetObject. The answer must be
// 206 with exactly the range that was asked for.
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	if err := objstore.CheckRange(key, off, n); err != nil {
		return nil, err
	}
	var body io.ReadCloser
	err := s.try(func() (err error) {
		body, err = s.getOnce(ctx, key, off, n)
		return err
	})
	return body, err
}

func (s *Store) getOnce(parent context.Context, key string, off, n int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(parent)
	out, err := s.get.GetObject(ctx, &s3.GetObjectInput{
		Bucket: &s.cfg.Bucket,
		Key:    &key,
		Range:  aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1)),
	})
	if err != nil {
		err = s.failure(parent, "get", key, err)
		cancel(nil)
		return nil, err
	}
	if err := checkRange(out, key, off, n); err != nil {
		cancel(nil) // first, so that Close does not drain the rest
		out.Body.Close()
		return nil, err
	}
	r := &reader{s: s, parent: parent, ctx: ctx, cancel: cancel, body: out.Body, key: key, rest: n}
	r.watchdog = time.AfterFunc(s.stall, func() { cancel(errStalled) })
	r.watchdog.Stop()
	return r, nil
}

// checkRange compares the answer's head with what was asked for.
func checkRange(out *s3.GetObjectOutput, key string, off, n int64) error {
	if status := statusOf(out.ResultMetadata); status != http.StatusPartialContent {
		return fmt.Errorf("get %s: %w: the answer to a ranged GET is %d, not 206", key, objstore.ErrUnsupported, status)
	}
	return checkContentRange(out, key, off, n)
}

func checkContentRange(out *s3.GetObjectOutput, key string, off, n int64) error {
	var first, last, total int64
	got := aws.ToString(out.ContentRange)
	if _, err := fmt.Sscanf(got, "bytes %d-%d/%d", &first, &last, &total); err != nil {
		return fmt.Errorf("get %s: %w: Content-Range %q", key, objstore.ErrTransient, oneLine(got))
	}
	if total < off+n {
		return fmt.Errorf("get %s: %w: %d bytes at %d of %d", key, objstore.ErrRange, n, off, total)
	}
	if first != off || last != off+n-1 || out.ContentLength != nil && *out.ContentLength != n {
		return fmt.Errorf("get %s: %w: Content-Range %q for %d bytes at %d", key, objstore.ErrTransient, oneLine(got), n, off)
	}
	return nil
}

func statusOf(m middleware.Metadata) int {
	if r, ok := awsmiddleware.GetRawResponse(m).(*smithyhttp.Response); ok {
		return r.StatusCode
	}
	return 0
}

// reader is a body that is exactly rest bytes or an error.
type reader struct {
	s        *Store
	parent   context.Context
	ctx      context.Context
	cancel   context.CancelCauseFunc
	body     io.ReadCloser
	key      string
	rest     int64
	watchdog *time.Timer // runs while a Read does
	err      error
}

func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.rest == 0 {
		r.err = io.EOF
		return 0, io.EOF
	}
	r.watchdog.Reset(r.s.stall)
	n, err := r.body.Read(p[:min(int64(len(p)), r.rest)])
	r.watchdog.Stop()
	r.rest -= int64(n)
	switch {
	case r.rest == 0 || err == nil:
		return n, nil
	case r.parent.Err() != nil:
		r.err = fmt.Errorf("get %s: %w", r.key, context.Cause(r.parent))
	case r.ctx.Err() != nil:
		r.err = fmt.Errorf("get %s: %w: %w", r.key, objstore.ErrTransient, context.Cause(r.ctx))
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		r.err = fmt.Errorf("get %s: %w: %d bytes missing: %w", r.key, objstore.ErrShort, r.rest, io.ErrUnexpectedEOF)
	default:
		r.err = fmt.Errorf("get %s: %w", r.key, r.s.network(err))
	}
	return n, r.err
}

// Close ends the request; a connection whose body was read to its end is kept.
func (r *reader) Close() error {
	if r.rest > 0 {
		r.cancel(nil)
	}
	err := r.body.Close()
	r.cancel(nil)
	if r.err == nil {
		r.err = fmt.Errorf("get %s: %w: read of a closed body", r.key, objstore.ErrInvalid)
	}
	if r.rest > 0 {
		return nil // ended early, by the caller's wish or with an error that was returned
	}
	return err
}

// Head implements objstore.Store. The answer to a failed HEAD has no body, and so
// no code that tells a missing key from a missing bucket or bad credentials: a GET
// finds out.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	var info objstore.Info
	err := s.try(func() (err error) {
		info, err = s.headOnce(ctx, key)
		return err
	})
	return info, err
}

func (s *Store) headOnce(ctx context.Context, key string) (objstore.Info, error) {
	out, err := s.get.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &s.cfg.Bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		return objstore.Info{}, s.explain(ctx, key, err)
	}
	info := objstore.Info{Key: key, Size: aws.ToInt64(out.ContentLength), Modified: aws.ToTime(out.LastModified)}
	if len(out.Metadata) > 0 {
		info.Metadata = make(map[string]string, len(out.Metadata))
		for k, v := range out.Metadata {
			info.Metadata[strings.ToLower(k)] = v
		}
	}
	info.CRC64NVME, info.HasCRC = decodeCRC(aws.ToString(out.ChecksumCRC64NVME))
	return info, nil
}

// explain asks again with a GET why a HEAD failed.
func (s *Store) explain(ctx context.Context, key string, headErr error) error {
	status, _ := response(headErr)
	if status == 0 || status >= 500 || ctx.Err() != nil {
		return s.failure(ctx, "head", key, headErr)
	}
	out, err := s.get.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.cfg.Bucket, Key: &key, Range: aws.String("bytes=0-0")})
	if err == nil {
		out.Body.Close()
	}
	if err != nil {
		if err := s.failure(ctx, "head", key, err); !errors.Is(err, objstore.ErrRange) {
			return err // ErrRange: an empty object is there
		}
	}
	if status == http.StatusNotFound {
		return fmt.Errorf("head %s: %w: HEAD says that it is missing, GET that it is there", key, objstore.ErrTransient)
	}
	return s.failure(ctx, "head", key, headErr)
}
