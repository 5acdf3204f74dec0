package broker

import (
	"time"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// cuts are the indexes that a snapshot names, by name, with their length, and
// where to put each once it is open.
type cuts struct {
	next  map[string]uint64
	place map[string]**queue.Index
	list  []cut
}

func (c *cuts) add(id, next uint64, place **queue.Index) {
	name := indexName(id)
	c.next[name], c.place[name] = next, place
	c.list = append(c.list, cut{id, next})
}

// open cuts the indexes back to the snapshot, removes all others and opens
// them.
func (c *cuts) open(store *queue.Store) error {
	if err := store.Recover(c.next); err != nil {
		return err
	}
	for name, place := range c.place {
		ix, err := store.Index(name)
		if err != nil {
			return err
		}
		*place = ix
	}
	return nil
}

func (s *state) decodeTopics(d *decoder, c *cuts) {
	for range d.count() {
		name := d.str()
		var legs []legKey
		for range d.count() {
			legs = append(legs, legKey{zone.City(d.str()), zone.Group(d.str())})
		}
		s.channels[name] = legs
	}
	for range d.count() {
		name := zone.Zone(d.str())
		s.owners[name] = d.u64()
	}
	for range d.count() {
		t := &topic{name: zone.Topic(d.str()), first: record.Position(d.u64())}
		flags := d.byte()
		t.declared, t.deadLetter, t.broadcast = flags&1 != 0, flags&2 != 0, flags&4 != 0
		t.channel = d.str()
		t.receipts = zone.Topic(d.str())
		t.want = int(d.uint())
		t.retention = time.Duration(d.uint()) * time.Millisecond
		for range d.count() {
			q := &topicQueue{id: d.uint()}
			c.add(q.id, d.uint(), &q.index)
			d.carried(&q.carried)
			q.givenUp = d.givenUp()
			t.queues = append(t.queues, q)
		}
		if flags&8 != 0 {
			t.lite = d.lite()
		}
		if t.want < 1 || t.want > len(t.queues) {
			d.bad = true
		}
		s.topics[t.name] = t
	}
	for range d.count() {
		key := subKey{zone.ConsumerGroup(d.str()), zone.Topic(d.str())}
		flags := d.byte()
		t := s.topics[key.topic]
		if t == nil {
			d.bad = true
			return
		}
		sub := s.subscribe(key, t)
		sub.declared, sub.cache = flags&1 != 0, flags&2 != 0
		for range d.count() {
			sub.since = append(sub.since, d.uint())
		}
	}
}

func (s *state) decodeOut(d *decoder, c *cuts) {
	for range d.count() {
		f := &outFlow{id: d.flow(), ixID: d.uint()}
		f.seen = d.uint()
		c.add(f.ixID, f.seen, &f.index)
		for range d.count() {
			f.marks = append(f.marks, flow.Mark{Epoch: d.uint(), ID: record.LineageID(d.u64()), First: d.uint()})
		}
		for range d.count() {
			f.topics = append(f.topics, zone.Topic(d.str()))
		}
		if len(f.topics) > maxLabels {
			d.bad = true
			return
		}
		for range d.count() {
			f.legs = append(f.legs, d.leg(f.seen))
		}
		s.out[f.id] = f
	}
}

// leg reads a leg of a flow with the head.
func (d *decoder) leg(head uint64) *leg {
	l := &leg{key: legKey{zone.City(d.str()), zone.Group(d.str())}, cursor: d.uint(), at: d.fingerprint(), parked: d.uint()}
	n := d.count()
	if n > maxLabels+1 {
		d.bad = true
		return l
	}
	for range n {
		l.topics = append(l.topics, int64(d.uint()))
		l.backlog += l.topics[len(l.topics)-1]
	}
	l.end = d.uint()
	l.given = given{Lost: d.uint(), LostBytes: d.uint(), Compacted: d.uint()}
	l.gap.full = d.uint()
	for _, set := range []*numberSet{&l.gap, &l.skip} {
		for _, r := range d.ranges() {
			if r.through > head || r.first <= l.cursor || r.len() > maxNumbers-set.count {
				d.bad = true
				return l
			}
			set.addRange(r)
		}
	}
	return l
}

func (s *state) decodeIn(d *decoder) {
	for range d.count() {
		id := d.flow()
		f := &inFlow{settled: d.uint(), last: d.fingerprint(), sealed: d.bool(), orphans: d.uint()}
		for range d.count() {
			f.history = append(f.history, flow.Have{Lineage: record.LineageID(d.u64()), Epoch: d.uint(), Last: d.uint()})
		}
		for range d.count() {
			f.outcomes = append(f.outcomes, flow.Outcome{
				First: d.uint(), Through: d.uint(), Outcome: record.Outcome(d.byte()), Reason: record.Reason(d.uint()),
			})
		}
		d.runs(f)
		s.in[id] = f
	}
}

func (d *decoder) carried(to *carriedList) {
	for range d.count() {
		l := carriedLetter{offset: d.uint(), dead: time.UnixMilli(int64(d.u64()))}
		l.entry = queue.Entry{Position: record.Position(d.uint()), Size: uint32(d.uint()), Hash: d.u32()}
		if n := len(to.list); n > 0 && to.list[n-1].offset >= l.offset {
			d.bad = true
			return
		}
		to.list = append(to.list, l)
	}
}
