package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/tierfs/tierfs/objstore"
)

// errSkew: the store refused the request's time.
var errSkew = errors.New("this machine's clock and the store's differ too much")

func isSkew(err error) bool { return errors.Is(err, errSkew) }
func isAuth(err error) bool { return errors.Is(err, objstore.ErrAuth) }

// codes maps what a store says to what tierfs says. A hint names the setting.
var codes = map[string]struct {
	kind error
	hint string
}{
	"NoSuchKey":                          {objstore.ErrNotFound, ""},
	"NoSuchBucket":                       {objstore.ErrConfig, "store.s3.bucket: there is no such bucket"},
	"InvalidBucketName":                  {objstore.ErrConfig, "store.s3.bucket: not a bucket's name"},
	"PermanentRedirect":                  {objstore.ErrConfig, "store.s3.region or store.s3.endpoint: the bucket is elsewhere"},
	"TemporaryRedirect":                  {objstore.ErrConfig, "store.s3.region or store.s3.endpoint: the bucket is elsewhere"},
	"AuthorizationHeaderMalformed":       {objstore.ErrConfig, "store.s3.region: not the bucket's region"},
	"IllegalLocationConstraintException": {objstore.ErrConfig, "store.s3.region: not the bucket's region"},
	"IncorrectEndpoint":                  {objstore.ErrConfig, "store.s3.endpoint: the bucket is elsewhere"},
	"PreconditionFailed":                 {objstore.ErrExists, ""},
	"ConditionalRequestConflict":         {objstore.ErrExists, ""},
	"InvalidAccessKeyId":                 {objstore.ErrAuth, "store.s3.access_key: the store does not know this key"},
	"InvalidAccessKey":                   {objstore.ErrAuth, "store.s3.access_key: the store does not know this key"},
	"XAdminUserNotFound":                 {objstore.ErrAuth, "store.s3.access_key: the store does not know this key"}, // versitygw
	"SignatureDoesNotMatch":              {objstore.ErrAuth, "store.s3.secret_key: does not belong to this access key"},
	"AccessDenied":                       {objstore.ErrAuth, "the credentials may not do this in this bucket"},
	"AllAccessDisabled":                  {objstore.ErrAuth, "the bucket is disabled"},
	"AccountProblem":                     {objstore.ErrAuth, "the account is disabled"},
	"ExpiredToken":                       {objstore.ErrAuth, "the session's token has expired"},
	"ExpiredTokenException":              {objstore.ErrAuth, "the session's token has expired"},
	"TokenRefreshRequired":               {objstore.ErrAuth, "the session's token has expired"},
	"InvalidToken":                       {objstore.ErrAuth, "the session's token is not valid"},
	"RequestTimeTooSkewed":               {errSkew, ""},
	"SlowDown":                           {objstore.ErrThrottled, ""},
	"SlowDownRead":                       {objstore.ErrThrottled, ""},
	"SlowDownWrite":                      {objstore.ErrThrottled, ""},
	"Throttling":                         {objstore.ErrThrottled, ""},
	"ThrottlingException":                {objstore.ErrThrottled, ""},
	"RequestLimitExceeded":               {objstore.ErrThrottled, ""},
	"RequestThrottled":                   {objstore.ErrThrottled, ""},
	"TooManyRequests":                    {objstore.ErrThrottled, ""},
	"BadDigest":                          {objstore.ErrChecksum, ""},
	"XAmzContentChecksumMismatch":        {objstore.ErrChecksum, ""},
	"InvalidRange":                       {objstore.ErrRange, ""},
	"NotImplemented":                     {objstore.ErrUnsupported, ""},
	"MethodNotAllowed":                   {objstore.ErrUnsupported, ""},
	"InvalidObjectState":                 {objstore.ErrUnsupported, "the object was moved to an archive class"},
	"InvalidStorageClass":                {objstore.ErrConfig, "store.s3.storage_class: the store does not have it"},
	"KeyTooLongError":                    {objstore.ErrInvalid, ""},
	"EntityTooLarge":                     {objstore.ErrTooLarge, ""},
	"InternalError":                      {objstore.ErrTransient, ""},
	"RequestTimeout":                     {objstore.ErrTransient, ""},
	"IncompleteBody":                     {objstore.ErrTransient, ""},
	"ExistingObjectIsDirectory":          {objstore.ErrTransient, "the store keeps keys as directories, and this key is or was one"}, // versitygw, also beside a delete
	"OperationAborted":                   {objstore.ErrTransient, ""},
	"ServiceUnavailable":                 {objstore.ErrTransient, ""},
}

