package commitlog

import "github.com/mqrouter/mqrouter/internal/bounds"

// Usage tells how full the queue of the writer is. Full counts the appends that
// had to wait for room.
func (l *Log) Usage() bounds.Usage {
	q := l.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return bounds.Usage{Name: "log.append", Unit: "By", Depth: q.bytes, Limit: q.limit, Full: q.waits}
}
