// Package config is the settings of tierfs: what each is called, its default,
// where its value came from, and whether it makes sense.
//
// It promises:
//   - Flags beat environment variables, those beat the file, the file beats the
//     defaults. Default has every key; a key that is not there is an error.
//   - An error is an *Error: one line with the place (file and line, variable
//     or flag), the key, the value and what to do. Secrets never appear in it.
//   - Nothing is touched on disk or in a store. Load reads the file and
//     Resolve looks at paths, no more.
//
// The file is TOML, see Default for its keys. A variable is TIERFS_ and the
// key's path in upper case, joined by "_"; a flag is the path in lower case,
// joined by "-". Durations are written "300 ms" or "1 d" (see Duration), sizes
// "4 GiB" (see Bytes).
//
// A Config is read by many goroutines at once and changed by nobody after Load.
package config

import "time"

// Config is all settings. Field names are the keys of the file.
type Config struct {
	Mount        Mount        `toml:"mount"`
	Store        Store        `toml:"store"`
	Upload       Upload       `toml:"upload"`
	Fetch        Fetch        `toml:"fetch"`
	Cache        Cache        `toml:"cache"`
	Retention    Retention    `toml:"retention"`
	Housekeeping Housekeeping `toml:"housekeeping"`
	Admin        Admin        `toml:"admin"`

	origins map[string]Origin // by path; what is missing is a default
}

// Mount is what is mounted where, and how.
type Mount struct {
	Source           string   `toml:"source"`
	Mountpoint       string   `toml:"mountpoint"` // "" = over the source
	Layout           string   `toml:"layout"`     // auto, kafka, iggy, generic
	Writes           string   `toml:"writes"`     // auto, through, writeback
	ReadAhead        Bytes    `toml:"read_ahead"`
	StateDir         string   `toml:"state_dir"` // "" = SOURCE/.tierfs
	GenericQuietTime Duration `toml:"generic_quiet_time"`
}

// Store is the object store.
type Store struct {
	Backend               string   `toml:"backend"` // fs, s3, gcs, azure, sim
	Volume                string   `toml:"volume"`  // "" = minted once
	TakeOwnership         bool     `toml:"take_ownership"`
	Prefix                string   `toml:"prefix"`
	ConditionalWrites     bool     `toml:"conditional_writes"`
	VerifyUploads         string   `toml:"verify_uploads"` // auto, always
	ConnectionIdleTimeout Duration `toml:"connection_idle_timeout"`
	PartSize              Bytes    `toml:"part_size"`
	CAFile                string   `toml:"ca_file"`
	Proxy                 string   `toml:"proxy" secret:"user"`
	FS                    StoreFS  `toml:"fs"`
	S3                    S3       `toml:"s3"`
	GCS                   GCS      `toml:"gcs"`
	Azure                 Azure    `toml:"azure"`
}

// StoreFS is a directory as a store.
type StoreFS struct {
	Path string `toml:"path"`
}

// S3 is AWS or what speaks its protocol.
type S3 struct {
	Bucket            string `toml:"bucket"`
	Region            string `toml:"region"`
	Endpoint          string `toml:"endpoint"`  // "" = AWS
	URLStyle          string `toml:"url_style"` // auto, path, virtual
	AccessKey         string `toml:"access_key"`
	SecretKey         string `toml:"secret_key" secret:"whole"`
	CredentialsSource string `toml:"credentials_source"` // auto, static
	StorageClass      string `toml:"storage_class"`
	SSE               string `toml:"sse"` // "", AES256, aws:kms
	SSEKMSKey         string `toml:"sse_kms_key"`
}

// GCS is Google Cloud Storage.
type GCS struct {
	Bucket          string `toml:"bucket"`
	Endpoint        string `toml:"endpoint"`
	CredentialsFile string `toml:"credentials_file"`
}

// Azure is Azure Blob Storage.
type Azure struct {
	Account    string `toml:"account"`
	Container  string `toml:"container"`
	Endpoint   string `toml:"endpoint"`
	AccountKey string `toml:"account_key" secret:"whole"`
}

// Upload is the way to the store.
type Upload struct {
	Concurrency    int      `toml:"concurrency"`
	LoopBackoffMax Duration `toml:"loop_backoff_max"`
	SegmentTimeout Duration `toml:"segment_timeout"`
	Bandwidth      Rate     `toml:"bandwidth"`
}

// Fetch is the way back.
type Fetch struct {
	Concurrency int      `toml:"concurrency"`
	Timeout     Duration `toml:"timeout"`     // Auto or Block, too
	MaxBlocked  Count    `toml:"max_blocked"` // CountAuto, too
	BusyTimeout Duration `toml:"busy_timeout"`
	Bandwidth   Rate     `toml:"bandwidth"`
	Deny        []string `toml:"deny"`
}

