package rocketmq

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the front end's queues and caps are. It does not block.
func (s *Server) Usage() []bounds.Usage {
	c := s.clients
	c.mu.RLock()
	clients := bounds.Usage{Name: "client.registry", Unit: "client", Depth: int64(len(c.clients)), Limit: int64(c.max), Full: c.full}
	c.mu.RUnlock()
	all := []bounds.Usage{
		clients, s.memory.Usage(), s.answers.Usage(), s.polls.Usage(),
	}
	if g := s.guard; g != nil {
		all = append(all, bounds.Usage{Name: "client.held", Unit: "request", Depth: g.held.Load(), Limit: maxHolds, Full: g.unheld.Load()})
	}
	if l := s.sniff.Load(); l != nil {
		all = append(all, l.Usage()...)
	}
	return all
}

// Usage tells how full the bounds of connections are.
func (s *sniffer) Usage() []bounds.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []bounds.Usage{
		{Name: "client.connections", Unit: "connection", Depth: int64(s.open), Limit: int64(s.limit), Full: s.full},
		{Name: "client.handshakes", Unit: "connection", Depth: int64(s.shaking.size), Limit: maxHandshakes, Full: s.givenUp},
	}
}
