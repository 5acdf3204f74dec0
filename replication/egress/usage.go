package egress

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the pool is.
func (p *Pool) Usage() bounds.Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bounds.Usage{Name: "egress.sessions", Unit: "session", Depth: int64(p.total), Limit: int64(p.o.Sessions), Full: p.full}
}

// Usage tells how full the pool behind is.
func (e *Egress) Usage() bounds.Usage { return e.pool.Usage() }