// Cache is the chunk cache.
type Cache struct {
	Path                string   `toml:"path"` // "" = state_dir/cache
	Size                Bytes    `toml:"size"`
	SizePercent         int      `toml:"size_percent"`
	MaxObjects          int      `toml:"max_objects"`
	ChunkSize           Bytes    `toml:"chunk_size"`
	ReadaheadMax        int      `toml:"readahead_max"`
	LowWatermarkPercent int      `toml:"low_watermark_percent"`
	TrimMinInterval     Duration `toml:"trim_min_interval"`
	Memory              Bytes    `toml:"memory"`
}

// Retention is what stays local, and how objects are deleted.
type Retention struct {
	TieredStorage             bool     `toml:"tiered_storage"`
	DefaultLocalRetentionAge  Duration `toml:"default_local_retention_age"`  // Unlimited, too
	DefaultLocalRetentionSize Bytes    `toml:"default_local_retention_size"` // UnlimitedBytes, too
	DiskHighPercent           int      `toml:"disk_high_percent"`
	DiskLowPercent            int      `toml:"disk_low_percent"`
	DeleteGrace               Duration `toml:"delete_grace"`
	DeleteBatchPerPass        int      `toml:"delete_batch_per_pass"`
	DeletePendingPerPartition int      `toml:"delete_pending_per_partition"`
	Topic                     []Topic  `toml:"topic"`
}

// Topic is the retention of the topics that its name matches. Load fills what
// it leaves out from the defaults.
type Topic struct {
	Name               string   `toml:"name"`
	TieredStorage      bool     `toml:"tiered_storage"`
	LocalRetentionAge  Duration `toml:"local_retention_age"`
	LocalRetentionSize Bytes    `toml:"local_retention_size"` // per topic
}

// Housekeeping is what can wait.
type Housekeeping struct {
	Interval               Duration `toml:"interval"`
	IdleTimeout            Duration `toml:"idle_timeout"`
	IdleThresholdRPS       int      `toml:"idle_threshold_rps"`
	RequestQuota           int      `toml:"request_quota"`
	OrphanSweepInterval    Duration `toml:"orphan_sweep_interval"`
	OrphanMinAge           Duration `toml:"orphan_min_age"`
	ManifestUploadInterval Duration `toml:"manifest_upload_interval"`
	VerifyInterval         Duration `toml:"verify_interval"`
}

// Admin is the HTTP listener.
type Admin struct {
	Listen string `toml:"listen"` // "" = off
}

// Default returns the settings before file, environment and flags.
func Default() *Config {
	return &Config{
		Mount: Mount{
			Layout:           "auto",
			Writes:           "auto",
			ReadAhead:        1 * MiB,
			GenericQuietTime: Duration(60 * time.Second),
		},
		Store: Store{
			Prefix:                "tierfs",
			ConditionalWrites:     true,
			VerifyUploads:         "auto",
			ConnectionIdleTimeout: Duration(5 * time.Second),
			PartSize:              64 * MiB,
			S3:                    S3{URLStyle: "auto", CredentialsSource: "auto"},
		},
		Upload: Upload{
			Concurrency:    4,
			LoopBackoffMax: Duration(10 * time.Second),
			SegmentTimeout: Duration(90 * time.Second),
			Bandwidth:      UnlimitedRate,
		},
		Fetch: Fetch{
			Concurrency: 16,
			Timeout:     Auto,
			MaxBlocked:  CountAuto,
			BusyTimeout: Duration(300 * time.Millisecond),
			Bandwidth:   UnlimitedRate,
		},
		Cache: Cache{
			Size:                4 * GiB,
			SizePercent:         20,
			MaxObjects:          100000,
			ChunkSize:           8 * MiB,
			ReadaheadMax:        4,
			LowWatermarkPercent: 80,
			TrimMinInterval:     Duration(5 * time.Second),
			Memory:              64 * MiB,
		},
		Retention:    defaultRetention(),
		Housekeeping: defaultHousekeeping(),
	}
}

func defaultRetention() Retention {
	return Retention{
		TieredStorage:             true,
		DefaultLocalRetentionAge:  Duration(24 * time.Hour),
		DefaultLocalRetentionSize: UnlimitedBytes,
		DiskHighPercent:           90,
		DiskLowPercent:            80,
		DeleteGrace:               Duration(time.Hour),
		DeleteBatchPerPass:        300,
		DeletePendingPerPartition: 5000,
	}
}

func defaultHousekeeping() Housekeeping {
	return Housekeeping{
		Interval:               Duration(5 * time.Minute),
		IdleTimeout:            Duration(10 * time.Second),
		IdleThresholdRPS:       10,
		RequestQuota:           5000,
		OrphanSweepInterval:    Duration(24 * time.Hour),
		OrphanMinAge:           Duration(24 * time.Hour),
		ManifestUploadInterval: Duration(60 * time.Second),
		VerifyInterval:         Duration(24 * time.Hour),
	}
}
