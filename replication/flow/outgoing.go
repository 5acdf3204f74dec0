package flow

import (
	"context"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// outgoing is what a destination has to tell an origin that may be slow to
// listen. The session's loop never waits for it: Acks are joined and only the
// latest ProbeReply is kept, so that it is bounded by what there is to tell.
type outgoing struct {
	wake chan struct{} // capacity 1

	mu    sync.Mutex
	queue []outFrame      // guarded by mu
	busy  bool            // a frame is being sent; guarded by mu
	idle  chan<- struct{} // closed when there is nothing left; nil when nobody waits. Guarded by mu
}

type outFrame struct {
	frame wire.Frame
	ack   wire.Ack // encoded when it is sent
}

// control queues a frame behind everything that is queued.
func (o *outgoing) control(t wire.Type, session uint64, class zone.Class, payload []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := outFrame{frame: wire.Frame{Type: t, Session: session, Class: class, Payload: payload}}
	if t == wire.TypeProbeReply {
		for i := range o.queue {
			if o.queue[i].frame.Type == t {
				o.queue[i] = f
				return
			}
		}
	}
	o.queue = append(o.queue, f)
	signal(o.wake)
}

// ack queues an Ack, joined to the one at the end of the queue.
func (o *outgoing) ack(session uint64, class zone.Class, a *wire.Ack) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.queue); n > 0 && o.queue[n-1].frame.Type == wire.TypeAck {
		last := &o.queue[n-1].ack
		if len(last.Outcomes)+len(a.Outcomes) <= wire.MaxOutcomes && a.Through >= last.Through && follows(last.Outcomes, a.Outcomes) {
			for _, w := range a.Outcomes {
				last.Outcomes = appendOutcome(last.Outcomes, w)
			}
			last.Through, last.Credit = a.Through, a.Credit
			return
		}
	}
	o.queue = append(o.queue, outFrame{frame: wire.Frame{Type: wire.TypeAck, Session: session, Class: class}, ack: *a})
	signal(o.wake)
}

// follows reports whether b's ranges lie behind a's: numbers that came again are
// told again, which needs a frame of its own.
func follows(a, b []wire.Outcome) bool {
	return len(a) == 0 || len(b) == 0 || a[len(a)-1].Through < b[0].First
}

// run sends until ctx ends or the stream fails.
func (o *outgoing) run(ctx context.Context, s wire.Stream) error {
	var buf []byte
	for {
		f, ok := o.next()
		if !ok {
			select {
			case <-o.wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if f.frame.Type == wire.TypeAck {
			buf = f.ack.Append(buf[:0])
			f.frame.Payload = buf
		}
		if err := s.Send(ctx, f.frame); err != nil {
			return err
		}
	}
}

// next takes the first frame.
func (o *outgoing) next() (f outFrame, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = len(o.queue) > 0
	if !o.busy {
		if o.idle != nil {
			close(o.idle)
			o.idle = nil
		}
		return f, false
	}
	f = o.queue[0]
	o.queue = o.queue[:copy(o.queue, o.queue[1:])]
	return f, true
}

// finish waits until everything queued was sent, for at most a second.
func (o *outgoing) finish(ctx context.Context) {
	idle := make(chan struct{})
	o.mu.Lock()
	if len(o.queue) == 0 && !o.busy {
		o.mu.Unlock()
		return
	}
	o.idle = idle
	o.mu.Unlock()
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	case <-ctx.Done():
	}
}
