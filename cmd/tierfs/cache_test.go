package main

import "testing"

// TestSharedCache: one file of settings for two mounts gives both the same cache.
func TestSharedCache(t *testing.T) {
	w, other := newWorld(t, 1), newWorld(t, 1)
	cache := t.TempDir()
	w.mount("--cache-path", cache)
	other.start("--cache-path", cache)
	other.failsToStart("cache.path")
	other.asIs()
	w.stop()
}
