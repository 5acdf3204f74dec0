package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// stack runs the parts of a node. It is used by one goroutine, but for
// stopping.
type stack struct {
	stops    []func() error
	fail     chan error // capacity 1: the first failure of a running part
	once     sync.Once
	stopping atomic.Bool // close has begun
}

func newStack() *stack { return &stack{fail: make(chan error, 1)} }

// failed notes that a part ended although nobody stopped it.
func (s *stack) failed(name string, err error) {
	if err == nil {
		err = errors.New("ended without a reason")
	}
	s.once.Do(func() { s.fail <- fmt.Errorf("%s: %w", name, err) })
}

// run starts a part that serves until its context ends. Its stop cancels the
// context and waits for it.
func (s *stack) run(ctx context.Context, name string, serve func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() {
		err := serve(ctx)
		if ctx.Err() == nil {
			s.failed(name, err)
		}
		done <- err
	}()
	s.onStop(name, func() error {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
}

// onStop adds a step to the stop; steps run in reverse order of addition.
func (s *stack) onStop(name string, stop func() error) {
	s.stops = append(s.stops, func() error {
		if err := stop(); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
		return nil
	})
}

// wait blocks until ctx ends or a part fails, then stops every part. It
// returns why the node ended: nil when ctx did and all stopped well.
func (s *stack) wait(ctx context.Context) error {
	var why error
	select {
	case <-ctx.Done():
	case why = <-s.fail:
	}
	return errors.Join(why, s.close())
}

// close stops the parts, the newest first.
func (s *stack) close() error {
	s.stopping.Store(true)
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		errs = append(errs, s.stops[i]())
	}
	s.stops = nil
	return errors.Join(errs...)
}
