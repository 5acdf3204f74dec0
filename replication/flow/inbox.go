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
	Pull   PullOptions // zero = every flow is served by its origin
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
	dicts   decoders
	pull    PullOptions

	pullKick chan struct{} // capacity 1: starting has something

	mu       sync.Mutex
	flows    map[record.FlowID]*entry // guarded by mu
	pulls    map[record.FlowID]*pull  // guarded by mu
	starting []*pull                  // guarded by mu; those that Run has not seen
}

// entry is what an Inbox knows of a flow while it has a session or landings.
type entry struct {
	current *inbound      // the newest session that may land; nil when it has ended. Guarded by Inbox.mu
	waiting *inbound      // the origin's session while a holder serves. Guarded by Inbox.mu
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
		met: met, decoder: dec, flows: make(map[record.FlowID]*entry), pull: opt.Pull,
		pulls: make(map[record.FlowID]*pull), pullKick: make(chan struct{}, 1),
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
	return in.newInbound(s, f, cancel).run(ctx, f)
}

// newInbound returns the session whose first frame is f.
func (in *Inbox) newInbound(s wire.Stream, f wire.Frame, cancel context.CancelCauseFunc) *inbound {
	x := &inbound{
		in: in, stream: s, session: f.Session, class: f.Class, hops: f.Hops, cancel: cancel,
		wake: make(chan struct{}, 1), frames: make(chan wire.Frame, 2), failed: make(chan error, 1), evicted: make(chan struct{}),
	}
	x.out.wake = make(chan struct{}, 1)
	return x
}

// run handles the session until it ends and closes the stream.
func (x *inbound) run(ctx context.Context, f wire.Frame) error {
	err := x.serve(ctx, f)
	code := codeOf(err)
	if cause := context.Cause(ctx); err != nil && ctx.Err() != nil {
		code = wire.CodeShutdown
		if errors.Is(cause, errSuperseded) {
			code, err = wire.CodeSuperseded, errSuperseded
		}
	}
	x.in.met.ended(code)
	_ = x.stream.Close(code) // its error says nothing that err does not
	return err
}

// errSuperseded ends a session when a newer one of its flow has come.
var errSuperseded = refused(wire.CodeSuperseded, "a newer session of the flow has begun")

// enter makes x the session of its flow and waits until the landings of older
// sessions are done, so that the sink's committed state is all there is.
func (in *Inbox) enter(ctx context.Context, x *inbound) error {
	in.mu.Lock()
	e := in.entryOf(x.open.Flow)
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
		if x.holder && !old.holder {
			old.evict() // the origin goes on without credit
		} else {
			old.cancel(errSuperseded)
		}
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

// entryOf returns the entry of a flow, made when there is none. in.mu is held.
func (in *Inbox) entryOf(id record.FlowID) *entry {
	e := in.flows[id]
	if e == nil {
		e = &entry{}
		in.flows[id] = e
	}
	return e
}

// leave ends x's hold on its flow.
func (in *Inbox) leave(x *inbound) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if x.entry.current == x {
		x.entry.current = nil
	}
	if x.entry.waiting == x {
		x.entry.waiting = nil
	}
	in.forget(x)
}

// forget drops an entry that nobody needs. in.mu is held.
func (in *Inbox) forget(x *inbound) {
	if e := x.entry; e.current == nil && e.waiting == nil && e.pending == 0 && in.flows[x.open.Flow] == e {
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
