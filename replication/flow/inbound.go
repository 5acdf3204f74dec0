package flow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// inbound is one session at the destination. Fields without a note belong to
// its loop.
type inbound struct {
	in      *Inbox
	stream  wire.Stream
	session uint64
	class   zone.Class
	hops    uint8
	cancel  context.CancelCauseFunc // ends the session; safe from anywhere
	log     *slog.Logger

	open    wire.Open
	entry   *entry // its fields are guarded by Inbox.mu
	resumed resumption
	lineage record.LineageID // of the last landing
	holder  bool             // pulled from a city that has landed the flow
	waits   bool             // an origin's, without credit: a holder serves
	rx      receiver
	batch   wire.Batch // decoded again and again
	dicts   []*decoder // of the session's dictionaries, oldest first; at most keeps
	keeps   int        // dictionaries that Accept said are kept
	frames  chan wire.Frame
	failed  chan error // capacity 1: why reading or writing ended
	out     outgoing
	largest atomic.Int64 // window; a frame with much more is refused before it waits

	held     error     // why the sink takes nothing; nil = it does
	heldNext time.Time // when to ask it again
	sealing  bool      // Seal came; it is answered when everything taken is settled

	wake      chan struct{} // capacity 1: done has something
	evicted   chan struct{} // closed when the origin is to open its session again
	evictOnce sync.Once
	cursor    atomic.Uint64 // the origin's, as it last told a session that waits

	mu       sync.Mutex
	done     []error    // results of landings, in order. Guarded by mu
	lost     bool       // the loop is gone: done gives the memory back itself. Guarded by mu
	lostSize []uint64   // bytes of the landings with the sink when the loop went. Guarded by mu
	status   FlowStatus // guarded by mu
}

// serve handles the session whose first frame is f.
func (x *inbound) serve(ctx context.Context, f wire.Frame) error {
	err := x.begin(ctx, f)
	if x.entry != nil {
		defer x.in.leave(x)
	}
	if err != nil {
		x.refuse(ctx, err)
		return err
	}
	defer x.giveBack()
	defer x.dropDictionaries()
	runCtx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { x.fail(x.receive(runCtx)) })
	wg.Go(func() { x.fail(x.out.run(runCtx, x.stream)) })
	if x.waits {
		err = x.loopDeferred(runCtx)
	} else {
		err = x.loop(runCtx)
	}
	if last := refusal(err); last != nil && ctx.Err() == nil {
		x.out.control(wire.TypeRefuse, x.session, x.class, last.Append(nil))
		x.out.finish(runCtx)
	}
	stop()
	wg.Wait()
	return err
}

// fail notes why the session's reader or writer ended; the first counts.
func (x *inbound) fail(err error) {
	select {
	case x.failed <- err:
	default:
	}
}

// refuse answers an Open that begins nothing.
func (x *inbound) refuse(ctx context.Context, err error) {
	last := refusal(err)
	if last == nil || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// An error means that the origin is gone, which needs no answer.
	_ = x.stream.Send(ctx, wire.Frame{Type: wire.TypeRefuse, Session: x.session, Class: x.class, Payload: last.Append(nil)})
}

// refusal returns the Refuse that tells the peer of err, or nil when err is
// not a decision of this side.
func refusal(err error) *wire.Refuse {
	var r *RefusedError
	if !errors.As(err, &r) || !r.Local || r.Code == wire.CodeOK {
		var f *wire.FrameError
		if errors.As(err, &f) {
			return &wire.Refuse{Code: f.Code, Text: f.Error()}
		}
		return nil
	}
	w := &wire.Refuse{Code: r.Code, Text: r.Text}
	var after *retryError
	if errors.As(err, &after) {
		w.RetryAfter = after.after
	}
	return w
}

// begin checks Open, takes over the flow and answers Accept.
func (x *inbound) begin(ctx context.Context, f wire.Frame) error {
	in := x.in
	if f.Type != wire.TypeOpen || f.Flags&wire.FlagsRequired != 0 || f.Session == 0 {
		return refused(wire.CodeUnsupported, "a %s frame with flags %04x opens no flow", f.Type, f.Flags)
	}
	o, err := wire.ParseOpen(f.Payload)
	if err != nil {
		return err
	}
	if err := in.admit(&o, f.Class); err != nil {
		return err
	}
	x.open = o
	x.log = in.log.With("flow", FlowName(o.Flow), "city", string(o.OriginCity))
	if !x.holder && in.defers(&o) {
		x.waits = true
		return x.beginDeferred()
	}
	if err := in.enter(ctx, x); err != nil {
		return err
	}
	have := in.sink.Resume(o.Flow)
	r, refusal := reconcile(&o, &have, in.ahead(&o))
	if refusal != nil {
		in.met.diverged()
		x.log.Error("flow refused, origin and destination disagree", "err", refusal, "settled", have.Settled, "head", o.Head)
		return refusal
	}
	if r.orphans != (wire.Range{}) {
		x.log.Warn("the origin lost numbers that landed here; they are kept", "first", r.orphans.First, "through", r.orphans.Through)
	}
	now := time.Now()
	window, ok := in.budget.open(now, min(int64(o.MaxRecord), maxData))
	if !ok {
		return &retryError{refused(wire.CodeTooMany, "no memory for another flow"), in.lim.HeldRetry}
	}
	x.resumed = r
	x.rx.begin(now, &in.lim, &o, &have, r, window)
	x.held = in.sink.Writable()
	x.rx.regrant(now, in.budget, x.held != nil)
	a := x.rx.accept(r, have.Outcomes)
	a.Group, a.Incarnation, a.Epoch = in.sink.Group(), in.sink.Incarnation(), in.sink.Epoch()
	x.keeps = in.keepsDictionaries()
	a.Dictionaries = uint8(x.keeps)
	x.out.control(wire.TypeAccept, x.session, x.class, a.Append(nil))
	x.publish()
	return nil
}

