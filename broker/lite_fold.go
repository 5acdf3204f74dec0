package broker

import (
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Messages of a topic of kind lite stand in its queue 0 like those of a FIFO topic, and
// the lite topic of each stands where a message group would: in the record, and as a
// number in the index entry. Numbers, not hashes, since a consumer is promised the lite
// topics that it named and no others. The fold gives a lite topic its number with its
// first message, and keeps name and number until the lite topic is forgotten: by a
// record that the lite loop appends when its time is over. No more come than the topic
// may have (liteRoom), but a topology may lower that, and those that live stay; the fold
// itself forgets one only at farLite. What the index still holds of a lite topic then
// has a number that nobody has, and is settled by whoever comes across it.

// farLite bounds the lite topics of a topic in the fold, whatever was let in: twice
// what a topology may declare. Nothing comes near it unless liteRoom has a fault.
const farLite = 2 << 20

// maxEvicted bounds what is remembered of lite topics that made room for others, until
// the lite loop has looked at it.
const maxEvicted = 4096

// liteTopic is a lite topic that lives.
type liteTopic struct {
	name        string
	id          uint32
	first, last uint64 // offsets of its first and its newest message
	count       uint64 // its messages, ever
	used        int64  // when the newest came here, Unix milliseconds

	older, newer *liteTopic
}

// liteTable are the lite topics of a topic, in the order of their newest messages.
type liteTable struct {
	limit          int // as declared
	given          uint32
	byName         map[string]*liteTopic
	byID           map[uint32]*liteTopic
	oldest, newest *liteTopic
	evicted        []*liteTopic // volatile: for the lite loop
	far            int          // farLite; less in tests
}

func newLiteTable(limit int) *liteTable {
	return &liteTable{limit: limit, far: farLite, byName: map[string]*liteTopic{}, byID: map[uint32]*liteTopic{}}
}

// touch notes a message of a lite topic and returns the lite topic's number.
func (t *liteTable) touch(name []byte, offset uint64, at int64, c *counts) uint32 {
	l := t.byName[string(name)]
	if l == nil {
		if len(t.byName) >= t.far {
			t.evict(c)
		}
		l = &liteTopic{name: string(name), id: t.free(), first: offset}
		t.byName[l.name], t.byID[l.id] = l, l
	} else {
		t.unlink(l)
	}
	l.last, l.used = offset, max(at, l.used)
	l.count++
	t.append(l)
	return l.id
}

// free returns the next number that nobody has; never 0.
func (t *liteTable) free() uint32 {
	for {
		if t.given++; t.given != 0 && t.byID[t.given] == nil {
			return t.given
		}
	}
}

func (t *liteTable) evict(c *counts) {
	l := t.oldest
	t.forget(l)
	c.LiteEvicted++
	if len(t.evicted) < maxEvicted {
		t.evicted = append(t.evicted, l)
	}
}

func (t *liteTable) forget(l *liteTopic) {
	t.unlink(l)
	delete(t.byName, l.name)
	delete(t.byID, l.id)
}

func (t *liteTable) append(l *liteTopic) {
	l.older, l.newer = t.newest, nil
	if t.newest == nil {
		t.oldest = l
	} else {
		t.newest.newer = l
	}
	t.newest = l
}

func (t *liteTable) unlink(l *liteTopic) {
	if l.older == nil {
		t.oldest = l.newer
	} else {
		l.older.newer = l.newer
	}
	if l.newer == nil {
		t.newest = l.older
	} else {
		l.newer.older = l.older
	}
}

// alive returns the lite topic of an index entry; nil when it was forgotten.
func (t *liteTable) alive(id uint32, offset uint64) *liteTopic {
	if l := t.byID[id]; l != nil && offset >= l.first {
		return l
	}
	return nil
}

// declareLite makes a topic one with lite topics, or one without.
func (t *topic) declareLite(limit int) {
	switch {
	case limit == 0:
		t.lite = nil
	case t.lite == nil:
		t.lite = newLiteTable(limit)
	default:
		t.lite.limit = limit
	}
}

// storeLite puts a message of a lite topic into its queue.
func (s *state) storeLite(t *topic, e *commitlog.Entry, v record.View) (placement, error) {
	entry := queueEntry(e, v)
	at := v.Stored()
	if e.Kind == commitlog.KindLanding {
		at = s.envelope.Landed // it may have been on its way for long
	}
	entry.Hash = t.lite.touch(v.MessageGroup(), t.queues[0].index.Next(), at.UnixMilli(), &s.counts)
	return s.enqueue(t, 0, entry)
}

// isLite reports whether the record is a message of a lite topic of t.
func (t *topic) isLite(v *record.View) bool {
	return t.lite != nil && v.Kind() == zone.KindLite && v.Type() == record.TypeMessage && v.GroupHash() != 0
}

// liteEntry gives an index entry that is made anew the number of its lite topic; one
// that was forgotten has none any more.
func (t *topic) liteEntry(entry queue.Entry, v *record.View) queue.Entry {
	if t.isLite(v) {
		entry.Hash = 0
		if l := t.lite.byName[string(v.MessageGroup())]; l != nil {
			entry.Hash = l.id
		}
	}
	return entry
}

// The kinds of TypeLite records.
const (
	liteForgotten = 1
	liteMoved     = 2
)

// liteBody is the body of a TypeLite record: lite topics that are forgotten, or where a
// consumer group goes on in one.
type liteBody struct {
	topic       zone.Topic
	incarnation record.Position
	unused      []liteUnused // forgotten
	group       zone.ConsumerGroup
	settled     []consumer.Range // moved
	again       []consumer.Range // moved
}

// liteUnused is a lite topic that is to be forgotten, unless a message came after the
// last one.
type liteUnused struct {
	id   uint32
	last uint64
}

func (l *liteBody) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(liteVersion)
	if l.group == "" {
		e.byte(liteForgotten)
	} else {
		e.byte(liteMoved)
	}
	e.str(string(l.topic))
	e.u64(uint64(l.incarnation))
	if l.group != "" {
		e.str(string(l.group))
		e.offsets(l.settled)
		e.offsets(l.again)
		return e.b
	}
	e.uint(uint64(len(l.unused)))
	for _, u := range l.unused {
		e.u32(u.id)
		e.uint(u.last)
	}
	return e.b
}

