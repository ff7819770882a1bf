package s3_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// TestDeleteOneByOne: a store without DeleteObjects is found out once.
func TestDeleteOneByOne(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	keys := []string{"a", "b", "missing", "c"}
	for _, k := range []string{"a", "b", "c", "d"} {
		if err := s.Put(t.Context(), k, body(1, 1), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.setFault(always("POST", says(501, "NotImplemented")))
	for range 2 {
		if err := s.Delete(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.List(t.Context(), "", "")
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "d" {
		t.Fatalf("%+v, %v", page, err)
	}
	if p.count("POST") != 1 || p.count("DELETE") != 8 {
		t.Errorf("%d POST, %d DELETE", p.count("POST"), p.count("DELETE"))
	}
}

// TestDeleteOneByOneTogether: a thousand answers are not waited for one after the
// other: a try would never come to the end of its keys.
func TestDeleteOneByOneTogether(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	var inside atomic.Int64
	together := make(chan struct{})
	p.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			says(501, "NotImplemented")(w, r)
			return true
		}
		if inside.Add(1) == 4 {
			close(together)
		}
		select {
		case <-together:
			w.WriteHeader(http.StatusNoContent)
		case <-r.Context().Done():
		}
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Delete(ctx, "a", "b", "c", "d", "e"); err != nil {
		t.Fatal(err)
	}
	p.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		says(403, "AccessDenied")(w, r)
		return true
	})
	if err := s.Delete(t.Context(), "a", "b", "c", "d", "e"); !errors.Is(err, objstore.ErrAuth) {
		t.Errorf("%v", err)
	}
}

// TestDeleteReports: an object that was not deleted is an error.
func TestDeleteReports(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	for code, want := range map[string]error{"AccessDenied": objstore.ErrAuth, "InternalError": objstore.ErrTransient, "NoSuchKey": nil} {
		p.setFault(always("POST", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `<DeleteResult><Error><Key>a</Key><Code>%s</Code><Message>m</Message></Error></DeleteResult>`, code)
		}))
		err := s.Delete(t.Context(), "a", "b")
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", code, err)
		}
	}
}