// admit refuses an Open that is not for this destination.
func (in *Inbox) admit(o *wire.Open, class zone.Class) *RefusedError {
	own := in.sink.Group()
	switch {
	case o.Group != own:
		return refused(wire.CodeUnknownGroup, "this is %q, not %q", own, o.Group)
	case in.city != "" && o.City != in.city:
		return refused(wire.CodeWrongIdentity, "this is %q, not %q", in.city, o.City)
	case o.Flow.Class != class, class != zone.ClassUrgent && class != zone.ClassBulk:
		return refused(wire.CodeMalformed, "class %d in a frame of class %d", o.Flow.Class, class)
	case o.Flow.Incarnation == 0 || o.Flow.Origin == "" || o.Flow.Target == "":
		return refused(wire.CodeMalformed, "the flow has no origin or target")
	case !o.Flow.Channel && o.Flow.Target != string(own):
		return refused(wire.CodeUnknownGroup, "the flow is for %q", o.Flow.Target)
	case o.Role == wire.OpenHolder && !o.Flow.Channel:
		return refused(wire.CodeWrongIdentity, "only channels are served by others than their origin")
	case !isIn(o.Residency, in.city):
		return refused(wire.CodeResidency, "the flow's records may not enter %q", in.city)
	}
	if t := in.sink.Topology(); t != nil && t.FindGroup(o.Flow.Origin) == nil {
		if t.Epoch.Compare(o.RouteEpoch) < 0 {
			return refused(wire.CodeTopologyBehind, "group %q is not known yet", o.Flow.Origin)
		}
		return refused(wire.CodeUnknownGroup, "group %q is not known", o.Flow.Origin)
	}
	return nil
}

// receive passes the session's frames on until the stream ends.
func (x *inbound) receive(ctx context.Context) error {
	for {
		f, err := x.stream.Recv(ctx)
		if err != nil {
			return err
		}
		if f.Session != x.session {
			x.in.met.stray()
			continue
		}
		if int64(len(f.Payload)) > x.largest.Load()+64<<10 {
			return refused(wire.CodeMalformed, "a %s frame of %d bytes is beyond the credit", f.Type, len(f.Payload))
		}
		select {
		case x.frames <- f:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// giveBack returns the session's memory; that of landings that are still with
// the sink goes back when they are done.
func (x *inbound) giveBack() {
	x.mu.Lock()
	defer x.mu.Unlock()
	// Results that came after the loop's last look are settled numbers too.
	for range min(len(x.done), x.rx.submit) {
		x.rx.landed()
	}
	var held int64
	for _, t := range x.rx.flight[:x.rx.submit] {
		x.lostSize = append(x.lostSize, t.bytes)
		held += int64(t.bytes)
	}
	x.lost, x.done = true, nil
	x.in.budget.shrunk(x.rx.window, 0)
	x.in.budget.release(x.rx.reserved - held)
	x.rx.flight = nil
}

// landingDone is the callback of the sink. It does not block.
func (x *inbound) landingDone(err error) {
	x.mu.Lock()
	if x.lost {
		x.in.budget.release(int64(x.lostSize[0]))
		x.lostSize = x.lostSize[1:]
	} else {
		x.done = append(x.done, err)
	}
	x.mu.Unlock()
	signal(x.wake)
	x.in.unclaim(x)
}

func (x *inbound) publish() {
	x.largest.Store(max(x.largest.Load(), x.rx.window))
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.status
	x.status = FlowStatus{
		Flow: x.open.Flow, Session: x.session, Head: x.rx.head, Settled: x.rx.settled, Landing: len(x.rx.flight),
		Window: x.rx.window, Progress: was.Progress, Orphans: x.resumed.orphans,
	}
	if was.Settled != x.rx.settled {
		x.status.Progress = time.Now()
	}
	if x.held != nil {
		x.status.Held, x.status.Text = heldReason(x.held)
	}
}

func (x *inbound) snapshot() FlowStatus {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status
}

// landing returns a landing with what all of the session's have in common.
func (x *inbound) landing(first uint64, id record.LineageID, epoch, cursor uint64, hops uint8) Landing {
	if x.holder {
		cursor = x.in.originCursor(x.open.Flow)
	}
	l := Landing{
		Flow: x.open.Flow, Lineage: id, LineageEpoch: epoch, First: first, Hops: max(hops, x.hops), OriginCursor: cursor,
	}
	if id != x.lineage { // the session's first, or the first of a lineage
		x.lineage, l.Table = id, marksOf(x.open.Lineage)
	}
	return l
}

func marksOf(table []wire.Mark) []Mark {
	marks := make([]Mark, len(table))
	for i, m := range table {
		marks[i] = Mark(m)
	}
	return marks
}
