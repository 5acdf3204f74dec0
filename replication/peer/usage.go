package peer

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the listener is. Full counts the connections that were
// closed at once, and those that had not greeted and were given up for newer ones.
func (l *Listener) Usage() bounds.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bounds.Usage{Name: "peer.connections", Unit: "connection", Depth: int64(len(l.conns)), Limit: int64(l.o.Limits.Connections), Full: l.stats.refused.Load()}
}
