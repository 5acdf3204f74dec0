package link

import (
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// heardReach is what a peer said that it reaches.
type heardReach struct {
	at     time.Time
	cities []wire.Reached // never changed
}

// sayReach tells the peer what this node reaches, if the stream takes it at
// once; the next probe tells it again.
func (c *conn) sayReach() {
	if c.m.o.Reach == nil || c.extra {
		return
	}
	r := wire.Reach{Cities: c.m.o.Reach(c.link.key.Class)}
	c.say(wire.TypeReach, r.Append(nil))
}

// Reach returns the cities that the node at the other end of the link reaches
// over direct links of its own, as it told within Timing.RedAfter; nil when the
// link takes no sessions. The slice must not be changed.
func (m *Manager) Reach(node zone.Node, class zone.Class) []wire.Reached {
	m.mu.Lock()
	l := m.links[Key{node, class}]
	m.mu.Unlock()
	if l == nil {
		return nil
	}
	c := l.current.Load()
	if c == nil {
		return nil
	}
	h := c.reach.Load()
	if h == nil || time.Since(h.at) > m.o.Timing.RedAfter {
		return nil
	}
	return h.cities
}

// TellReach tells every peer at once what this node reaches over links of the
// class. Call it when that has changed; it does not block.
func (m *Manager) TellReach(class zone.Class) {
	m.mu.Lock()
	var links []*link
	for k, l := range m.links {
		if k.Class == class {
			links = append(links, l)
		}
	}
	m.mu.Unlock()
	for _, l := range links {
		for _, c := range l.connections() {
			c.sayReach()
		}
	}
}
