package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router"
	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// Status implements admin.Node.
func (n *brokerNode) Status() admin.Status {
	s := n.status(n.broker.Topology())
	b := n.broker.Status()
	s.Log = logOf(&b)
	if b.Held != "" {
		s.Reasons = append(s.Reasons, b.Held)
	}
	if d := n.broker.Damaged(); d != "" {
		s.Reasons = append(s.Reasons, d)
	}
	if n.voter != nil {
		voterStatus(&s, n.voter)
	}
	if p := n.aclProblem(); p != "" {
		s.Reasons = append(s.Reasons, "access file: the last good one is in force: "+p)
	}
	timers, late := timersOf(b.Timers)
	s.Timers, s.Reasons = timers, append(s.Reasons, late...)
	for _, l := range b.Limits {
		s.Limits = append(s.Limits, admin.Limit{What: l.What, Topic: string(l.Topic), Used: l.Used, Limit: l.Limit, Refused: l.Refused})
	}
	for _, t := range b.Topics {
		for q, extent := range t.Queues {
			s.Topics = append(s.Topics, admin.Topic{Name: string(t.Topic), Queue: q, First: extent.First, Next: extent.Next})
		}
		if l := t.Lite; l != nil {
			s.Lite = append(s.Lite, admin.LiteTopics{Topic: string(t.Topic), Topics: l.Topics, Limit: l.Limit, TTL: l.TTL, Idle: l.Idle})
		}
	}
	for _, g := range b.Groups {
		var held *int64
		if g.Held >= 0 {
			held = &g.Held
		}
		var lite *admin.LiteUse
		if l := g.Lite; l != nil {
			lite = &admin.LiteUse{Mode: l.Mode.String(), Clients: l.Clients, Named: l.Named, Asleep: l.Asleep}
		}
		s.Consumers = append(s.Consumers, admin.Consumer{Held: held, Lite: lite, Group: string(g.Group), Topic: string(g.Topic),
			Declared: g.Declared, Cache: g.Cache, Lag: g.Lag, InFlight: g.InHands, Waiting: g.Waiting, Behind: g.Behind, MessageGroups: g.Moving})
	}
	for _, x := range b.Transactions {
		s.Transactions = append(s.Transactions, admin.Transaction{Topic: string(x.Topic), Pending: x.Pending, Oldest: x.Oldest, Checked: x.Checked, Alone: x.Alone})
		if x.Alone {
			s.Reasons = append(s.Reasons, fmt.Sprintf("no producer of topic %s is connected that could decide its half messages", x.Topic))
		}
	}
	s.Decided = admin.Decided(b.Decided)
	s.Receipts = receiptsOf(&b)
	s.Flows = n.flows(b)
	for _, in := range b.Incoming {
		s.Inbound = append(s.Inbound, admin.Inbound{Origin: string(in.Flow.Origin), Incarnation: fmt.Sprintf("%016x", uint64(in.Flow.Incarnation)),
			Target: in.Flow.Target, Channel: in.Flow.Channel, Lane: in.Flow.Lane, Settled: in.Settled, Orphans: in.Orphans})
	}
	return s
}

func logOf(b *broker.Status) *admin.Log {
	return &admin.Log{
		Incarnation: fmt.Sprintf("%016x", uint64(b.Incarnation)), Epoch: b.Lineage,
		Begin: uint64(b.Log.Begin), Committed: uint64(b.Log.Committed), Snapshot: uint64(b.Log.Snapshot), Problem: b.Held,
	}
}

