package s3

import "time"

// SetStall changes how long a body may bring no byte.
func (s *Store) SetStall(d time.Duration) { s.stall = d }
