package s3_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

const benchSize = 64 << 20

// BenchmarkPut compares a streamed Put of a 64 MiB file through the whole stack
// (checksum pass included, decorators around it) with a plain PutObject of the
// SDK, both sending the same checksum, in alternating rounds: the metric ratio is
// the median of ours over the median of theirs in bytes per second.
func BenchmarkPut(b *testing.B) {
	srv := s3test.Start(b)
	bucket := srv.Bucket(b)
	file := benchFile(b)
	store := objstore.Decorate(open(b, config(srv, bucket)), objstore.Options{})
	raw := sdk.New(sdk.Options{
		Region: s3test.Region, BaseEndpoint: aws.String(srv.Endpoint), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s3test.AccessKey, s3test.SecretKey, ""),
	})
	body, err := objstore.NewBody(file, benchSize)
	if err != nil {
		b.Fatal(err)
	}
	sum := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, body.CRC64NVME))
	ours := func(key string) error {
		body, err := objstore.NewBody(file, benchSize)
		if err != nil {
			return err
		}
		return store.Put(b.Context(), key, body, objstore.PutOptions{IfAbsent: true})
	}
	theirs := func(key string) error {
		_, err := raw.PutObject(b.Context(), &sdk.PutObjectInput{
			Bucket: &bucket, Key: &key, Body: io.NewSectionReader(file, 0, benchSize), ChecksumCRC64NVME: &sum,
		}, sdk.WithAPIOptions(v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware))
		return err
	}
	b.SetBytes(2 * benchSize)
	var a, z []time.Duration
	for i := 0; b.Loop(); i++ {
		a = append(a, timed(b, ours, fmt.Sprintf("ours-%d", i)))
		z = append(z, timed(b, theirs, fmt.Sprintf("raw-%d", i)))
		b.StopTimer()
		if err := store.Delete(b.Context(), fmt.Sprintf("ours-%d", i), fmt.Sprintf("raw-%d", i)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(median(z))/float64(median(a)), "ratio")
	b.ReportMetric(benchSize/1e6/median(a).Seconds(), "ours-MB/s")
	b.ReportMetric(benchSize/1e6/median(z).Seconds(), "raw-MB/s")
}

func benchFile(b *testing.B) *os.File {
	f, err := os.Create(filepath.Join(b.TempDir(), "segment"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	chunk := make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = byte(i * 7 >> 3)
	}
	for range benchSize / len(chunk) {
		if _, err := f.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	return f
}

func timed(b *testing.B, put func(string) error, key string) time.Duration {
	start := time.Now()
	if err := put(key); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func median(d []time.Duration) time.Duration {
	sort.Slice(d, func(i, j int) bool { return d[i] < d[j] })
	return d[len(d)/2]
}
