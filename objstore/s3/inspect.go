package s3

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Inspect implements objstore.Inspector: it warns of versioning, object lock and
// lifecycle rules. A setting that cannot be read, by lack of permission or
// because the store has no such thing, is left out.
func (s *Store) Inspect(ctx context.Context, prefix string) []string {
	var warnings []string
	if v, err := s.get.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &s.cfg.Bucket}); err == nil &&
		v.Status == types.BucketVersioningStatusEnabled {
		warnings = append(warnings, "the bucket is versioned: deleted objects go on costing space until a lifecycle rule expires noncurrent versions")
	}
	if l, err := s.get.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &s.cfg.Bucket}); err == nil &&
		l.ObjectLockConfiguration != nil && l.ObjectLockConfiguration.Rule != nil {
		warnings = append(warnings, "the bucket has object lock with a default retention: objects cannot be deleted before that")
	}
	l, err := s.get.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: &s.cfg.Bucket})
	if err != nil {
		return warnings
	}
	for _, rule := range l.Rules {
		if what := harm(rule, prefix); what != "" {
			warnings = append(warnings, fmt.Sprintf("lifecycle rule %q %s: it must not touch what tierfs keeps", aws.ToString(rule.ID), what))
		}
	}
	return warnings
}

// harm says what a lifecycle rule does to objects below prefix, "" for nothing.
func harm(rule types.LifecycleRule, prefix string) string {
	if rule.Status != types.ExpirationStatusEnabled {
		return ""
	}
	//lint:ignore SA1019 rules that were made long ago have their prefix here
	below := aws.ToString(rule.Prefix)
	if rule.Filter != nil {
		below = aws.ToString(rule.Filter.Prefix)
		if rule.Filter.And != nil {
			below = aws.ToString(rule.Filter.And.Prefix)
		}
	}
	if !strings.HasPrefix(below, prefix) && !strings.HasPrefix(prefix, below) {
		return ""
	}
	switch {
	case rule.Expiration != nil && (rule.Expiration.Days != nil || rule.Expiration.Date != nil):
		return "deletes objects"
	case len(rule.Transitions) > 0:
		return "moves objects to another class"
	}
	return ""
}
