package layout_test

import (
	"errors"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tierfs/tierfs/layout"
)

func TestParseCheckpoint(t *testing.T) {
	for _, c := range []struct {
		what, text string
		want       map[layout.Partition]uint64
	}{
		{"no entry", "0\n0\n", map[layout.Partition]uint64{}},
		{"one", "0\n1\nt 0 42\n", map[layout.Partition]uint64{part("t", "0"): 42}},
		{"no last line end", "0\n1\nt 0 42", map[layout.Partition]uint64{part("t", "0"): 42}},
		{"dots, dashes, underscores", "0\n2\na.b-c_d 10 1\n_-. 0 2\n", map[layout.Partition]uint64{part("a.b-c_d", "10"): 1, part("_-.", "0"): 2}},
		{"highest", "0\n1\nt 2147483647 9223372036854775807\n", map[layout.Partition]uint64{part("t", "2147483647"): math.MaxInt64}},
		{"twice, lower first", "0\n2\nt 0 1\nt 0 9\n", map[layout.Partition]uint64{part("t", "0"): 1}},
		{"twice, lower last", "0\n2\nt 0 9\nt 0 1\n", map[layout.Partition]uint64{part("t", "0"): 1}},
	} {
		t.Run(c.what, func(t *testing.T) {
			got, err := layout.ParseCheckpoint([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestParseCheckpointRefuses(t *testing.T) {
	for what, text := range map[string]string{
		"nothing":              "",
		"version alone":        "0",
		"version 1":            "1\n0\n",
		"version as text":      "v\n0\n",
		"no count":             "0\n",
		"count cut":            "0\n1",
		"count negative":       "0\n-1\n",
		"count as text":        "0\nmany\n",
		"count too large":      "0\n99999999999\n",
		"too few entries":      "0\n2\nt 0 1\n",
		"too many entries":     "0\n1\nt 0 1\nt 1 1\n",
		"empty line behind":    "0\n1\nt 0 1\n\n",
		"empty line":           "0\n1\n\n",
		"two fields":           "0\n1\nt 0\n",
		"four fields":          "0\n1\nt 0 1 2\n",
		"two spaces":           "0\n1\nt  0 1\n",
		"tab":                  "0\n1\nt\t0\t1\n",
		"carriage return":      "0\r\n0\r\n",
		"no topic":             "0\n1\n 0 1\n",
		"topic with a slash":   "0\n1\na/b 0 1\n",
		"partition negative":   "0\n1\nt -1 1\n",
		"partition as text":    "0\n1\nt x 1\n",
		"partition too large":  "0\n1\nt 2147483648 1\n",
		"offset negative":      "0\n1\nt 0 -1\n",
		"offset as text":       "0\n1\nt 0 1e3\n",
		"offset too large":     "0\n1\nt 0 9223372036854775808\n",
		"offset far too large": "0\n1\nt 0 99999999999999999999\n",
		"zeros":                "\x00\x00\x00\x00",
	} {
		t.Run(what, func(t *testing.T) {
			if got, err := layout.ParseCheckpoint([]byte(text)); !errors.Is(err, layout.ErrCheckpoint) {
				t.Fatalf("%v, %v", got, err)
			}
		})
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("0\n2147483647\n"))
	f.Add([]byte("0\n2\na.b-c_d 10 1\n_-. 0 2"))
	kafka := rules(f, layout.Kafka)
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := layout.ParseCheckpoint(b)
		if err != nil {
			if !errors.Is(err, layout.ErrCheckpoint) {
				t.Fatal(err)
			}
			return
		}
		for p, offset := range got {
			if offset > math.MaxInt64 {
				t.Fatalf("%v: %d", p, offset)
			}
			if q, _ := kafka.Classify(p.Topic + "-" + p.Number); q != p {
				t.Fatalf("%v is no partition, or %v", p, q)
			}
		}
	})
}
