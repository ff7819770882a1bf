package dirstore_test

import (
	"fmt"
	"testing"
)

// TestListBesideDelete: directories that go while they are listed are no failure.
func TestListBesideDelete(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, "z", "stays")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			key := fmt.Sprintf("a/b%d/c/d", i%3)
			put(t, s, key, "")
			if err := s.Delete(t.Context(), key); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 3000 {
		page, err := s.List(t.Context(), "", "")
		if err != nil || len(page.Objects) == 0 || page.Objects[len(page.Objects)-1].Key != "z" {
			t.Errorf("%+v, %v", page, err)
			break
		}
	}
	close(stop)
	<-done
}
