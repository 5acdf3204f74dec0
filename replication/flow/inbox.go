package flow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// InboxOptions says where an Inbox lands what it receives. Sink is required.
type InboxOptions struct {
	Sink   Sink
	City   zone.City    // of the destination
	Logger *slog.Logger // nil = none
	Meter  metric.Meter // nil = none
	Limits Limits
}

// Inbox receives the flows of a destination, one session a flow. Its methods
// are safe for concurrent use.
type Inbox struct {
	sink    Sink
	city    zone.City
	log     *slog.Logger
	lim     Limits
	met     *inboxMetrics
	budget  *budget
	decoder *zstd.Decoder

	mu    sync.Mutex
	flows map[record.FlowID]*entry // guarded by mu
}

// entry is what an Inbox knows of a flow while it has a session or landings.
type entry struct {
	current *inbound      // the newest session; nil when it has ended. Guarded by Inbox.mu
	pending int           // landings with the sink, of any session. Guarded by Inbox.mu
	empty   chan struct{} // closed when pending falls to 0; nil when nobody waits. Guarded by Inbox.mu
}

// NewInbox returns an Inbox. It fails only when the meter refuses an
// instrument or the decoder its settings.
func NewInbox(opt InboxOptions) (*Inbox, error) {
	met, err := newInboxMetrics(opt.Meter)
	if err != nil {
		return nil, err
	}
	dec, err := newDecoder()
	if err != nil {
		return nil, err
	}
	in := &Inbox{
		sink: opt.Sink, city: opt.City, log: orDiscard(opt.Logger), lim: opt.Limits.withDefaults(),
		met: met, decoder: dec, flows: make(map[record.FlowID]*entry),
	}
	in.budget = newBudget(&in.lim)
	return in, nil
}

// Serve handles one session, whose first frame is Open, until it ends, and
// closes the stream. The error says why it ended; nil when the origin closed
// it. The newest session of a flow supersedes the older: its Serve returns.
// Landings that are with the sink when Serve returns complete on their own.
func (in *Inbox) Serve(ctx context.Context, s wire.Stream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	openCtx, stop := context.WithTimeout(ctx, in.lim.OpenTimeout)
	f, err := s.Recv(openCtx)
	stop()
	if err != nil {
		_ = s.Close(codeOf(err)) // nobody to tell
		return err
	}
	x := &inbound{
		in: in, stream: s, session: f.Session, class: f.Class, hops: f.Hops, cancel: cancel,
		wake: make(chan struct{}, 1), frames: make(chan wire.Frame, 2), failed: make(chan error, 1),
	}
	x.out.wake = make(chan struct{}, 1)
	err = x.serve(ctx, f)
	code := codeOf(err)
	if cause := context.Cause(ctx); err != nil && ctx.Err() != nil {
		code = wire.CodeShutdown
		if errors.Is(cause, errSuperseded) {
			code, err = wire.CodeSuperseded, errSuperseded
		}
	}
	in.met.ended(code)
	_ = s.Close(code) // its error says nothing that err does not
	return err
}

// errSuperseded ends a session when a newer one of its flow has come.
var errSuperseded = refused(wire.CodeSuperseded, "a newer session of the flow has begun")

// enter makes x the session of its flow and waits until the landings of older
// sessions are done, so that the sink's committed state is all there is.
func (in *Inbox) enter(ctx context.Context, x *inbound) error {
	in.mu.Lock()
	e := in.flows[x.open.Flow]
	if e == nil {
		e = &entry{}
		in.flows[x.open.Flow] = e
	}
	old := e.current
	e.current, x.entry = x, e
	var empty chan struct{}
	if e.pending > 0 {
		if e.empty == nil {
			e.empty = make(chan struct{})
		}
		empty = e.empty
	}
	in.mu.Unlock()
	if old != nil {
		in.met.superseded()
		old.cancel(errSuperseded)
	}
	if empty == nil {
		return nil
	}
	t := time.NewTimer(in.lim.SettleWait)
	defer t.Stop()
	select {
	case <-empty:
		return nil
	case <-t.C:
		return &retryError{refused(wire.CodeHeld, "landings of an older session are not committed"), in.lim.HeldRetry}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave ends x's hold on its flow.
func (in *Inbox) leave(x *inbound) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if x.entry.current == x {
		x.entry.current = nil
		in.forget(x)
	}
}

// forget drops an entry that nobody needs. in.mu is held.
func (in *Inbox) forget(x *inbound) {
	if x.entry.current == nil && x.entry.pending == 0 {
		delete(in.flows, x.open.Flow)
	}
}

// claim counts a landing that x is about to hand to the sink; false when x has
// been superseded and must not.
func (in *Inbox) claim(x *inbound) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if x.entry.current != x {
		return false
	}
	x.entry.pending++
	return true
}

// unclaim counts a landing that is done, or was not taken.
func (in *Inbox) unclaim(x *inbound) {
	in.mu.Lock()
	defer in.mu.Unlock()
	e := x.entry
	e.pending--
	if e.pending == 0 {
		if e.empty != nil {
			close(e.empty)
			e.empty = nil
		}
		in.forget(x)
	}
}
