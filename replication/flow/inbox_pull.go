package flow

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// PullOptions let an Inbox take flows of channels from other cities that have
// landed them (relay by landing). Inbox.Run must run then.
type PullOptions struct {
	// Holders returns who may serve a flow, the declared one first, as legs under
	// this group's own name: the Flow of each is {this group, its incarnation, the
	// channel}. None: the origin serves it. It does not block.
	Holders func(record.FlowID) []Leg
	Dialer  Dialer
	Session func() uint64 // a random session id; safe for concurrent use
}

// Run pulls flows until ctx ends. Without PullOptions it does nothing. It is
// called once.
func (in *Inbox) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-in.pullKick:
		}
		for _, p := range in.toStart() {
			wg.Go(func() { p.run(ctx) })
		}
	}
}

// defers reports whether a session waits without credit since a holder serves its
// flow.
func (in *Inbox) defers(o *wire.Open) bool {
	if in.pull.Holders == nil || o.Role != wire.OpenOwner || !o.Flow.Channel || len(in.pull.Holders(o.Flow)) == 0 {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	p := in.pulls[o.Flow]
	return p == nil || !p.byOrigin
}

// ahead reports whether numbers above an Open's head may have settled here.
func (in *Inbox) ahead(o *wire.Open) bool {
	return o.Role == wire.OpenHolder || in.pull.Holders != nil && o.Flow.Channel
}

// want says that the flow has numbers that have not settled here.
func (in *Inbox) want(id record.FlowID) {
	in.mu.Lock()
	p := in.pulls[id]
	if p == nil {
		p = &pull{in: in, id: id, wake: make(chan struct{}, 1)}
		in.pulls[id] = p
		in.starting = append(in.starting, p)
		signal(in.pullKick)
	}
	in.mu.Unlock()
	signal(p.wake)
}

func (in *Inbox) toStart() []*pull {
	in.mu.Lock()
	defer in.mu.Unlock()
	list := in.starting
	in.starting = nil
	return list
}

// forgetPull ends the pull, unless it is wanted.
func (in *Inbox) forgetPull(p *pull) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	select {
	case <-p.wake:
		return false
	default:
	}
	delete(in.pulls, p.id)
	return true
}

// toOrigin lets the origin serve the flow.
func (in *Inbox) toOrigin(id record.FlowID) {
	in.mu.Lock()
	if p := in.pulls[id]; p != nil {
		p.byOrigin = true
	}
	in.mu.Unlock()
}

// serveFromOrigin lets the origin serve the flow of a pull, or no longer, and has
// its waiting session opened again.
func (in *Inbox) serveFromOrigin(p *pull, yes bool) {
	in.mu.Lock()
	p.byOrigin = yes
	var waiting *inbound
	if e := in.flows[p.id]; e != nil {
		waiting = e.waiting
	}
	in.mu.Unlock()
	if yes && waiting != nil {
		waiting.evict()
	}
}

// servedBy says who serves a flow, for the origin's status.
func (in *Inbox) servedBy(id record.FlowID) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	if p := in.pulls[id]; p != nil && p.city != "" {
		return fmt.Sprintf("served from what %s has landed", p.city)
	}
	return "to be served by another city that has landed it"
}

// standing is where a flow stands at this end, as far as its sessions tell.
type standing struct {
	open          bool // there is a session
	head, settled uint64
	wanted        record.LineageID // of the number behind settled; 0 = unknown
}

// backlog reports whether there is something to take.
func (s *standing) backlog() bool { return s.head > s.settled }

// standing asks the origin's session first: what is settled counts only on the
// branch that the origin is on.
func (in *Inbox) standing(id record.FlowID) standing {
	in.mu.Lock()
	defer in.mu.Unlock()
	e := in.flows[id]
	switch {
	case e == nil:
	case e.waiting != nil:
		st := e.waiting.snapshot()
		s := standing{open: true, head: st.Head, settled: st.Settled}
		if m, ok := markAt(e.waiting.open.Lineage, st.Settled+1); ok {
			s.wanted = m.ID
		}
		return s
	case e.current != nil:
		st := e.current.snapshot()
		return standing{open: true, head: st.Head, settled: st.Settled}
	}
	return standing{}
}

