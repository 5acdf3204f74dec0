package router

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the router's queues and caps are. It does not block.
func (r *Router) Usage() []bounds.Usage {
	r.mu.Lock()
	sessions := bounds.Usage{Name: "router.sessions", Unit: "session", Depth: int64(r.places), Limit: int64(r.o.Limits.Sessions), Full: r.full}
	r.mu.Unlock()
	b := r.buffers
	return []bounds.Usage{
		sessions,
		{Name: "router.buffers", Unit: "By", Depth: b.used.Load(), Limit: b.limit, Full: b.waits.Load()},
		r.brokers.Usage(),
	}
}
