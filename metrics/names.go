package metrics

// desc is one metric's name, meaning and labels.
type desc struct {
	name   string
	help   string
	labels []string
}

// The object store.
var (
	descStoreRequests = desc{"tierfs_store_requests_total", "Requests to the object store by operation and result (ok or the error's class).", []string{"op", "result"}}
	descStoreSeconds  = desc{"tierfs_store_request_seconds", "How long a request to the object store took.", []string{"op"}}
	descStoreBytes    = desc{"tierfs_store_bytes_total", "Bytes of bodies sent to and read from the object store.", []string{"op"}}
	descStoreRetries  = desc{"tierfs_store_retries_total", "Tries beyond the first of a request to the object store.", []string{"op"}}
)

// The chunk cache and cold reads.
var (
	descCacheHits        = desc{"tierfs_cache_hits_total", "Chunk reads that were answered from the cache.", nil}
	descCacheMisses      = desc{"tierfs_cache_misses_total", "Chunk reads that had to go to the store.", nil}
	descCacheTrimmed     = desc{"tierfs_cache_trimmed_chunks_total", "Chunks that were dropped to keep the cache within its budget.", nil}
	descCacheBad         = desc{"tierfs_cache_bad_chunks_total", "Chunks that failed their checksum on the cache's disk and were fetched again.", nil}
	descCacheBypassed    = desc{"tierfs_cache_bypassed_reads_total", "Reads that went past the cache because its disk failed or was full.", nil}
	descColdWaiting      = desc{"tierfs_cold_reads_waiting", "Reads that are waiting for the store now.", nil}
	descColdSeconds      = desc{"tierfs_cold_read_seconds", "How long a read waited for the store.", nil}
	descFetchedBytes     = desc{"tierfs_fetched_bytes_total", "Bytes fetched from the store for reads.", []string{"topic"}}
	descChecksumFailures = desc{"tierfs_batch_checksum_failures_total", "Batches from the store whose own checksum did not match.", nil}
)

// Uploads, evictions, deletions.
var (
	descUploads        = desc{"tierfs_uploads_total", "Segment uploads by result.", []string{"result"}}
	descUploadSeconds  = desc{"tierfs_upload_seconds", "How long the successful upload of a segment took.", nil}
	descUploadBytes    = desc{"tierfs_upload_bytes_total", "Bytes of segments uploaded and verified.", nil}
	descUploadRunning  = desc{"tierfs_upload_running", "Uploads that are running now.", nil}
	descUploadQueue    = desc{"tierfs_upload_queued_segments", "Sealed segments that wait for their upload.", nil}
	descUploadRejected = desc{"tierfs_upload_rejected_segments_total", "Sealed segments that were left alone because they did not verify, by reason.", []string{"reason"}}
	descEvictions      = desc{"tierfs_evictions_total", "Segments whose local copy was dropped.", nil}
	descEvictedBytes   = desc{"tierfs_evicted_bytes_total", "Bytes of local copies that were dropped.", nil}
	descRetired        = desc{"tierfs_retired_total", "Segments whose objects were deleted from the store.", nil}
)

// Where the bytes are; read when somebody scrapes.
var (
	descSegments      = desc{"tierfs_segments", "Segments by state.", []string{"state"}}
	descBytes         = desc{"tierfs_bytes", "Bytes by where they are: allocated bytes of local logs, bytes of remote segments, bytes in the chunk cache.", []string{"where"}}
	descNotEvictable  = desc{"tierfs_not_evictable_bytes", "Local bytes that may not be evicted, by reason.", []string{"reason"}}
	descStalled       = desc{"tierfs_upload_stalled", "1 while uploads fail: for 60 seconds or more, or the store's breaker is open.", nil}
	descLag           = desc{"tierfs_upload_lag_bytes", "Bytes of sealed segments that are not uploaded.", nil}
	descOldest        = desc{"tierfs_upload_oldest_seconds", "Age of the oldest sealed segment that is not uploaded.", nil}
	descTombstones    = desc{"tierfs_tombstones", "Retired uploads whose objects are still to be deleted.", nil}
	descRetireRefused = desc{"tierfs_retire_refused_total", "Attempts to delete an upload's objects that the store refused.", nil}
	descRehydrations  = desc{"tierfs_rehydrations_total", "Remote segments brought back as local files.", nil}
	descOwner         = desc{"tierfs_owner", "1 while the mount is known to own its volume; any other uploads, evicts and deletes nothing.", nil}
	descQuarantined   = desc{"tierfs_quarantined_segments", "Segments whose bytes cannot be found: a hole or an invalid marker.", nil}
)

// Requests of the kernel.
var (
	descFuseRequests = desc{"tierfs_fuse_requests_total", "Requests of the kernel by operation.", []string{"op"}}
	descFuseSeconds  = desc{"tierfs_fuse_request_seconds", "How long a request of the kernel took.", []string{"op"}}
	descTakeovers    = desc{"tierfs_takeovers_total", "Times that a daemon took the mount over from another one.", nil}
)
