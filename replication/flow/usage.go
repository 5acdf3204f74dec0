package flow

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the memory for landings is. Full counts the sessions that
// were turned away.
func (in *Inbox) Usage() bounds.Usage {
	b := in.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	return bounds.Usage{Name: "flow.inbox", Unit: "By", Depth: b.used, Limit: b.total, Full: b.full}
}

// Usage tells how full the cache of compressed batches is; it drops the oldest
// when it is full, which is no fault and not counted.
func (o *Outbox) Usage() bounds.Usage {
	c := o.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	return bounds.Usage{Name: "flow.packed", Unit: "By", Depth: int64(c.bytes), Limit: int64(c.limit)}
}
