package s3

import (
	"errors"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/tierfs/tierfs/objstore"
)

// FuzzAnswer: no header of an answer makes it the wrong range, or a pause
// negative.
func FuzzAnswer(f *testing.F) {
	f.Add("bytes 0-9/10", "5", "rosUhgp5mIg=")
	f.Add("bytes 0-9/*", "Wed, 21 Oct 2015 07:28:00 GMT", "")
	f.Add("bytes 9-0/10", "-1", "AAAA")
	f.Fuzz(func(t *testing.T, contentRange, retryAfter, crc string) {
		out := &s3.GetObjectOutput{ContentRange: aws.String(contentRange)}
		err := checkContentRange(out, "k", 0, 10)
		var first, last int64
		if _, serr := fmt.Sscanf(contentRange, "bytes %d-%d/", &first, &last); err == nil && (serr != nil || first != 0 || last != 9) {
			t.Errorf("%q was taken for the first ten bytes", contentRange)
		}
		if err != nil && !errors.Is(err, objstore.ErrTransient) && !errors.Is(err, objstore.ErrRange) {
			t.Error(err)
		}
		if d := parseRetryAfter(retryAfter); d < 0 {
			t.Errorf("pause %v from %q", d, retryAfter)
		}
		if sum, ok := decodeCRC(crc); ok {
			if again, ok := decodeCRC(encodeCRC(sum)); !ok || again != sum {
				t.Errorf("%x became %x", sum, again)
			}
		}
	})
}
