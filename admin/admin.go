// Package admin is how a running daemon is asked and told: a control socket for
// the commands of tierfs, and an HTTP listener for monitoring.
//
// It promises:
//   - The control socket can be reached by root only: it lies in a directory
//     with mode 0700, and there is one for each mount, named by the volume id
//     (with a number if another source of the same volume, a copy, is mounted on
//     this machine), and that stands as the mount's source in
//     /proc/self/mountinfo. So a command finds the daemon of a mount without
//     touching the mount.
//   - A socket that a dead daemon left is replaced; that of a living one never. A daemon
//     that takes a mount over goes on with the same socket: who connects meanwhile waits.
//   - The HTTP listener shows and changes nothing: metrics, health, status.
//   - Close waits for every request.
//
// What is asked and told is behind Daemon, so that this package knows neither
// segments nor stores.
//
// On disk: /run/tierfs/<volume id>.sock, or <volume id>-2.sock and so on, gone after a clean stop.
//
// On the socket: HTTP with JSON bodies. GET /status (topics=true for the list
// of topics), GET /segments?partition=PATH, POST /pause, /resume, /unmount, and
// POST /evict and /check, which answer with one JSON value a line: Line. POST /upgrade
// answers before the daemon's binary is replaced, and with an error if it cannot be. An
// error is {"error": "one line"} with a status of 4xx or 5xx.
package admin

import (
	"context"
	"errors"
)

// ErrNotFound: there is nothing with that name. Daemons wrap it.
var ErrNotFound = errors.New("not found")

// ErrBusy: somebody uses the mount. Daemons wrap it.
var ErrBusy = errors.New("in use")

// Daemon is what a running mount can be asked and told. All methods may be
// called in parallel.
type Daemon interface {
	// Status describes the mount; the list of topics only if it is asked for.
	// It never waits for the store.
	Status(topics bool) Status
	// Segments lists a partition by its path below the mount point.
	Segments(partition string) ([]Segment, error)
	// Evict uploads and evicts what is due, and returns when that is done or ctx
	// ends. progress is called for each step, by one goroutine at a time.
	Evict(ctx context.Context, what EvictRequest, progress func(EvictStep)) (EvictResult, error)
	// Check looks for what is wrong with the records and their objects; report
	// and progress are called by one goroutine at a time.
	Check(ctx context.Context, what CheckRequest, report func(Finding), progress func(Progress)) (CheckResult, error)
	// Pause stops uploads, evictions and deletions, or lets them go on.
	Pause(paused bool)
	// Unmount unmounts if nobody is in the mount, or says who is (ErrBusy).
	Unmount() error
	// Upgrade makes sure that a binary can take the mount over. commit, called when
	// the answer is out, hands it over: it returns only if that failed.
	Upgrade(ctx context.Context, what UpgradeRequest) (commit func() error, err error)
}

// Status is what `tierfs status --json` prints.
type Status struct {
	PID        int    `json:"pid"`
	Binary     string `json:"binary"` // path, as the kernel names it
	Holder     Holder `json:"holder"`
	Writes     string `json:"writes"`               // through or writeback
	WritesWhy  string `json:"writes_why,omitempty"` // why not writeback
	Takeovers  uint64 `json:"takeovers"`            // by other daemons, since the mount
	Version    string `json:"version"`
	Source     string `json:"source"`
	Mountpoint string `json:"mountpoint"`
	Layout     string `json:"layout"` // "" while it is not known

	Volume     string `json:"volume"` // the id
	VolumeName string `json:"volume_name"`
	Owner      bool   `json:"owner"`
	OwnerWhy   string `json:"owner_why,omitempty"` // why not
	Store      Store  `json:"store"`
	Paused     bool   `json:"paused"`

	Segments map[string]int64 `json:"segments"` // by state
	Bytes    map[string]int64 `json:"bytes"`    // by place

	NotEvictableBytes   map[string]int64 `json:"not_evictable_bytes"` // by reason
	UploadStalled       bool             `json:"upload_stalled"`
	UploadStalledWhy    string           `json:"upload_stalled_why,omitempty"`
	UploadLagBytes      int64            `json:"upload_lag_bytes"`
	UploadOldestSeconds float64          `json:"upload_oldest_seconds"`
	UploadsQueued       int64            `json:"uploads_queued"`
	UploadsRunning      int64            `json:"uploads_running"`
	ColdReadsWaiting    int64            `json:"cold_reads_waiting"`
	Tombstones          int64            `json:"tombstones"`
	Quarantined         int64            `json:"quarantined"`
	Cache               Cache            `json:"cache"`

	Topics []Topic `json:"topics,omitempty"`
}

