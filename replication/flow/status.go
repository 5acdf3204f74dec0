package flow

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// State is where a leg stands, in a word for people and metrics.
type State string

// The states.
const (
	StateOpening   State = "opening"   // dialling, or waiting for the answer to Open
	StateStreaming State = "streaming" // a session is open
	StateHeld      State = "held"      // a session is open, the destination says why it takes nothing
	StateRelayed   State = "relayed"   // a session is open, and the destination takes the records from another that has landed them
	StateWaiting   State = "waiting"   // the last attempt failed; see Code and Text
	StateDiverged  State = "diverged"  // origin and destination disagree about the content; an operator must look
	StateSealed    State = "sealed"    // the destination refuses everything above Settled for ever
)

// LegStatus is a snapshot of a leg at the origin.
type LegStatus struct {
	Leg         Leg
	State       State
	Since       time.Time // when State began
	Code        wire.Code // why it is waiting, diverged or held; CodeOK else
	Text        string
	Session     uint64 // 0 = none open
	Incarnation record.Incarnation
	Head        uint64        // highest number given
	Settled     uint64        // settled prefix as the destination last said; the source's cursor before it did
	Sent        uint64        // highest number sent in this session
	Backlog     uint64        // numbers that are not settled
	OldestAge   time.Duration // since the oldest unsettled record was stored; 0 = none or not readable
	Progress    time.Time     // last time that Settled moved; zero = not since the lane began
	RTT         time.Duration // of the last probe; 0 = none answered
	Pulled      bool          // the destination asked for what landed here; its origin keeps the cursor
}

// Status returns the legs that have a lane, by destination. It reads one
// record a leg.
func (o *Outbox) Status() []LegStatus {
	o.mu.Lock()
	lanes := make([]*lane, 0, len(o.lanes))
	for _, l := range o.lanes {
		lanes = append(lanes, l)
	}
	for l := range o.pulls {
		lanes = append(lanes, l)
	}
	o.mu.Unlock()
	list := make([]LegStatus, 0, len(lanes))
	for _, l := range lanes {
		l.mu.Lock()
		st := l.status
		l.mu.Unlock()
		if origin, ok := o.src.Origin(st.Leg.Flow); ok {
			st.Head = max(st.Head, origin.Head)
		}
		if st.Head > st.Settled {
			st.Backlog = st.Head - st.Settled
			st.OldestAge = o.age(st.Leg, st.Settled+1)
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b LegStatus) int {
		return cmp.Or(cmp.Compare(a.Leg.City, b.Leg.City), cmp.Compare(a.Leg.Group, b.Leg.Group),
			cmp.Compare(FlowName(a.Leg.Flow), FlowName(b.Leg.Flow)))
	})
	return list
}

func (o *Outbox) age(leg Leg, number uint64) time.Duration {
	items, err := o.src.Read(leg, number, 1, 1, nil)
	if err != nil || len(items) == 0 || items[0].Skip {
		return 0
	}
	v, err := record.Parse(items[0].Record)
	if err != nil {
		return 0
	}
	return max(time.Since(v.Stored()), 0)
}

// FlowStatus is a snapshot of a flow at its destination.
type FlowStatus struct {
	Flow     record.FlowID
	Session  uint64 // 0 = none open
	Head     uint64 // the origin's, as it last said
	Settled  uint64 // committed
	Landing  int    // landings that are not committed
	Window   int64  // bytes of credit that the session may have outstanding
	Progress time.Time
	Held     wire.Code // CodeOK = not held
	Text     string
	Orphans  wire.Range // found when the session began
}

// Status returns the flows that have a session, by origin.
func (in *Inbox) Status() []FlowStatus {
	in.mu.Lock()
	list := make([]FlowStatus, 0, len(in.flows))
	for _, e := range in.flows {
		if e.current != nil {
			list = append(list, e.current.snapshot())
		}
	}
	in.mu.Unlock()
	slices.SortFunc(list, func(a, b FlowStatus) int {
		return cmp.Compare(FlowName(a.Flow), FlowName(b.Flow))
	})
	return list
}

// MemoryInUse returns the bytes of the budget that sessions have reserved.
func (in *Inbox) MemoryInUse() int64 { return in.budget.inUse() }

// FlowName returns a flow's name for people: origin.incarnation/target/class.lane.
func FlowName(f record.FlowID) string {
	kind := ""
	if f.Channel {
		kind = "channel:"
	}
	return fmt.Sprintf("%s.%x/%s%s/%d.%d", f.Origin, uint64(f.Incarnation), kind, f.Target, f.Class, f.Lane)
}
