package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Status is the part of `tierfs status --json` that scripts may rely on.
type Status struct {
	PID           int    `json:"pid"`
	Binary        string `json:"binary"`
	Writes        string `json:"writes"`
	Takeovers     uint64 `json:"takeovers"`
	Volume        string `json:"volume"`
	Owner         bool   `json:"owner"`
	UploadStalled bool   `json:"upload_stalled"`
	UploadLag     int64  `json:"upload_lag_bytes"`
	Store         struct {
		Backend   string `json:"backend"`
		Reachable bool   `json:"reachable"`
	} `json:"store"`
	Holder struct {
		Kind string `json:"kind"`
		PID  int    `json:"pid"`
	} `json:"holder"`
	Segments map[string]int64 `json:"segments"` // by state
	Bytes    map[string]int64 `json:"bytes"`    // by place
}

// Status asks the daemon.
func (d *Daemon) Status(ctx context.Context) (Status, error) {
	out, err := d.Do(ctx, "status", "--json", d.Mountpoint())
	if err != nil {
		return Status{}, err
	}
	var s Status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return Status{}, fmt.Errorf("tierfs status --json printed no JSON: %w: %s", err, out)
	}
	return s, nil
}

// Metric is the sum of a metric over all its series that carry these labels, given as key, value, key, value. No series is 0.
func (d *Daemon) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK || !strings.Contains(string(page), "tierfs_") {
		return 0, fmt.Errorf("%s is no metrics page: %s", request.URL, response.Status)
	}
	return sum(string(page), name, labels)
}

func sum(page, name string, labels []string) (float64, error) {
	total := 0.0
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ') // a label's value may have spaces, too
		if space < 0 {
			continue
		}
		series, value := line[:space], line[space+1:]
		base, rest, _ := strings.Cut(series, "{")
		if base != name {
			continue
		}
		matches := true
		for i := 0; i < len(labels); i += 2 {
			matches = matches && strings.Contains(rest, fmt.Sprintf("%s=%q", labels[i], labels[i+1]))
		}
		if !matches {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", series, err)
		}
		total += n
	}
	return total, nil
}
