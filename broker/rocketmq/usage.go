package rocketmq

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the front end's queues and caps are. It does not block.
func (s *Server) Usage() []bounds.Usage {
	c := s.clients
	c.mu.RLock()
	clients := bounds.Usage{Name: "client.registry", Unit: "client", Depth: int64(len(c.clients)), Limit: int64(c.max), Full: c.full}
	c.mu.RUnlock()
	all := []bounds.Usage{
		clients, s.memory.Usage(), s.answers.Usage(),
		{Name: "client.polls", Unit: "request", Depth: int64(len(s.polls)), Limit: int64(cap(s.polls)), Full: s.refused.Load()},
	}
	if g := s.guard; g != nil {
		all = append(all, bounds.Usage{Name: "client.held", Unit: "request", Depth: g.held.Load(), Limit: maxHolds, Full: g.unheld.Load()})
	}
	if l := s.sniff.Load(); l != nil {
		l.mu.Lock()
		all = append(all,
			bounds.Usage{Name: "client.connections", Unit: "connection", Depth: int64(l.open), Limit: int64(l.limit), Full: l.full},
			bounds.Usage{Name: "client.handshakes", Unit: "connection", Depth: int64(l.line.Len()), Limit: maxHandshakes, Full: l.givenUp})
		l.mu.Unlock()
	}
	return all
}
