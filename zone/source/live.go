package source

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/mqrouter/mqrouter/zone"
)

// Live holds the running topology of a node. The zero value is not usable;
// call NewLive. All methods are safe for concurrent use.
type Live struct {
	state atomic.Pointer[state]
	mu    sync.Mutex // serialises Apply; readers take no lock
}

// state is one running topology; changed is closed when the next one runs.
type state struct {
	topology *zone.Topology
	changed  chan struct{}
}

// NewLive returns a Live with a first topology, which is not nil.
func NewLive(first *zone.Topology) *Live {
	l := &Live{}
	l.state.Store(&state{topology: first, changed: make(chan struct{})})
	return l
}

// Current returns the running topology; never nil. It does not block.
func (l *Live) Current() *zone.Topology { return l.state.Load().topology }

// Watch returns the running topology and a channel that is closed as soon as
// another one runs. A loop takes both, works with the topology, and waits:
//
//	for {
//		t, changed := live.Watch()
//		use(t)
//		select {
//		case <-changed:
//		case <-ctx.Done():
//			return ctx.Err()
//		}
//	}
//
// A slow reader skips topologies and always ends at the newest.
func (l *Live) Watch() (*zone.Topology, <-chan struct{}) {
	s := l.state.Load()
	return s.topology, s.changed
}

// Apply makes next the running topology when Judge lets it, and returns
// Judge's *RefusedError otherwise. A topology equal to the running one changes
// nothing.
func (l *Live) Apply(next *zone.Topology) error { return l.apply(next, false) }

// Confirm applies next like Apply, although it may be much smaller.
func (l *Live) Confirm(next *zone.Topology) error { return l.apply(next, true) }

func (l *Live) apply(next *zone.Topology, confirmed bool) error {
	l.mu.Lock()
	old := l.state.Load()
	if err := Judge(old.topology, next); err != nil && (!confirmed || !errors.Is(err, ErrMuchSmaller)) {
		l.mu.Unlock()
		return err
	}
	if next.Epoch == old.topology.Epoch {
		l.mu.Unlock()
		return nil
	}
	l.state.Store(&state{topology: next, changed: make(chan struct{})})
	l.mu.Unlock()
	close(old.changed)
	return nil
}