// originCursor returns the cursor that the origin has told: what its outcomes up
// to it ask for is durable there. A holder knows nothing of it.
func (in *Inbox) originCursor(id record.FlowID) uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	if e := in.flows[id]; e != nil && e.waiting != nil {
		return e.waiting.cursor.Load()
	}
	return 0
}

// pulled is an open session with a holder.
type pulled struct {
	x      *inbound
	first  wire.Frame
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// openPull asks a holder for the flow and waits for its Open.
func (in *Inbox) openPull(ctx context.Context, id record.FlowID, leg Leg) (*pulled, error) {
	session := in.pull.Session()
	dialCtx, stop := context.WithTimeout(ctx, in.lim.OpenTimeout)
	defer stop()
	s, err := in.pull.Dialer.Open(dialCtx, leg, session)
	if err != nil {
		return nil, err
	}
	p, err := in.askPull(dialCtx, ctx, id, leg, s, session)
	if err != nil {
		_ = s.Close(codeOf(err)) // its error says nothing that err does not
	}
	return p, err
}

func (in *Inbox) askPull(dialCtx, ctx context.Context, id record.FlowID, leg Leg, s wire.Stream, session uint64) (*pulled, error) {
	st := in.standing(id)
	if !st.open {
		st = in.alone(id)
	}
	o := wire.Open{Flow: leg.Flow, City: leg.City, Group: leg.Group, OriginCity: in.city, Oldest: st.settled + 1, Role: wire.OpenPull, Want: id}
	if st.wanted != 0 {
		o.Lineage = []wire.Mark{{ID: st.wanted, First: st.settled + 1}}
	}
	if t := in.sink.Topology(); t != nil {
		o.RouteEpoch = t.Epoch
		for _, c := range t.Channels {
			if string(c.Name) == id.Target {
				for _, city := range c.Topics[0].Residency {
					o.Residency = append(o.Residency, city.Name)
				}
			}
		}
	}
	if err := s.Send(dialCtx, wire.Frame{Type: wire.TypeOpen, Session: session, Class: id.Class, Payload: o.Append(nil)}); err != nil {
		return nil, err
	}
	f, err := s.Recv(dialCtx)
	if err != nil {
		return nil, err
	}
	if f.Type == wire.TypeRefuse {
		r, err := wire.ParseRefuse(f.Payload)
		if err != nil {
			return nil, err
		}
		return nil, &RefusedError{Code: r.Code, Text: r.Text}
	}
	back, err := wire.ParseOpen(f.Payload)
	switch {
	case err != nil || f.Type != wire.TypeOpen || f.Session != session:
		return nil, refused(wire.CodeUnsupported, "a %s frame in answer to a pull: the peer does not serve landings", f.Type)
	case back.Flow != id || back.Role != wire.OpenHolder:
		return nil, refused(wire.CodeMalformed, "another flow than was asked for")
	case back.Head+behindMost < st.settled:
		return nil, refused(wire.CodeNotHeld, "it has landed %d, and %d is settled here", back.Head, st.settled)
	}
	p := &pulled{first: f}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.x = in.newInbound(s, f, p.cancel)
	p.x.holder = true
	return p, nil
}

// alone is the standing of a flow without a session: what this end has settled
// last.
func (in *Inbox) alone(id record.FlowID) standing {
	have := in.sink.Resume(id)
	st := standing{settled: have.Settled}
	for _, h := range have.History {
		if h.Last == have.Settled {
			st.wanted = h.Lineage
		}
	}
	return st
}

// behindMost is how many numbers a holder may be behind and still be taken: those
// that are on their way to it.
const behindMost = 1024

// serve runs the session until it ends, as Serve does.
func (p *pulled) serve() error {
	defer p.cancel(nil)
	return p.x.run(p.ctx, p.first)
}

// stale reports whether what a pull waits for has been away for long.
func stale(since time.Time, now time.Time, lim *Limits) bool {
	return now.Sub(since) >= 2*lim.IdleTimeout
}