func parseLite(b []byte) (*liteBody, error) {
	d := decoder{b: b}
	if v := d.byte(); v != liteVersion {
		return nil, &BodyError{What: "lite", Version: v}
	}
	kind := d.byte()
	l := &liteBody{topic: zone.Topic(d.str()), incarnation: record.Position(d.u64())}
	switch kind {
	case liteMoved:
		l.group, l.settled, l.again = zone.ConsumerGroup(d.str()), d.offsets(), d.offsets()
		d.bad = d.bad || l.group == ""
	case liteForgotten:
		for range d.count() {
			l.unused = append(l.unused, liteUnused{d.u32(), d.uint()})
		}
	default:
		d.bad = true
	}
	if !d.ok() {
		return nil, &BodyError{What: "lite", Version: liteVersion}
	}
	return l, nil
}

// applyLite forgets lite topics that were not used again since somebody looked, or has
// a consumer group go on elsewhere in one.
func (s *state) applyLite(body []byte) error {
	l, err := parseLite(body)
	if err != nil {
		return err
	}
	t := s.topics[l.topic]
	if t == nil || t.first != l.incarnation || t.lite == nil {
		s.counts.VoidProgress++
		return nil
	}
	for _, u := range l.unused {
		if have := t.lite.byID[u.id]; have != nil && have.last == u.last {
			t.lite.forget(have)
			s.counts.LiteForgotten++
		}
	}
	if l.group == "" {
		return nil
	}
	if s.subs[subKey{l.group, l.topic}] == nil {
		s.counts.VoidProgress++
		return nil
	}
	s.progress.SettleAll(l.group, l.topic, 0, l.settled)
	s.progress.Unsettle(l.group, l.topic, 0, clip(l.again, t.queues[0].index.Next()))
	s.counts.LiteMoved++
	return nil
}

// clip cuts ranges off at an end.
func clip(ranges []consumer.Range, end uint64) []consumer.Range {
	for i := range ranges {
		if ranges[i].To = min(ranges[i].To, end); ranges[i].From >= end {
			return ranges[:i]
		}
	}
	return ranges
}

func (e *encoder) lite(t *liteTable) {
	e.uint(uint64(t.limit))
	e.u32(t.given)
	e.uint(uint64(len(t.byName)))
	for l := t.oldest; l != nil; l = l.newer {
		e.u32(l.id)
		e.str(l.name)
		e.uint(l.first)
		e.uint(l.last)
		e.uint(l.count)
		e.u64(uint64(l.used))
	}
}

func (d *decoder) lite() *liteTable {
	t := newLiteTable(int(d.uint()))
	t.given = d.u32()
	for range d.count() {
		l := &liteTopic{id: d.u32(), name: d.str(), first: d.uint(), last: d.uint(), count: d.uint(), used: int64(d.u64())}
		if t.byName[l.name] != nil || t.byID[l.id] != nil || l.id == 0 {
			d.bad = true
			return t
		}
		t.byName[l.name], t.byID[l.id] = l, l
		t.append(l)
	}
	d.bad = d.bad || t.limit < 1
	return t
}

// idle returns how long the lite topic was not used.
func (l *liteTopic) idle(now time.Time) time.Duration {
	return max(now.Sub(time.UnixMilli(l.used)), 0)
}
