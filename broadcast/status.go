package broadcast

import (
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// State is what a Sync does.
type State string

// The states.
const (
	StateConnecting State = "connecting" // to the landing group, or to the cache
	StateFollowing  State = "following"  // landings are applied as they come
	StateHeld       State = "held"       // the cache does not take changes
	StateStopped    State = "stopped"
)

// keptGaps bounds the gaps that a status shows, the newest last.
const keptGaps = 16

// Status is what a Sync says of itself.
type Status struct {
	Kind  string // of the applier
	Topic zone.Topic
	State State
	Place Place  // everything below its offset is applied
	Head  uint64 // offset after the newest landing known; more may wait at the landing group while the cache is held
	Lag   uint64 // Head less the place: landings not applied. 0 means nothing unless State is StateFollowing

	Applied    uint64 // changes since the start of the process, as the next three
	Superseded uint64 // the cache had the same or something newer
	Rejected   uint64 // messages that are no changes
	Regressed  uint64 // how often the cache fell back and was refilled

	Gaps       uint64 // told since the start
	Fills      uint64 // of these: of a cache that had nothing yet, so that nothing was out of date
	LastGaps   []Gap  // the newest of them
	Watermarks []Mark
	Problem    string    // what is wrong now; empty: nothing
	Reject     string    // the newest rejected message and why
	Moved      time.Time // when the place moved last
}

// board is the status, shared with readers.
type board struct {
	mu     sync.Mutex
	status Status // guarded by mu
	base   State  // the state without the cache's trouble; guarded by mu
	broken bool   // the cache is in trouble; guarded by mu
}

// Status returns the present status. It is safe for concurrent use.
func (s *Sync) Status() Status {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	st := s.board.status
	st.LastGaps = slices.Clone(st.LastGaps)
	return st
}

func (b *board) with(fn func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fn(&b.status)
	b.status.Lag = 0
	if b.status.Head > b.status.Place.Offset {
		b.status.Lag = b.status.Head - b.status.Place.Offset
	}
}

func (b *board) state(state State) {
	b.with(func(s *Status) {
		b.base = state
		if !b.broken {
			s.State = state
		}
		if state == StateFollowing {
			s.Problem = ""
		}
	})
}

// failed notes why a session ended.
func (b *board) failed(err error) {
	b.with(func(s *Status) { s.State, s.Problem = StateConnecting, err.Error() })
}

// cache notes whether the cache answers.
func (b *board) cache(err error) {
	b.with(func(s *Status) {
		switch {
		case err != nil:
			b.broken, s.State, s.Problem = true, StateHeld, err.Error()
		case b.broken:
			b.broken, s.State, s.Problem = false, b.base, ""
		}
	})
}

func (b *board) stands(p Place, m *Marks) {
	list := m.List()
	b.with(func(s *Status) { s.Place, s.Watermarks = p, list })
}

func (b *board) found(f *wire.Found) {
	b.with(func(s *Status) { s.Head = f.Head })
}

func (b *board) received(next uint64) {
	b.with(func(s *Status) { s.Head = max(s.Head, next) })
}

func (b *board) applied(batch *Batch, r Result, m *Marks) {
	b.with(func(s *Status) {
		s.Place, s.Moved = batch.To, batch.Now
		s.Applied += uint64(r.Applied)
		s.Superseded += uint64(r.Superseded)
		// A reader of the status keeps the old list, so it is not changed in place.
		if len(batch.Marks) > 0 || len(batch.Drop) > 0 {
			s.Watermarks = m.List()
		}
	})
}

func (b *board) rejected(l *landing) {
	b.with(func(s *Status) {
		s.Rejected++
		s.Reject = l.id + ": " + l.rejected.Error()
	})
}

func (b *board) regressed() { b.with(func(s *Status) { s.Regressed++ }) }

func (b *board) gap(g Gap) {
	b.with(func(s *Status) {
		s.Gaps++
		if !g.Stale() {
			s.Fills++
		}
		if s.LastGaps = append(s.LastGaps, g); len(s.LastGaps) > keptGaps {
			s.LastGaps = slices.Delete(s.LastGaps, 0, 1)
		}
	})
}

// Watermark returns how far the cache has applied an origin's channel; false
// when it has nothing of it.
func (s Status) Watermark(f record.FlowID) (Mark, bool) {
	i := slices.IndexFunc(s.Watermarks, func(m Mark) bool { return m.Flow == f })
	if i < 0 {
		return Mark{}, false
	}
	return s.Watermarks[i], true
}
