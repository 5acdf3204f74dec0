package broker

import (
	"sync"

	"github.com/mqrouter/mqrouter/zone"
)

// liteName is a lite topic of a topic.
type liteName struct {
	topic zone.Topic
	name  string
}

// liteArriving are the lite topics that messages on their way into the log will make:
// with those that live they are no more than the topic may have, so that the fold never
// has to forget one whose messages were acknowledged. What is answered before the fold
// has it (buffered, early durabilities) gives its place back a moment too early: a few
// more than the limit may live then, which harms nothing.
type liteArriving struct {
	mu    sync.Mutex
	names map[zone.Topic]map[string]int // messages on their way, by lite topic
}

// liteRoom reports whether a message of a lite topic may be stored here: it lives, or
// there may be another one, which then has its place until o ends.
func (b *Broker) liteRoom(t *zone.TopicInfo, name string, o *op) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	s := b.state.topics[t.Name]
	switch {
	case s == nil:
		return b.lites.take(t, name, nil, o)
	case s.lite == nil || s.lite.byName[name] != nil:
		return true
	}
	return b.lites.take(t, name, s.lite.byName, o)
}

// take gives a lite topic that does not live a place, if there is one beside those that
// live. Broker.mu is held for reading.
func (a *liteArriving) take(t *zone.TopicInfo, name string, alive map[string]*liteTopic, o *op) bool {
	room := t.Lite.Topics - len(alive)
	if room <= 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	names := a.names[t.Name]
	if names[name] == 0 && len(names) >= room {
		n := 0
		for arriving := range names {
			if alive[arriving] == nil { // else it was folded a moment ago
				n++
			}
		}
		if n >= room {
			return false
		}
	}
	if names == nil {
		if a.names == nil {
			a.names = map[zone.Topic]map[string]int{}
		}
		names = map[string]int{}
		a.names[t.Name] = names
	}
	names[name]++
	o.lites = append(o.lites, liteName{t.Name, name})
	return true
}

// give gives the places of an op back: the fold counts them now, or they did not come.
func (a *liteArriving) give(o *op) {
	if len(o.lites) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range o.lites {
		names := a.names[l.topic]
		if names[l.name]--; names[l.name] > 0 {
			continue
		}
		if delete(names, l.name); len(names) == 0 {
			delete(a.names, l.topic)
		}
	}
	o.lites = nil
}
