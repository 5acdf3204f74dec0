package broker

import (
	"slices"

	"github.com/mqrouter/mqrouter/internal/bounds"
	"github.com/mqrouter/mqrouter/zone"
)

// Usage tells how full the broker's queues and caps are. It does not block.
func (b *Broker) Usage() []bounds.Usage {
	b.mu.RLock()
	flows, halves := len(b.state.in), b.state.halves.Len()
	ids, timers := b.state.once.Len(), b.state.timers.pending
	b.mu.RUnlock()
	return []bounds.Usage{
		b.log.Usage(),
		{Name: "broker.flows", Unit: "flow", Depth: int64(flows), Limit: int64(b.limits.MaxFlows), Full: b.flowsRefused.Load()},
		{Name: "broker.halves", Unit: "half message", Depth: int64(halves), Limit: int64(b.limits.MaxHalves), Full: b.halves.refused.Load()},
		{Name: "broker.timers", Unit: "delayed message", Depth: int64(timers), Limit: int64(b.limits.MaxTimers), Full: b.timersRefused.Load()},
		{Name: "broker.ids", Unit: "message id", Depth: int64(ids), Limit: int64(b.limits.MaxIDs), Full: b.onceRefused.Load()},
	}
}

// LimitStatus tells how much of a limit that operators may set is in use.
type LimitStatus struct {
	What    string     // "delayed messages", "half messages" or "message ids"
	Topic   zone.Topic // whose limit it is; empty = the broker's
	Used    int
	Limit   int
	Refused uint64 // publishes refused for it, since the start; of the broker's limits, those of their topics included
}

// limitStatus lists the limits of which something is in use, or was in the way. mu is
// held.
func (b *Broker) limitStatus(st *Status) []LimitStatus {
	l := &b.limits
	all := []LimitStatus{
		{What: "delayed messages", Used: int(b.state.timers.pending), Limit: l.MaxTimers, Refused: b.timersRefused.Load()},
		{What: "half messages", Used: b.state.halves.Len(), Limit: l.MaxHalves, Refused: b.halves.refused.Load()},
	}
	for _, t := range st.Transactions {
		all = append(all, LimitStatus{What: "half messages", Topic: t.Topic, Used: t.Pending, Limit: l.MaxTopicHalves})
	}
	all = append(all, LimitStatus{What: "message ids", Used: b.state.once.Len(), Limit: l.MaxIDs, Refused: b.onceRefused.Load()})
	for _, w := range st.Windows {
		all = append(all, LimitStatus{What: "message ids", Topic: w.Topic, Used: w.IDs, Limit: w.Limit})
	}
	return slices.DeleteFunc(all, func(s LimitStatus) bool { return s.Used == 0 && s.Refused == 0 })
}
