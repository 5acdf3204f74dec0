package broker

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the broker's queues and caps are. It does not block.
func (b *Broker) Usage() []bounds.Usage {
	b.mu.RLock()
	flows, halves := len(b.state.in), b.state.halves.Len()
	ids := b.state.once.Len()
	b.mu.RUnlock()
	return []bounds.Usage{
		b.log.Usage(),
		{Name: "broker.flows", Unit: "flow", Depth: int64(flows), Limit: int64(b.limits.MaxFlows), Full: b.flowsRefused.Load()},
		{Name: "broker.halves", Unit: "half message", Depth: int64(halves), Limit: int64(b.limits.MaxHalves), Full: b.halves.refused.Load()},
		{Name: "broker.ids", Unit: "message id", Depth: int64(ids), Limit: int64(b.limits.MaxIDs), Full: b.onceRefused.Load()},
	}
}
