package config

import "testing"

func TestScanLines(t *testing.T) {
	l := scanLines(`# size = 1
top = 1
store.s3.bucket = "b"
[cache] # the cache
"size" = "1 GiB"   # size = 2
  chunk_size="8 MiB"
[ store . s3 ]
region = "a=b"
[[retention.topic]]
name = "a"
[[retention.topic]]

'name' = "b"
[fetch]
deny = [
  "x",
]
gcs = { bucket = "b" }
`)
	for path, want := range map[string]int{
		"top":                    2,
		"store.s3.bucket":        3,
		"cache":                  4,
		"cache.size":             5,
		"cache.chunk_size":       6,
		"store.s3.region":        8,
		"retention.topic.0.name": 10,
		"retention.topic.1":      11,
		"retention.topic.1.name": 13,
		"fetch.deny":             15,
		"fetch.gcs.bucket":       18, // by the table around it
		"cache.nothing":          4,
		"nothing":                0,
	} {
		if got := l.of(path); got != want {
			t.Errorf("%s is on line %d, want %d", path, got, want)
		}
	}
}
