package rocketmq

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/internal/bounds"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// polls bounds the receives and pulls that wait at one time. One too many ends the one
// that has waited for longest, as if its time were over, if that is at least patience:
// its client asks again, and whoever has many wait keeps nobody else from it.
type polls struct {
	max int

	mu   sync.Mutex
	line list.List // guarded by mu: of *waiting, oldest first
	full uint64    // guarded by mu: those that found no place, or were ended for another
}

// waiting is a call that waits.
type waiting struct {
	since time.Time
	end   context.CancelCauseFunc
	place *list.Element // guarded by polls.mu; nil: it was ended
}

// errMakeRoom is why a call that waits was ended.
var errMakeRoom = errors.New("rocketmq: another waits instead")

// size returns how many wait.
func (p *polls) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.line.Len()
}

// Usage tells how full it is.
func (p *polls) Usage() bounds.Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bounds.Usage{Name: "client.polls", Unit: "request", Depth: int64(p.line.Len()), Limit: int64(p.max), Full: p.full}
}

// enter takes a place, if need be that of the oldest.
func (p *polls) enter(w *waiting) bool {
	p.mu.Lock()
	var oldest *waiting
	if p.line.Len() >= p.max {
		p.full++
		e := p.line.Front()
		if oldest = e.Value.(*waiting); w.since.Sub(oldest.since) < patience {
			p.mu.Unlock()
			return false
		}
		p.line.Remove(e)
		oldest.place = nil
	}
	w.place = p.line.PushBack(w)
	p.mu.Unlock()
	if oldest != nil {
		oldest.end(errMakeRoom)
	}
	return true
}

// leave gives the place back, unless another has it already.
func (p *polls) leave(w *waiting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.place != nil {
		p.line.Remove(w.place)
		w.place = nil
	}
}

// beginPoll takes a place among the calls that may wait, which end gives back. wait is
// the context to wait in: it also ends when the server stops, or for another call; see
// unanswered.
func (s *Server) beginPoll(ctx context.Context) (wait context.Context, end func(), st *pb.Status) {
	w := &waiting{since: time.Now()}
	wait, w.end = context.WithCancelCause(ctx)
	if !s.polls.enter(w) {
		w.end(nil)
		return nil, nil, refuse(pb.Code_TOO_MANY_REQUESTS, fmt.Sprintf("%d receives are waiting, which is the limit", s.polls.max))
	}
	stop := context.AfterFunc(s.stopping, func() { w.end(nil) })
	s.metrics.polls.Add(ctx, 1)
	return wait, func() {
		stop()
		w.end(nil)
		s.metrics.polls.Add(context.WithoutCancel(ctx), -1)
		s.polls.leave(w)
	}, nil
}

// unanswered is the answer to a call whose wait ended with an error.
func (s *Server) unanswered(wait context.Context, err error) *pb.Status {
	switch {
	case s.stopping.Err() != nil:
		return refuse(pb.Code_MESSAGE_NOT_FOUND, "the server is stopping")
	case errors.Is(context.Cause(wait), errMakeRoom):
		return refuse(pb.Code_MESSAGE_NOT_FOUND, "no new message until now, and others wait: ask again")
	}
	return statusOf(err)
}
