package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/mqrouter/mqrouter/replication/egress"
	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// ServePeer relays a session that a broker of this city has opened, until it
// ends. It closes the stream. from is the broker as its certificate names it. The
// in-city listener calls it, once a stream, in a goroutine of its own.
func (r *Router) ServePeer(ctx context.Context, from zone.Node, s wire.Stream) {
	r.serve(ctx, newEnd(s), caller{node: from, city: r.city, outbound: true})
}

// serveLink relays a session that a router of another city has opened.
func (r *Router) serveLink(ctx context.Context, s *link.Session) {
	r.serve(ctx, newEnd(s), caller{node: s.Peer(), city: s.City(), class: s.Class()})
}

// serve reads the first frame, opens the way on and relays.
func (r *Router) serve(ctx context.Context, origin *end, from caller) {
	if x := r.enter(); x != nil {
		r.turnAway(ctx, origin, x)
		return
	}
	defer r.leave()
	// A session ends with the router as well as with its listener.
	ctx, cancel := r.bound(ctx)
	defer cancel()
	first, open, err := r.first(ctx, origin, &from)
	if err != nil {
		_ = origin.stream.Close(codeOf(err))
		return
	}
	s := &session{
		number: first.Session, city: open.City, class: first.Class, origin: origin,
		outbound: from.outbound, residency: open.Residency,
	}
	if !from.outbound {
		s.city = open.OriginCity
	}
	x := judge(r.o.Topology(), r.city, from, first, &open)
	if x == nil {
		x = r.route(ctx, s, from, first, &open)
	}
	if x != nil {
		r.refuse(origin, first, x)
		return
	}
	r.relayFrom(ctx, s, first)
}

// route opens the session's way on.
func (r *Router) route(ctx context.Context, s *session, from caller, first wire.Frame, open *wire.Open) (x *refusal) {
	switch {
	case from.outbound:
		return r.across(s, first, open)
	case open.City != r.city:
		s.via = r.city
		return r.passOn(s, from, first, open)
	}
	if open.OriginCity != from.city {
		r.noteBrought(from, first, open)
	}
	s.dest, x = r.toBroker(ctx, first, open)
	return x
}

// relayFrom passes the first frame on and relays the rest.
func (r *Router) relayFrom(ctx context.Context, s *session, first wire.Frame) {
	r.mu.Lock()
	r.sessions[s] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.sessions, s)
		r.mu.Unlock()
	}()
	r.opened.Add(1)
	if err := s.dest.send(first); err != nil {
		s.close(codeOf(err))
		return
	}
	r.relay(ctx, s)
}

// bound returns a context that ends with ctx and with Run's.
func (r *Router) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	r.mu.Lock()
	life := r.life
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	if life == nil {
		cancel()
		return ctx, cancel
	}
	stop := context.AfterFunc(life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// first reads the frame that says where the session goes. On a link, what stands
// before it says which way it came.
func (r *Router) first(ctx context.Context, origin *end, from *caller) (wire.Frame, wire.Open, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Limits.FirstOpen)
	defer cancel()
	f, err := firstFrame(ctx, origin)
	if err == nil && f.Type == wire.TypeVia && !from.outbound {
		var v wire.Via
		if v, err = wire.ParseVia(f.Payload); err == nil {
			from.path = v.Path
			f, err = firstFrame(ctx, origin)
		}
	}
	if err != nil {
		return f, wire.Open{}, err
	}
	if f.Type != wire.TypeOpen {
		return f, wire.Open{}, &wire.FrameError{Type: f.Type, Code: wire.CodeUnsupported, Field: "type", Err: errFirst}
	}
	o, err := wire.ParseOpen(f.Payload)
	return f, o, err
}

func firstFrame(ctx context.Context, origin *end) (wire.Frame, error) {
	if origin.into != nil {
		return origin.into.RecvInto(ctx, smallFirst)
	}
	return origin.stream.Recv(ctx)
}

// maxFirst bounds the first frame of a session on a link, in bytes: it is read
// before the session has a place or a share of the buffers. An Open with the
// longest lineage table fits.
const maxFirst = 256 << 10

func smallFirst(_ context.Context, n int) ([]byte, error) {
	if n > maxFirst {
		return nil, &wire.FrameError{Code: wire.CodeMalformed, Field: "payload length", Err: errFirst}
	}
	return make([]byte, n), nil
}

var errFirst = errors.New("a session that passes a router begins with an open of bounded size")

// leaders returns which members say that they are masters.
func leaders(members []Member) []masters.Hint {
	var list []masters.Hint
	for _, m := range members {
		if m.Leads {
			list = append(list, masters.Hint{Group: m.Group, Node: m.Node, Epoch: m.Term})
		}
	}
	return list
}

// toBroker opens a stream to a broker of the destination group: its master, as far as
// it is known, else the first node that answers. One that is not the master says so
// itself; the origin hears it, and the next session finds the one that is.
func (r *Router) toBroker(ctx context.Context, f wire.Frame, o *wire.Open) (*end, *refusal) {
	addrs := make(map[zone.Node]string)
	for _, m := range r.o.Peers.City() {
		addrs[m.Node] = m.Peer
	}
	g := r.o.Topology().FindGroup(o.Group) // judged a moment ago, but the topology may be another
	if g == nil {
		return nil, refuse(wire.CodeUnknownGroup, "the topology has no group %q any more", o.Group)
	}
	var errs []error
	for _, n := range r.masters.Order(g) {
		for _, addr := range egress.Addresses(addrs[n.Name], n.Peer) {
			s, err := r.brokers.Open(ctx, egress.Target{
				Node: n.Name, Role: zone.RoleBroker, Zone: g.Zone.Name, City: r.city, Class: f.Class, Addr: addr,
			}, f.Session)
			if err == nil {
				return newEnd(r.masters.Listen(s, g, n.Name)), nil
			}
			errs = append(errs, fmt.Errorf("broker %s: %w", n.Name, err))
		}
	}
	return nil, refuse(wire.CodeNoRoute, "group %s: %v", o.Group, errors.Join(errs...))
}

// refuse answers the first frame with no and ends the session.
func (r *Router) refuse(origin *end, f wire.Frame, x *refusal) {
	r.refused.Add(1)
	r.log.Debug("session refused", "code", x.code.String(), "err", x.text)
	_ = origin.send(x.frame(f))
	_ = origin.stream.Close(x.code)
}

// turnAway refuses a session without a place. Its first frame is read so that
// the answer can name the session; the listener bounds how many wait here.
func (r *Router) turnAway(ctx context.Context, origin *end, x *refusal) {
	f, _, err := r.first(ctx, origin, &caller{})
	if err != nil {
		r.refused.Add(1)
		_ = origin.stream.Close(x.code)
		return
	}
	r.refuse(origin, f, x)
}