// Holder is who keeps what outlives a daemon.
type Holder struct {
	Kind string `json:"kind"` // process, systemd, none
	PID  int    `json:"pid"`
}

// Store is the object store as the daemon sees it.
type Store struct {
	Backend   string `json:"backend"`
	Location  string `json:"location"` // for people, without secrets
	Reachable bool   `json:"reachable"`
	Error     string `json:"error,omitempty"` // why not
}

// Cache is the state of the chunk cache.
type Cache struct {
	Bytes    int64  `json:"bytes"`
	Budget   int64  `json:"budget_bytes"`
	Chunks   int64  `json:"chunks"`
	Hits     uint64 `json:"hits"`
	Misses   uint64 `json:"misses"`
	Degraded bool   `json:"degraded"`
}

// Topic is what of a topic is where.
type Topic struct {
	Name        string           `json:"name"`
	Partitions  int64            `json:"partitions"`
	Segments    map[string]int64 `json:"segments"`
	LocalBytes  int64            `json:"local_bytes"`
	RemoteBytes int64            `json:"remote_bytes"`
	LagBytes    int64            `json:"upload_lag_bytes"`
	Why         string           `json:"why,omitempty"` // why it is not tiered
}

// Segment is one line of `tierfs ls`.
type Segment struct {
	Stem string  `json:"stem"`          // 20 digits
	End  *uint64 `json:"end,omitempty"` // last offset, nil while it is not known
	Size int64   `json:"size"`          // bytes, as the broker sees it
	// Allocated is what it takes on the local disk, in bytes.
	Allocated int64  `json:"allocated"`
	State     string `json:"state"`
	Why       string `json:"why,omitempty"` // why it may not be evicted
}

// EvictRequest says what to evict.
type EvictRequest struct {
	Topic string `json:"topic"` // pattern; "" = every topic
	All   bool   `json:"all"`   // not only what retention says
}

// EvictStep is one thing that an eviction did.
type EvictStep struct {
	Action  string `json:"action"`  // upload, evict
	Segment string `json:"segment"` // path below the mount point
	Bytes   int64  `json:"bytes"`
	// Done and Total count bytes of the whole request, as far as it is known now.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// EvictResult is the end of an eviction. What was in the store or remote already when it began is counted apart: the daemon
// uploads and evicts all the time.
type EvictResult struct {
	Uploaded            int64    `json:"uploaded"` // segments
	UploadedBytes       int64    `json:"uploaded_bytes"`
	UploadedBefore      int64    `json:"uploaded_before"` // of what was to be evicted
	UploadedBeforeBytes int64    `json:"uploaded_before_bytes"`
	Evicted             int64    `json:"evicted"`
	EvictedBytes        int64    `json:"evicted_bytes"`
	EvictedBefore       int64    `json:"evicted_before"` // of the topics asked for
	EvictedBeforeBytes  int64    `json:"evicted_before_bytes"`
	Stayed              []Stayed `json:"stayed"`
}

// Stayed is what stayed local, by reason.
type Stayed struct {
	Reason   string `json:"reason"`
	Segments int64  `json:"segments"`
	Bytes    int64  `json:"bytes"`
}

// UpgradeRequest says to what.
type UpgradeRequest struct {
	Binary string `json:"binary"` // path
}

// CheckRequest says how far a check goes.
type CheckRequest struct {
	Deep bool `json:"deep"` // also read every byte, below and in the store
}

// Finding is something that is wrong.
type Finding struct {
	Path    string `json:"path"`    // below the source
	Problem string `json:"problem"` // what is wrong
	Remedy  string `json:"remedy"`  // what to do
}

// Progress is how far a check has come.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// CheckResult is the end of a check.
type CheckResult struct {
	Partitions int64 `json:"partitions"`
	Records    int64 `json:"records"` // markers that were read
	Objects    int64 `json:"objects"` // objects that were looked for in the store
	Findings   int64 `json:"findings"`
}

// Line is one line of the answer to POST /evict or /check: any number of steps,
// findings and progress, and one result or error at the end.
type Line struct {
	Step     *EvictStep   `json:"step,omitempty"`
	Finding  *Finding     `json:"finding,omitempty"`
	Progress *Progress    `json:"progress,omitempty"`
	Evicted  *EvictResult `json:"evicted,omitempty"`
	Checked  *CheckResult `json:"checked,omitempty"`
	Error    string       `json:"error,omitempty"`
}
