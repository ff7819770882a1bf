package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
)

// A store whose opening hangs holds no call longer than the call may take.
func TestLateStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		comes := make(chan struct{})
		var tries atomic.Int64
		l := newLateStore(func(context.Context) (objstore.Store, error) {
			tries.Add(1)
			<-comes // whatever becomes of the context, as in the kernel
			return sim.New(sim.Options{}), nil
		})
		ask := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := l.List(ctx, "", "")
			return err
		}
		began := time.Now()
		answers := make(chan error)
		for range 2 {
			go func() { answers <- ask(time.Second) }()
		}
		for range 2 {
			if err := <-answers; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		go func() { answers <- ask(time.Minute) }()
		synctest.Wait()
		close(comes)
		if err := <-answers; err != nil || tries.Load() != 1 {
			t.Errorf("%v after %d tries", err, tries.Load())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Close ends a try and waits for it; nothing is tried afterwards.
func TestLateStoreIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		l := newLateStore(func(ctx context.Context) (objstore.Store, error) {
			<-ctx.Done()
			ended.Store(true)
			return nil, ctx.Err()
		})
		answer := make(chan error)
		go func() {
			_, err := l.Head(t.Context(), "k")
			answer <- err
		}()
		synctest.Wait()
		if err := l.Close(); err != nil || !ended.Load() {
			t.Errorf("%v, the try has ended: %v", err, ended.Load())
		}
		for range 2 {
			if err := <-answer; !errors.Is(err, objstore.ErrTransient) {
				t.Errorf("got %v", err)
			}
			go func() {
				_, err := l.Head(t.Context(), "k")
				answer <- err
			}()
		}
		<-answer
	})
}
