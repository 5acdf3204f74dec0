package broker

import (
	"errors"
	"slices"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// ignoreTrimmed returns nil for what is only no longer there.
func ignoreTrimmed(err error) error {
	var outside *queue.RangeError
	if errors.Is(err, flow.ErrTrimmed) || errors.As(err, &outside) {
		return nil
	}
	return err
}

// legsOf returns the legs of a channel's flow that begins in this group: one a
// city, and, when this group is where the channel lands in its city, those onward
// to the city's zones, which need no landing in between.
func (s *state) legsOf(channel string) []legKey {
	if len(s.onward[channel]) == 0 {
		return s.channels[channel]
	}
	return slices.Concat(s.channels[channel], s.onward[channel])
}

// serves reports whether what lands here of a channel is served onward.
func (s *state) serves(channel string) bool {
	_, ok := s.onward[channel]
	return ok
}

// relayOf returns the relay of a flow that ends here, made at pos when its channel
// goes onward from here and it has none; nil when it does not.
func (s *state) relayOf(id record.FlowID, f *inFlow, pos record.Position) (*relay, error) {
	if r := s.relays[id]; r != nil || !id.Channel || id.Origin == s.self || !s.serves(id.Target) {
		return r, nil
	}
	r := &relay{id: id, since: pos, settled: f.settled}
	var err error
	if r.ixID, r.index, err = s.newIndex(); err != nil {
		return nil, err
	}
	if n := len(f.history); n > 0 {
		last := f.history[n-1]
		r.table = []flow.Mark{{Epoch: last.Epoch, ID: last.Lineage, First: f.settled + 1}}
	}
	for _, key := range s.onward[id.Target] {
		r.legs = append(r.legs, &leg{key: key, cursor: f.settled})
	}
	s.relays[id] = r
	return r, nil
}

// applyOnward makes relays and their legs what the topology declares. A leg that
// is new to a flow with numbers begins at its settled prefix: its zone knows of
// the gap from the numbers.
func (s *state) applyOnward(pos record.Position, body *topologyBody) error {
	clear(s.onward)
	for _, c := range body.channels {
		if c.serves {
			s.onward[c.name] = c.onward
		}
	}
	// In order: making and dropping relays uses up names of indexes.
	for _, id := range sortedFlows(s.in) {
		r, err := s.relayOf(id, s.in[id], pos)
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		legs := s.onward[id.Target]
		if !s.serves(id.Target) {
			s.touchRelay(r) // whoever waits for its landings learns that there are none any more
			delete(s.relays, id)
			s.dropped = append(s.dropped, droppedIndex{indexName(r.ixID), pos})
			continue
		}
		r.legs = slices.DeleteFunc(r.legs, func(l *leg) bool { return !slices.Contains(legs, l.key) })
		for _, key := range legs {
			if r.leg(key) == nil {
				r.legs = append(r.legs, &leg{key: key, cursor: r.settled})
				s.counts.LegsAtHead++
			}
		}
		s.touchRelay(r)
	}
	return nil
}

func (s *state) touchRelay(r *relay) {
	if !r.dirty {
		r.dirty = true
		s.dirtyRelays = append(s.dirtyRelays, r)
	}
}

// takeDirtyRelays wakes who waits for landings to serve onward.
func (s *state) takeDirtyRelays() (any bool) {
	any = len(s.dirtyRelays) > 0
	for _, r := range s.dirtyRelays {
		r.dirty = false
		if r.advanced != nil {
			close(r.advanced)
			r.advanced = nil
		}
	}
	s.dirtyRelays = s.dirtyRelays[:0]
	return any
}

func (s *state) encodeRelays(e *encoder) {
	e.uint(uint64(len(s.onward)))
	for _, name := range sortedKeys(s.onward) {
		e.str(name)
		e.legKeys(s.onward[name])
	}
	e.uint(uint64(len(s.relays)))
	for _, id := range sortedFlows(s.relays) {
		r := s.relays[id]
		e.flow(id)
		e.uint(r.ixID)
		e.uint(r.index.Next())
		e.uint(uint64(r.since))
		e.uint(r.settled)
		e.marks(r.table)
		e.uint(uint64(len(r.extents)))
		for _, x := range r.extents {
			e.u64(uint64(x.lineage))
			e.uint(x.first)
			e.uint(x.through)
			e.uint(x.at)
		}
		e.relayLegs(r.legs)
	}
}

func (s *state) decodeRelays(d *decoder, c *cuts) {
	for range d.count() {
		name := d.str()
		s.onward[name] = d.legKeys()
	}
	for range d.count() {
		r := &relay{id: d.flow(), ixID: d.uint()}
		c.add(r.ixID, d.uint(), &r.index)
		r.since, r.settled = record.Position(d.uint()), d.uint()
		r.table = d.marks()
		for range d.count() {
			r.extents = append(r.extents, extent{lineage: record.LineageID(d.u64()), first: d.uint(), through: d.uint(), at: d.uint()})
		}
		r.legs = d.relayLegs()
		s.relays[r.id] = r
	}
}

func (e *encoder) legKeys(keys []legKey) {
	e.uint(uint64(len(keys)))
	for _, k := range keys {
		e.str(string(k.city))
		e.str(string(k.group))
	}
}

func (d *decoder) legKeys() (keys []legKey) {
	for range d.count() {
		keys = append(keys, legKey{city: zone.City(d.str()), group: zone.Group(d.str())})
	}
	return keys
}

func (e *encoder) marks(marks []flow.Mark) {
	e.uint(uint64(len(marks)))
	for _, m := range marks {
		e.uint(m.Epoch)
		e.u64(uint64(m.ID))
		e.uint(m.First)
	}
}

func (d *decoder) marks() (marks []flow.Mark) {
	for range d.count() {
		marks = append(marks, flow.Mark{Epoch: d.uint(), ID: record.LineageID(d.u64()), First: d.uint()})
	}
	return marks
}

func (e *encoder) relayLegs(legs []*leg) {
	e.uint(uint64(len(legs)))
	for _, l := range legs {
		e.legKeys([]legKey{l.key})
		e.uint(l.cursor)
		e.fingerprint(l.at)
		e.uint(l.parked)
		e.uint(uint64(max(l.backlog, 0)))
	}
}

func (d *decoder) relayLegs() (legs []*leg) {
	for range d.count() {
		keys := d.legKeys()
		if len(keys) != 1 {
			d.bad = true
			return nil
		}
		legs = append(legs, &leg{key: keys[0], cursor: d.uint(), at: d.fingerprint(), parked: d.uint(), backlog: int64(d.uint())})
	}
	return legs
}
