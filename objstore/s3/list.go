package s3

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/tierfs/tierfs/objstore"
	"golang.org/x/sync/errgroup"
)

// List implements objstore.Store with ListObjectsV2. What a store says besides
// (keys up to after, keys outside prefix) is left out; keys that do not ascend are
// ErrUnsupported, for then no listing is ever complete.
func (s *Store) List(ctx context.Context, prefix, after string) (objstore.Page, error) {
	var page objstore.Page
	err := s.try(func() (err error) {
		page, err = s.listOnce(ctx, prefix, after)
		return err
	})
	return page, err
}

func (s *Store) listOnce(ctx context.Context, prefix, after string) (objstore.Page, error) {
	in := &s3.ListObjectsV2Input{Bucket: &s.cfg.Bucket, MaxKeys: aws.Int32(objstore.PageSize)}
	if prefix != "" {
		in.Prefix = &prefix
	}
	if after != "" {
		in.StartAfter = &after
	}
	for {
		out, err := s.put.ListObjectsV2(ctx, in)
		if err != nil {
			return objstore.Page{}, s.failure(ctx, "list", prefix, err)
		}
		page := objstore.Page{More: aws.ToBool(out.IsTruncated)}
		last := after
		for _, o := range out.Contents {
			key := aws.ToString(o.Key)
			if key <= after || !strings.HasPrefix(key, prefix) {
				continue
			}
			if key <= last {
				return objstore.Page{}, fmt.Errorf("list %s: %w: keys do not ascend: %q after %q", prefix, objstore.ErrUnsupported, key, last)
			}
			last = key
			page.Objects = append(page.Objects, objstore.Info{Key: key, Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)})
		}
		if len(page.Objects) > 0 || !page.More {
			return page, nil
		}
		if aws.ToString(out.NextContinuationToken) == "" {
			return objstore.Page{}, fmt.Errorf("list %s: %w: an empty page that goes on nowhere", prefix, objstore.ErrTransient)
		}
		in.ContinuationToken = out.NextContinuationToken
	}
}

// Delete implements objstore.Store with DeleteObjects, 1,000 keys a request. A
// store that does not know that request gets one DeleteObject for each key, several at
// once.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := objstore.CheckKey(key); err != nil {
			return err
		}
	}
	for len(keys) > 0 {
		n := min(len(keys), objstore.PageSize)
		if err := s.deleteBatch(ctx, keys[:n]); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

func (s *Store) deleteBatch(ctx context.Context, keys []string) error {
	if len(keys) > 1 && !s.singleDeletes.Load() {
		err := s.try(func() error { return s.deleteMany(ctx, keys) })
		if !errors.Is(err, objstore.ErrUnsupported) {
			return err
		}
		s.cfg.Log.Info("the store does not take DeleteObjects: objects are deleted one by one", "error", err)
		s.singleDeletes.Store(true)
	}
	together, ctx := errgroup.WithContext(ctx)
	together.SetLimit(deletesAtOnce)
	for _, key := range keys {
		together.Go(func() error { return s.deleteOne(ctx, key) })
	}
	return together.Wait()
}

// deletesAtOnce is how many single deletes of one call are under way at once.
const deletesAtOnce = 16

func (s *Store) deleteOne(ctx context.Context, key string) error {
	err := s.try(func() error {
		_, err := s.put.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.cfg.Bucket, Key: &key})
		return s.failure(ctx, "delete", key, err)
	})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return err
}

func (s *Store) deleteMany(ctx context.Context, keys []string) error {
	ids := make([]types.ObjectIdentifier, len(keys))
	for i := range keys {
		ids[i].Key = &keys[i]
	}
	out, err := s.put.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: &s.cfg.Bucket,
		Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)},
	}, s3.WithAPIOptions(smithyhttp.AddContentChecksumMiddleware))
	if err != nil {
		return s.failure(ctx, "delete", fmt.Sprintf("%d keys from %s", len(keys), keys[0]), err)
	}
	for _, e := range out.Errors {
		code := aws.ToString(e.Code)
		if code == "NoSuchKey" {
			continue
		}
		kind := objstore.ErrTransient
		if c, ok := codes[code]; ok {
			kind = c.kind
		}
		return fmt.Errorf("delete %s (and %d more of %d): %w: %s says %s: %s", aws.ToString(e.Key), len(out.Errors)-1,
			len(keys), kind, s.where, code, oneLine(aws.ToString(e.Message)))
	}
	return nil
}
