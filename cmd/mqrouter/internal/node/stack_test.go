package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestStackStopsInReverseOrderAndJoins(t *testing.T) {
	s := newStack()
	var order []string
	part := func(name string) {
		s.run(t.Context(), name, func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, name) // the stack joins before it stops the next
			return ctx.Err()
		})
	}
	part("first")
	s.onStop("step", func() error {
		order = append(order, "step")
		if !s.stopping.Load() {
			t.Error("a stop runs and the node does not say that it stops")
		}
		return nil
	})
	part("last")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.wait(ctx); err != nil {
		t.Errorf("wait: %v", err)
	}
	if want := []string{"last", "step", "first"}; !slices.Equal(order, want) {
		t.Errorf("stopped %v; want %v", order, want)
	}
	if err := s.close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestStackEndsWhenAPartFails(t *testing.T) {
	s := newStack()
	stopped := false
	s.run(t.Context(), "other", func(ctx context.Context) error {
		<-ctx.Done()
		stopped = true
		return nil
	})
	s.run(t.Context(), "log", func(context.Context) error { return errors.New("disk gone") })
	err := s.wait(t.Context())
	if err == nil || !strings.Contains(err.Error(), "log: disk gone") {
		t.Errorf("wait: %v; want the failed part and why", err)
	}
	if !stopped {
		t.Error("the other part was left running")
	}
	s = newStack()
	s.run(t.Context(), "quiet", func(context.Context) error { return nil })
	if err := s.wait(t.Context()); err == nil || !strings.Contains(err.Error(), "quiet") {
		t.Errorf("a part that ended without a word: %v; want an error", err)
	}
}
