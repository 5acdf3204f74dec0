package broker

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/mqrouter/mqrouter/broker/consumer"
)

var errRetired = errors.New("the hands were replaced")

// liteMembers are the clients of a subscription to a topic with lite topics.
type liteMembers struct {
	mu      sync.Mutex
	clients map[string]*liteMember
	owners  map[string]string // of an exclusive group: who has a lite topic
	named   int               // sum of what all have named
	retired bool              // moved to other hands
}

// liteMember is a client and what it has named.
type liteMember struct {
	names map[string]consumer.Instant // when each was named first
	seen  consumer.Instant
}

// lostLite is a lite topic that a client has no longer.
type lostLite struct{ client, name string }

func newLiteMembers() *liteMembers {
	return &liteMembers{clients: map[string]*liteMember{}, owners: map[string]string{}}
}

// keys returns the numbers under which the dispatcher knows lite topics. The seed is
// this process's own, so nobody can choose names of one number.
func (b *Broker) keys(names []string) []uint64 {
	list := make([]uint64, len(names))
	for i, name := range names {
		list[i] = maphash.String(b.liteSeed, name)
	}
	return list
}

// remember changes what a client has named, and the dispatcher with it; beyond a limit
// nothing. lost is also to be told with an error.
func (b *Broker) remember(h *hands, r *LiteRequest, limit int, exclusive bool) (lost []lostLite, err error) {
	m := h.lite
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.retired {
		return nil, errRetired
	}
	c := m.clients[r.ClientID]
	switch {
	case c == nil && (r.Action == LiteRemove || r.Action == LiteLeave):
		return nil, nil
	case c == nil:
		c = &liteMember{names: map[string]consumer.Instant{}}
	case r.Action == LiteLeave:
		m.drop(b, h, r.ClientID, c)
		return nil, nil
	}
	c.seen = b.now()
	if r.Action == LiteRemove {
		m.remove(b, h, r.ClientID, c, r.Names)
		return nil, nil
	}
	var remove []string
	if r.Action == LiteReplace {
		remove = c.unwanted(r.Names)
	}
	var fresh []string
	taken := map[string]string{} // names of others
	for _, name := range r.Names {
		if _, has := c.names[name]; has {
			continue
		}
		if owner := m.owners[name]; exclusive && owner != "" && owner != r.ClientID {
			if r.Action == LiteReplace { // it was told before, and did not hear it
				lost = append(lost, lostLite{r.ClientID, name})
				continue
			}
			taken[name] = owner
		}
		fresh = append(fresh, name)
	}
	own, all := len(c.names)-len(remove)+len(fresh), m.named-len(remove)-len(taken)+len(fresh)
	if len(fresh) > 0 && (own > limit || all > b.limits.MaxLite) {
		return lost, &Error{Op: "subscribe", Kind: KindLiteSubscriptions, Group: r.Group, Topic: r.Topic,
			Text: fmt.Sprintf("%d lite topics of a client, which may have %d here, and %d of all clients of the group, which may have %d",
				own, limit, all, b.limits.MaxLite)}
	}
	m.remove(b, h, r.ClientID, c, remove)
	if len(c.names)+len(fresh) > 0 {
		m.clients[r.ClientID] = c // without names there is nothing to remember, so what names are bounds clients
	}
	for _, name := range fresh {
		if owner, has := taken[name]; has {
			m.remove(b, h, owner, m.clients[owner], []string{name})
			lost = append(lost, lostLite{owner, name})
		}
		c.names[name] = c.seen
		if exclusive {
			m.owners[name] = r.ClientID
		}
	}
	m.named += len(fresh)
	h.disp.Choose(r.ClientID, b.keys(fresh)...)
	return lost, nil
}

// unwanted returns what the client named longer ago than liteGrace, and does not name
// any more.
func (c *liteMember) unwanted(names []string) (list []string) {
	wanted := make(map[string]struct{}, len(names))
	for _, name := range names {
		wanted[name] = struct{}{}
	}
	for name, since := range c.names {
		if _, still := wanted[name]; !still && c.seen.Sub(since) >= liteGrace {
			list = append(list, name)
		}
	}
	return list
}

// remove takes names from a client, and forgets one that has none left. mu is held.
func (m *liteMembers) remove(b *Broker, h *hands, client string, c *liteMember, names []string) {
	if c == nil {
		return
	}
	gone := names[:0:0]
	for _, name := range names {
		if _, has := c.names[name]; !has {
			continue
		}
		delete(c.names, name)
		m.named--
		if m.owners[name] == client {
			delete(m.owners, name)
		}
		gone = append(gone, name)
	}
	if len(c.names) == 0 {
		delete(m.clients, client)
	}
	h.disp.Unchoose(client, b.keys(gone)...)
}

// heard notes that the client is there.
func (m *liteMembers) heard(client string, now consumer.Instant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clients[client]; c != nil {
		c.seen = now
	}
}

// forgetSilent forgets clients that nothing was heard of for long.
func (m *liteMembers) forgetSilent(b *Broker, h *hands, now consumer.Instant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.clients {
		if now.Sub(c.seen) > liteMemory {
			m.drop(b, h, id, c)
		}
	}
}

// drop forgets a client. mu is held.
func (m *liteMembers) drop(b *Broker, h *hands, id string, c *liteMember) {
	names := make([]string, 0, len(c.names))
	for name := range c.names {
		names = append(names, name)
	}
	m.remove(b, h, id, c, names)
}

// inherit moves what clients have named to the hands that replace h.
func (m *liteMembers) inherit(b *Broker, next *hands) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retired = true
	next.lite.clients, next.lite.owners, next.lite.named = m.clients, m.owners, m.named
	for id, c := range m.clients {
		names := make([]string, 0, len(c.names))
		for name := range c.names {
			names = append(names, name)
		}
		next.disp.Choose(id, b.keys(names)...)
	}
}

// size returns how many clients there are, and how many lite topics they have named.
func (m *liteMembers) size() (clients, named int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.clients), m.named
}
