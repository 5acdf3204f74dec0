package broker

import (
	"slices"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
)

// applyTopology makes topics, subscriptions and legs what the topology
// declares. A declared group begins at its declaration.
func (s *state) applyTopology(pos record.Position, body []byte) error {
	t, err := parseTopologyBody(body)
	if err != nil {
		return err
	}
	s.topology, s.digest = t.epoch, t.digest
	if err := s.applyTopics(pos, t); err != nil {
		return err
	}
	s.applyGroups(t)
	s.receiptsDue = true
	if err := s.applyOnward(pos, t); err != nil {
		return err
	}
	if err := s.applyChannels(t); err != nil {
		return err
	}
	clear(s.owners)
	for _, o := range t.owners {
		s.owners[o.zone] = o.owned
	}
	return nil
}

func (s *state) applyTopics(pos record.Position, body *topologyBody) error {
	for _, t := range s.topics {
		t.declared = false
	}
	for _, d := range body.topics {
		t, err := s.ensureTopic(d.name, pos, d.queues)
		if err != nil {
			return err
		}
		t.declared, t.broadcast, t.channel, t.retention = true, d.broadcast, d.channel, d.retention
		if err := s.grow(t, d.queues); err != nil {
			return err
		}
		s.declareReceipts(t, d.receipts)
		t.declareLite(d.lite)
	}
	// In order of names, so that whatever dropping does is the same each time.
	for _, name := range sortedKeys(s.topics) {
		if t := s.topics[name]; !t.declared && !t.deadLetter {
			s.dropTopic(t, pos)
		}
	}
	return nil
}

func (s *state) applyGroups(body *topologyBody) {
	declared := map[subKey]bool{} // value: a cache
	for _, g := range body.groups {
		for _, name := range g.topics {
			declared[subKey{g.name, name}] = g.cache
			if t := s.topics[name]; t != nil {
				sub := s.subscribe(subKey{g.name, name}, t)
				for i, q := range t.queues {
					if s.progress.Create(g.name, name, uint16(i), q.index.Next()) && t.receipts != "" {
						sub.begins(i, q.index.Next())
					}
				}
				sub.declared, sub.cache = true, g.cache
			}
		}
	}
	for key, sub := range s.subs {
		if _, still := declared[key]; sub.declared && !still {
			s.dropSubscription(sub)
		}
	}
}

// applyChannels adds and removes legs of channels. A leg that is new to a flow
// with numbers begins at its head: its city knows of the gap from the numbers. A
// leg that is no longer declared ends; it goes when there is nothing that it has
// not settled, else it stays as it is.
func (s *state) applyChannels(body *topologyBody) error {
	clear(s.channels)
	for _, c := range body.channels {
		s.channels[c.name] = c.legs
	}
	for _, f := range s.out {
		if !f.id.Channel {
			continue
		}
		legs := s.legsOf(f.id.Target)
		f.legs = slices.DeleteFunc(f.legs, func(l *leg) bool {
			if slices.Contains(legs, l.key) {
				return false
			}
			l.end = l.last(f.head())
			return l.cursor >= l.end
		})
		for _, key := range legs {
			switch l := f.leg(key); {
			case l == nil:
				f.legs = append(f.legs, &leg{key: key, cursor: f.head()})
				s.counts.LegsAtHead++
			case l.end > 0:
				if err := f.resume(l); err != nil {
					return err
				}
			}
		}
		s.touchFlow(f)
	}
	return nil
}

// resume goes on with a leg whose destination is declared again: what was
// numbered meanwhile is for it, too.
func (f *outFlow) resume(l *leg) error {
	from := l.end + 1
	l.end = 0
	return f.entries(numberRange{from, f.head()}, func(_ uint64, e queue.Entry) { l.more(e) })
}