// failure turns an error of the SDK into one of objstore's, in one line that has
// no secrets: the SDK's own text is not kept.
func (s *Store) failure(ctx context.Context, op, key string, err error) error {
	if err == nil {
		return nil
	}
	what := op
	if key != "" {
		what += " " + key
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: no answer from store.s3.endpoint, %s: %w", what, s.where, context.Cause(ctx))
	}
	if e, ok := errors.AsType[credentialsError](err); ok {
		return fmt.Errorf("%s: %w: no credentials found (store.s3.access_key is not set): %s", what, objstore.ErrAuth, oneLine(e.Error()))
	}
	status, header := response(err)
	if status == 0 {
		return fmt.Errorf("%s: %w", what, s.network(err))
	}
	text, kind := s.answer(status, err)
	err = fmt.Errorf("%s: %w: %s", what, kind, text)
	return objstore.WithRetryAfter(err, parseRetryAfter(header.Get("Retry-After")))
}

// response returns status and header of the answer that err is about; 0 when
// there was no answer.
func response(err error) (int, http.Header) {
	r, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok || r.Response == nil || r.Response.Response == nil {
		return 0, nil
	}
	return r.Response.StatusCode, r.Response.Header
}

// answer classifies what the store said: by its code, then by the status.
func (s *Store) answer(status int, err error) (text string, kind error) {
	code, message := "", ""
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		code, message = api.ErrorCode(), oneLine(api.ErrorMessage())
	}
	text = fmt.Sprintf("%s says %d %s", s.where, status, code)
	if message != "" {
		text += ": " + message
	}
	if c, ok := codes[code]; ok {
		if code == "SignatureDoesNotMatch" && strings.Contains(strings.ToLower(message), "region") {
			c = codes["AuthorizationHeaderMalformed"]
		}
		if c.kind == objstore.ErrConfig && strings.HasPrefix(c.hint, "store.s3.bucket") {
			c.hint += fmt.Sprintf(" %q", s.cfg.Bucket)
		}
		if c.hint != "" {
			text = c.hint + ": " + text
		}
		return text, c.kind
	}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return text, objstore.ErrAuth
	case status == http.StatusMovedPermanently, status == http.StatusTemporaryRedirect, status == http.StatusFound:
		return "store.s3.region or store.s3.endpoint: the bucket is elsewhere: " + text, objstore.ErrConfig
	case status == http.StatusRequestEntityTooLarge:
		return text, objstore.ErrTooLarge
	case status == http.StatusTooManyRequests:
		return text, objstore.ErrThrottled
	case status == http.StatusPreconditionFailed:
		return text, objstore.ErrExists
	case status == http.StatusRequestedRangeNotSatisfiable:
		return text, objstore.ErrRange
	case status == http.StatusNotImplemented, status == http.StatusMethodNotAllowed:
		return "store.s3.endpoint: is this an S3 endpoint? " + text, objstore.ErrUnsupported
	case status == http.StatusRequestTimeout, status >= 500:
		return text, objstore.ErrTransient
	case status == http.StatusNotFound:
		return "store.s3.endpoint: is this an S3 endpoint? " + text, objstore.ErrTransient
	case status < 300:
		return "store.s3.endpoint: the answer is not S3's: " + text, objstore.ErrConfig
	}
	return text, errRefused
}

var errRefused = errors.New("the store refused the request")

// network classifies failures without an answer.
func (s *Store) network(err error) error {
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("%w: store.ca_file: the certificate of %s is not trusted: %s", objstore.ErrConfig, s.where, oneLine(e.Err.Error()))
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || strings.Contains(err.Error(), "HTTP response to HTTPS client") {
		return fmt.Errorf("%w: store.s3.endpoint: %s does not speak TLS (https)", objstore.ErrConfig, s.where)
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Errorf("%w: store.s3.endpoint: the certificate is for another host", objstore.ErrConfig)
	}
	cause := innermost(err)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return fmt.Errorf("%w: store.s3.endpoint: %s cannot be reached: %w", objstore.ErrTransient, s.where, cause)
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("%w: store.s3.endpoint: the host of %s is not known: %w", objstore.ErrTransient, s.where, cause)
	}
	if bad, ok := errors.AsType[*smithy.DeserializationError](err); ok {
		return fmt.Errorf("%w: store.s3.endpoint: the answer of %s is not S3's: %s", objstore.ErrConfig, s.where, oneLine(bad.Err.Error()))
	}
	return fmt.Errorf("%w: %s: %w", objstore.ErrTransient, s.where, cause)
}

// innermost leaves out the wrappers of the SDK, with their URLs.
func innermost(err error) error {
	for {
		if _, ok := err.(*net.OpError); ok {
			return err
		}
		next := errors.Unwrap(err)
		if next == nil {
			return errors.New(oneLine(err.Error()))
		}
		err = next
	}
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// parseRetryAfter reads the header's two forms, seconds and a date.
func parseRetryAfter(v string) time.Duration {
	if v == "" {
		return 0
	}
	if n, err := strconv.Atoi(v); err == nil && n > 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}
