package node

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/internal/bounds"
)

// queues are the bounded queues and caps of a node's parts. Parts are added while
// the node starts, also after the first scrape.
type queues struct {
	mu    sync.Mutex
	parts []func() []bounds.Usage // guarded by mu
}

func (q *queues) add(parts ...func() []bounds.Usage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.parts = append(q.parts, parts...)
}

// single makes a part of one queue.
func single(read func() bounds.Usage) func() []bounds.Usage {
	return func() []bounds.Usage { return []bounds.Usage{read()} }
}

func (q *queues) read() []bounds.Usage {
	q.mu.Lock()
	parts := q.parts
	q.mu.Unlock()
	var all []bounds.Usage
	for _, p := range parts {
		all = append(all, p()...)
	}
	return all
}

// queueMeters export every queue in one form: one rule and one panel watch them
// all. deploy/notes has what each is and what happens when it is full.
func (b *base) queueMeters(m *meterSet) func(*look) {
	depth := m.gauge("mqrouter.queue.depth", "{item}", "What is in a bounded queue or under a cap, in its own unit.")
	limit := m.gauge("mqrouter.queue.limit", "{item}", "Most that may be in it.")
	full := m.counter("mqrouter.queue.full", "{time}", "How often somebody found it full: refused, dropped or made to wait.")
	return func(l *look) {
		for _, u := range b.watched.queues.read() {
			with := metric.WithAttributes(attribute.String("queue", u.Name), attribute.String("unit", u.Unit))
			l.ObserveInt64(depth, u.Depth, with)
			l.ObserveInt64(limit, u.Limit, with)
			l.ObserveInt64(full, int64(u.Full), with)
		}
	}
}
