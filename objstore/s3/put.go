package s3

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/tierfs/tierfs/objstore"
)

// Put implements objstore.Store with one PutObject. A conditional Put that ends
// without a clear answer is settled by a Head: stores often reset the connection
// where they mean 412, and a lost answer makes a repetition fail on our own object.
func (s *Store) Put(ctx context.Context, key string, body objstore.Body, opts objstore.PutOptions) error {
	if err := objstore.CheckPut(key, body, opts); err != nil {
		return err
	}
	err := s.try(func() error { return s.putOnce(ctx, key, body, opts) })
	if err == nil || !opts.IfAbsent || ctx.Err() != nil {
		return err
	}
	if errors.Is(err, objstore.ErrExists) || objstore.Retryable(err) {
		return s.settle(ctx, key, body, err)
	}
	return err
}

// settle finds out what a Put with IfAbsent came to.
func (s *Store) settle(ctx context.Context, key string, body objstore.Body, putErr error) error {
	same, err := objstore.Same(ctx, s, key, body)
	switch {
	case same:
		return nil
	case err == nil:
		return fmt.Errorf("put %s: %w", key, objstore.ErrExists)
	case !errors.Is(putErr, objstore.ErrExists):
		return putErr
	case errors.Is(err, objstore.ErrNotFound):
		return fmt.Errorf("put %s: %w: an object was in the way and is gone", key, objstore.ErrTransient)
	}
	return err
}

func (s *Store) putOnce(ctx context.Context, key string, body objstore.Body, opts objstore.PutOptions) error {
	r := body.Reader()
	defer r.Close() // the transport may still be reading
	in := &s3.PutObjectInput{
		Bucket:            &s.cfg.Bucket,
		Key:               &key,
		ContentLength:     &body.Size,
		ChecksumCRC64NVME: aws.String(encodeCRC(body.CRC64NVME)),
		Metadata:          opts.Metadata,
		StorageClass:      types.StorageClass(opts.StorageClass),
	}
	if body.Size > 0 {
		in.Body = r
	}
	if opts.IfAbsent {
		in.IfNoneMatch = aws.String("*")
	}
	if s.cfg.SSE != "" {
		in.ServerSideEncryption = types.ServerSideEncryption(s.cfg.SSE)
	}
	if s.cfg.SSEKMSKey != "" {
		in.SSEKMSKeyId = &s.cfg.SSEKMSKey
	}
	_, err := s.put.PutObject(ctx, in, s3.WithAPIOptions(v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware))
	if err != nil && r.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("put %s: %w", key, r.Err())
	}
	return s.failure(ctx, "put", key, err)
}

// encodeCRC gives the form of the x-amz-checksum-crc64nvme header: base64 of
// eight big-endian bytes.
func encodeCRC(sum uint64) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, sum))
}

func decodeCRC(v string) (uint64, bool) {
	b, err := base64.StdEncoding.DecodeString(v)
	if err != nil || len(b) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b), true
}