// flows joins what the log knows of each leg with what its session does.
func (n *brokerNode) flows(b broker.Status) []admin.Flow {
	legs := map[flow.Leg]flow.LegStatus{}
	var all []admin.Flow
	for _, l := range n.outbox.Status() {
		if !l.Pulled {
			legs[l.Leg] = l
			continue
		}
		// The origin keeps the cursor, and counts the backlog.
		all = append(all, admin.Flow{Target: l.Leg.Flow.Target, Origin: string(l.Leg.Flow.Origin), Channel: true, City: string(l.Leg.City),
			Group: string(l.Leg.Group), Class: l.Leg.Flow.Class.String(), Head: l.Head, Settled: l.Settled, State: "asked for",
			Session: fmt.Sprintf("%016x", l.Session), Progress: l.Progress, RTT: l.RTT})
	}
	for _, o := range b.Outgoing {
		f := admin.Flow{Target: o.Flow.Target, Channel: o.Flow.Channel, City: string(o.City), Group: string(o.Group),
			Class: o.Flow.Class.String(), Lane: o.Flow.Lane, Head: o.Head, Settled: o.Cursor, Backlog: o.Head - o.Cursor,
			BacklogBytes: o.BacklogBytes, OldestAge: o.Oldest, State: "idle",
			Removed: o.Removed, Lost: o.Lost, Untold: o.Untold, Compacted: o.Compacted}
		if o.Removed {
			f.State = "removed"
		}
		for _, t := range o.Topics {
			if t.Held > 0 || t.Bytes > 0 {
				f.Budgets = append(f.Budgets, admin.Budget{Topic: string(t.Topic), Held: t.Held, Limit: t.Limit, End: t.End.String()})
			}
		}
		if o.Onward {
			f.Origin = string(o.Flow.Origin)
		}
		if l, ok := legs[flow.Leg{Flow: o.Flow, City: o.City, Group: o.Group}]; ok {
			f.State, f.Held, f.Progress, f.RTT = string(l.State), l.Text, l.Progress, l.RTT
			if l.Session != 0 {
				f.Session = fmt.Sprintf("%016x", l.Session)
			}
		}
		all = append(all, f)
	}
	return all
}

// Topology implements admin.Node.
func (n *brokerNode) Topology() []byte { return n.text.of(n.broker.Topology()) }

// CacheGet implements admin.Node: a broker has no cache.
func (n *brokerNode) CacheGet(context.Context, string) (admin.CacheEntry, error) {
	return admin.CacheEntry{}, admin.ErrNotServed
}

// Find implements admin.Node.
func (n *brokerNode) Find(ctx context.Context, id string) ([]admin.Sighting, error) {
	found, err := n.broker.FindMessage(ctx, id)
	var all []admin.Sighting
	for _, f := range found {
		all = append(all, n.sighting(f))
	}
	return all, err
}

func (n *brokerNode) sighting(f broker.Found) admin.Sighting {
	s := admin.Sighting{Node: string(n.self.Name), Group: string(n.self.Group.Name), City: string(n.self.City.Name), Zone: string(n.self.Zone.Name),
		What: what(f), Topic: string(f.Topic), Offset: -1, Position: uint64(f.Position), Stored: f.Stored, Landed: f.At, Replayed: f.Replayed}
	if f.Queued {
		s.Queue, s.Offset = f.Queue, int64(f.Offset)
	}
	if f.Flow.Target != "" {
		s.Flow, s.Number = flowName(f.Flow), f.Number
	}
	var legs []string
	for _, l := range f.Legs {
		state := "waiting"
		if l.Settled {
			state = "settled"
		}
		legs = append(legs, fmt.Sprintf("%s in %s: %s", l.Group, l.City, state))
	}
	s.Settled = strings.Join(legs, ", ")
	for _, g := range f.Groups {
		d := admin.Delivery{Group: string(g.Group), State: "waiting", Attempts: g.Attempts}
		switch {
		case g.Settled:
			d.State = "acknowledged"
		case g.Attempts > 0:
			d.State = "delivered"
		}
		s.Deliveries = append(s.Deliveries, d)
	}
	return s
}

// what says in a word how the message came to be in this log.
func what(f broker.Found) string {
	switch {
	case f.Cause != nil:
		return "dead letter"
	case f.Landed && f.Outcome != record.OutcomeLanded:
		return "refused"
	case f.Landed:
		return "landed"
	case f.Replay != nil:
		return "replayed"
	case f.Half != nil && f.Half.Checks > 0:
		return fmt.Sprintf("half message: %s; producers were asked %d times", f.Half.State, f.Half.Checks)
	case f.Half != nil:
		return "half message: " + f.Half.State
	case f.Order != broker.Order{}:
		return fmt.Sprintf("%s by order of %s: %s", ordered[f.Type], f.Order.By, f.Order.Why)
	case f.Committed:
		return "committed"
	case f.Type == record.TypeRecall:
		return "recalled"
	case f.Waits:
		return "waits until " + f.DeliverAt.Format(time.RFC3339Nano)
	case !f.DeliverAt.IsZero():
		return "delayed" // before it was due
	}
	return "published"
}

// ordered says what an operator ordered, by the type of the record that did it.
var ordered = map[record.Type]string{record.TypeMessage: "committed", record.TypeRollback: "rolled back", record.TypeRecall: "dropped"}

