package chunkcache

import "time"

// retryInterval is for how long a disk that failed is left alone.
const retryInterval = 5 * time.Second

// diskUsable says whether the disk should be written to: it works, or it is time to find out.
func (c *Cache) diskUsable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.failing || time.Now().After(c.retryAt)
}

// diskFailed notes that the disk failed. Reads go past it until it works again. Only the change is logged.
func (c *Cache) diskFailed(what string, err error) {
	c.mu.Lock()
	changed := !c.failing
	c.failing, c.retryAt = true, time.Now().Add(retryInterval)
	c.mu.Unlock()
	if changed {
		c.log.Error("the cache's disk fails; reads go past it", "operation", what, "error", err)
	}
}

// diskWorked notes that the disk took a chunk.
func (c *Cache) diskWorked() {
	c.mu.Lock()
	changed := c.failing
	c.failing = false
	c.mu.Unlock()
	if changed {
		c.log.Info("the cache's disk works again")
	}
}