func flowName(id record.FlowID) string {
	kind := "group"
	if id.Channel {
		kind = "channel"
	}
	return fmt.Sprintf("%s -> %s %s (%s, lane %d)", id.Origin, kind, id.Target, id.Class, id.Lane)
}

// Status implements admin.Node.
func (n *routerNode) Status() admin.Status {
	t := n.source.Current()
	s := n.status(t)
	r := n.router.Status()
	up := map[zone.City]bool{}
	for _, l := range r.Links {
		problem := l.LastError
		if l.State == link.StateUp {
			up[l.City], problem = true, ""
		}
		s.Links = append(s.Links, admin.Link{Peer: string(l.Node), City: string(l.City), Class: l.Class.String(), State: l.State.String(),
			Since: l.Since, RTT: l.RTT, Sessions: l.Sessions, Sent: l.Traffic.BytesOut, Received: l.Traffic.BytesIn, Reconnects: l.Reconnects, Problem: problem,
			Connections: l.Connections, Out: l.Rates.Out, In: l.Rates.In, Loss: l.Rates.Loss, Queue: l.Rates.Queue, Window: l.Rates.Window, Bound: boundOf(l.Rates.Bound),
			Correction: correctionOf(&l)})
	}
	for _, c := range t.Cities {
		if c.Name != n.self.City.Name && !up[c.Name] && len(c.Routers) > 0 {
			s.Reasons = append(s.Reasons, fmt.Sprintf("no link to %s is up%s", c.Name, roundabout(c.Name, r.Paths)))
		}
	}
	s.Paths = pathsOf(r.Paths)
	s.Reasons = append(s.Reasons, diverged(t, r.Links)...)
	if r.Draining {
		s.Ready = false
		s.Reasons = append(s.Reasons, "draining")
	}
	return s
}

// correctionOf tells of a link's correction; nil = there is none.
func correctionOf(l *link.Status) *admin.Correction {
	c := &l.Correction
	if !c.On {
		return nil
	}
	return &admin.Correction{Loss: c.Loss, Redundancy: l.Rates.Parity, Burst: c.Burst, Congested: c.Congested,
		Queue: c.Queue, Extra: c.Extra, Recovered: c.Recovered}
}

// boundOf names what a link is bound by; "" = nothing.
func boundOf(b link.Bound) string {
	if b == link.BoundNone {
		return ""
	}
	return b.String()
}

// roundabout says how a city is reached that has no link; "" when it is not.
func roundabout(city zone.City, paths []router.PathStatus) string {
	for _, p := range paths {
		if p.City == city && p.Via != "" {
			return fmt.Sprintf("; sessions go via %s, where residency allows", p.Via)
		}
	}
	return ""
}

func pathsOf(all []router.PathStatus) []admin.Path {
	var out []admin.Path
	for _, p := range all {
		a := admin.Path{City: string(p.City), Class: p.Class.String(), Since: p.Since, Up: p.Up, RTT: p.RTT,
			Direct: p.Direct, Detoured: p.Detoured, Return: p.Return, Changes: p.Changes}
		if p.Reason != router.PathDirect {
			a.Via, a.Reason = string(p.Via), p.Reason.String()
		}
		for _, d := range p.Detours {
			a.Detours = append(a.Detours, string(d.City))
		}
		out = append(out, a)
	}
	return out
}

// diverged names the routers of other cities that greeted with the same epoch and
// another content: somebody changed a topology without raising its epoch, and
// the cities route by two truths.
func diverged(t *zone.Topology, links []link.Status) []string {
	var reasons []string
	for _, l := range links {
		if l.Epoch != t.Epoch || l.Digest == t.Digest {
			continue
		}
		reason := fmt.Sprintf("%s of %s has topology %s with other content: raise the epoch with every change", l.Node, l.City, t.Epoch)
		if !slices.Contains(reasons, reason) { // a link for each class
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// Topology implements admin.Node.
func (n *routerNode) Topology() []byte { return n.text.of(n.source.Current()) }

// Find implements admin.Node: a router has no log.
func (n *routerNode) Find(context.Context, string) ([]admin.Sighting, error) {
	return nil, admin.ErrNotServed
}

// CacheGet implements admin.Node: a router has no cache.
func (n *routerNode) CacheGet(context.Context, string) (admin.CacheEntry, error) {
	return admin.CacheEntry{}, admin.ErrNotServed
}

var _ wire.Stream = (*replayed)(nil)
