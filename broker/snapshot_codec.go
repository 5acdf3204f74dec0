package broker

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/broker/once"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// The bytes of a snapshot. Integers marked u16, u32 and u64 are little endian,
// the others unsigned varints; str, n and flow are as in control.go.
//
//	magic "MQSNAP\r\n" | version u16 = 6 | CRC32C of what follows u32 |
//	group str, incarnation u64, position, epoch, lineage u64, next index |
//	topology term, number, digest 32 bytes |
//	counts: n, each uvarint |
//	n channels: name str, n legs: city str, group str |
//	n zones: name str, owned u64 |
//	n topics: name str, first u64, flags u8 (1 declared, 2 dead letter, 4 broadcast, 8 lite), channel str, receipts str, want,
//	          retention ms, n queues: index, next,
//	          n carried: offset, given up ms u64, position, size, hash u32,
//	          n given up: offset, n groups: str;
//	          lite: limit, last number u32, n lite topics, least used first: number u32, name str, first, last, count, used ms u64 |
//	n subscriptions: group str, topic str, flags u8 (1 declared, 2 cache), n queues: since |
//	n flows out: flow, index, next, n marks: epoch, id u64, first, n topics: name str,
//	          n legs: city str, group str, cursor, fingerprint, parked, n backlogs by label,
//	          end, lost, lost bytes, compacted, lost through, gap ranges, skip ranges (as in TypeGiveUp) |
//	n flows in: flow, settled, fingerprint, sealed u8, orphans,
//	          n lineages: id u64, epoch, last, n outcomes: first, through, outcome u8, reason,
//	          broken u8, n runs: lineage u64, from, through |
//	n channels that go onward: name str, n legs: city str, group str |
//	n relays: flow, index, next, since, settled, n marks: epoch, id u64, first,
//	          n extents: lineage u64, first, through, entry,
//	          n legs: 1, city str, group str, cursor, fingerprint, parked, backlog |
//	latest delivery time that fired ms, n buckets of delayed messages: start / 1 h, index, next, made at u64, carried,
//	          settled, recalled (sets of package timer) |
//	half messages: length, the snapshot of package transaction |
//	the table of package once |
//	n lineages with messages that were stored again: id u64, epoch, n ranges: distance from the end of the one before, length |
//	progress: the snapshot of package consumer
//
// where a fingerprint is lineage u64, number, checksum u32. Equal states have
// equal bytes.
const (
	snapshotMagic   = "MQSNAP\r\n"
	snapshotVersion = 6
	snapshotHead    = len(snapshotMagic) + 2 + 4
)

// SnapshotError says why a snapshot is not used. The broker then tries the one
// before, or folds the whole log.
type SnapshotError struct {
	Name string
	What string
	Err  error // the cause, or nil
	// Damage says that the file is not what was once durable, and that nothing else stands
	// in for it.
	Damage bool
}

// Error names the file and what is wrong with it.
func (e *SnapshotError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("snapshot %s: %s: %v", e.Name, e.What, e.Err)
	}
	return fmt.Sprintf("snapshot %s: %s", e.Name, e.What)
}

// Unwrap returns the cause.
func (e *SnapshotError) Unwrap() error { return e.Err }

func (c *counts) list() []*uint64 {
	return []*uint64{&c.Orphans, &c.Refused, &c.VoidProgress, &c.DeadLetters, &c.RepeatedDead, &c.LegsAtHead, &c.DroppedTopics, &c.Withdrawn, &c.OffsetsSet, &c.Receipts, &c.NoReceipts,
		&c.Fired, &c.Recalled, &c.LateRecalls, &c.VoidTimers, &c.LateCommits,
		&c.RepeatedSends, &c.ConflictingSends, &c.LiteForgotten, &c.LiteEvicted, &c.LiteMoved,
		&c.Again, &c.AgainRepeated, &c.AgainRefused}
}

func (e *encoder) fingerprint(f flow.Fingerprint) {
	e.u64(uint64(f.Lineage))
	e.uint(f.Number)
	e.u32(f.Checksum)
}

func (d *decoder) fingerprint() flow.Fingerprint {
	return flow.Fingerprint{Lineage: record.LineageID(d.u64()), Number: d.uint(), Checksum: d.u32()}
}

// encode returns the snapshot of the state. The caller holds the fold's lock
// and has flushed the indexes.
func (s *state) encode() []byte {
	e := encoder{b: make([]byte, snapshotHead, 64<<10)}
	copy(e.b, snapshotMagic)
	binary.LittleEndian.PutUint16(e.b[len(snapshotMagic):], snapshotVersion)
	e.str(string(s.self))
	e.u64(uint64(s.store))
	e.uint(uint64(s.position))
	e.uint(s.epoch)
	e.u64(uint64(s.lineage))
	e.uint(s.nextIndex)
	e.uint(s.topology.Term)
	e.uint(s.topology.Number)
	e.raw(s.digest[:])
	e.uint(uint64(len(s.counts.list())))
	for _, c := range s.counts.list() {
		e.uint(*c)
	}
	s.encodeTopics(&e)
	s.encodeOut(&e)
	s.encodeIn(&e)
	s.encodeRelays(&e)
	s.encodeTimers(&e)
	halves := s.halves.Append(nil)
	e.uint(uint64(len(halves)))
	e.raw(halves)
	e.b = s.once.Append(e.b)
	e.again(&s.again)
	e.b = s.progress.AppendSnapshot(e.b)
	sum := crc32.Checksum(e.b[snapshotHead:], castagnoli)
	binary.LittleEndian.PutUint32(e.b[snapshotHead-4:], sum)
	return e.b
}

func (s *state) encodeTopics(e *encoder) {
	e.uint(uint64(len(s.channels)))
	for _, name := range sortedKeys(s.channels) {
		e.str(name)
		e.uint(uint64(len(s.channels[name])))
		for _, l := range s.channels[name] {
			e.str(string(l.city))
			e.str(string(l.group))
		}
	}
	e.uint(uint64(len(s.owners)))
	for _, name := range sortedKeys(s.owners) {
		e.str(string(name))
		e.u64(s.owners[name])
	}
	e.uint(uint64(len(s.topics)))
	for _, name := range sortedKeys(s.topics) {
		t := s.topics[name]
		e.str(string(name))
		e.u64(uint64(t.first))
		e.byte(flagIf(t.declared, 1) | flagIf(t.deadLetter, 2) | flagIf(t.broadcast, 4) | flagIf(t.lite != nil, 8))
		e.str(t.channel)
		e.str(string(t.receipts))
		e.uint(uint64(t.want))
		e.uint(uint64(t.retention / time.Millisecond))
		e.uint(uint64(len(t.queues)))
		for _, q := range t.queues {
			e.uint(q.id)
			e.uint(q.index.Next())
			e.carried(q.carried.all())
			e.givenUp(q.givenUp)
		}
		if t.lite != nil {
			e.lite(t.lite)
		}
	}
	e.uint(uint64(len(s.subs)))
	for _, sub := range s.sortedSubs() {
		e.str(string(sub.key.group))
		e.str(string(sub.key.topic))
		e.byte(flagIf(sub.declared, 1) | flagIf(sub.cache, 2))
		e.uint(uint64(len(sub.since)))
		for _, n := range sub.since {
			e.uint(n)
		}
	}
}

func (s *state) sortedSubs() []*subscription {
	list := make([]*subscription, 0, len(s.subs))
	for _, sub := range s.subs {
		list = append(list, sub)
	}
	slices.SortFunc(list, func(a, b *subscription) int {
		if a.key.group != b.key.group {
			return compareStrings(a.key.group, b.key.group)
		}
		return compareStrings(a.key.topic, b.key.topic)
	})
	return list
}

func compareStrings[S ~string](a, b S) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func sortedFlows[V any](m map[record.FlowID]V) []record.FlowID {
	ids := make([]record.FlowID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, flowOrder)
	return ids
}

func (s *state) encodeOut(e *encoder) {
	e.uint(uint64(len(s.out)))
	for _, id := range sortedFlows(s.out) {
		f := s.out[id]
		e.flow(id)
		e.uint(f.ixID)
		e.uint(f.index.Next())
		e.uint(uint64(len(f.marks)))
		for _, m := range f.marks {
			e.uint(m.Epoch)
			e.u64(uint64(m.ID))
			e.uint(m.First)
		}
		e.uint(uint64(len(f.topics)))
		for _, t := range f.topics {
			e.str(string(t))
		}
		e.uint(uint64(len(f.legs)))
		for _, l := range f.legs {
			e.leg(l)
		}
	}
}

func (e *encoder) leg(l *leg) {
	e.str(string(l.key.city))
	e.str(string(l.key.group))
	e.uint(l.cursor)
	e.fingerprint(l.at)
	e.uint(l.parked)
	e.uint(uint64(len(l.topics)))
	for _, n := range l.topics {
		e.uint(uint64(n))
	}
	e.uint(l.end)
	e.uint(l.given.Lost)
	e.uint(l.given.LostBytes)
	e.uint(l.given.Compacted)
	e.uint(l.gap.full)
	e.ranges(l.gap.ranges())
	e.ranges(l.skip.ranges())
}

func (s *state) encodeIn(e *encoder) {
	e.uint(uint64(len(s.in)))
	for _, id := range sortedFlows(s.in) {
		f := s.in[id]
		e.flow(id)
		e.uint(f.settled)
		e.fingerprint(f.last)
		e.bool(f.sealed)
		e.uint(f.orphans)
		e.uint(uint64(len(f.history)))
		for _, h := range f.history {
			e.u64(uint64(h.Lineage))
			e.uint(h.Epoch)
			e.uint(h.Last)
		}
		e.uint(uint64(len(f.outcomes)))
		for _, o := range f.outcomes {
			e.uint(o.First)
			e.uint(o.Through)
			e.byte(byte(o.Outcome))
			e.uint(uint64(o.Reason))
		}
		e.runs(f)
	}
}

// snapshotBytes checks frame and checksum and returns what follows.
func snapshotBytes(name string, b []byte) ([]byte, error) {
	if len(b) < snapshotHead || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return nil, &SnapshotError{Name: name, What: "not a snapshot, or cut short"}
	}
	if v := binary.LittleEndian.Uint16(b[len(snapshotMagic):]); v != snapshotVersion {
		return nil, &SnapshotError{Name: name, What: fmt.Sprintf("version %d is not known to this version", v)}
	}
	if crc32.Checksum(b[snapshotHead:], castagnoli) != binary.LittleEndian.Uint32(b[snapshotHead-4:]) {
		return nil, &SnapshotError{Name: name, What: "checksum does not match"}
	}
	return b[snapshotHead:], nil
}

// decode fills an empty state from a snapshot's bytes, but for its indexes,
// which are opened by what it returns. It keeps nothing of b.
func (s *state) decode(name string, b []byte) (*cuts, error) {
	b, err := snapshotBytes(name, b)
	if err != nil {
		return nil, err
	}
	d := &decoder{b: b}
	group, store := zone.Group(d.str()), record.Incarnation(d.u64())
	if !d.bad && (group != s.self || store != s.store) {
		return nil, &SnapshotError{Name: name, What: fmt.Sprintf("it is of group %s, incarnation %x; this store is of %s, %x", group, store, s.self, s.store)}
	}
	s.position = record.Position(d.uint())
	s.epoch, s.lineage = d.uint(), record.LineageID(d.u64())
	s.nextIndex = d.uint()
	s.topology = zone.Epoch{Term: d.uint(), Number: d.uint()}
	copy(s.digest[:], d.take(uint64(len(s.digest))))
	list := s.counts.list()
	for i := range d.count() {
		if v := d.uint(); i < len(list) {
			*list[i] = v
		}
	}
	c := &cuts{next: map[string]uint64{}, place: map[string]**queue.Index{}}
	s.decodeTopics(d, c)
	s.decodeOut(d, c)
	s.decodeIn(d)
	s.decodeRelays(d, c)
	s.decodeTimers(d, c)
	if d.bad {
		return nil, &SnapshotError{Name: name, What: "malformed"}
	}
	if s.halves, err = transaction.Parse(d.bytes()); err != nil {
		return nil, &SnapshotError{Name: name, What: "malformed", Err: err}
	}
	if s.once, d.b, err = once.Parse(d.b); err != nil {
		return nil, &SnapshotError{Name: name, What: "malformed", Err: err}
	}
	rest := &decoder{b: d.b}
	if rest.again(&s.again); rest.bad {
		return nil, &SnapshotError{Name: name, What: "malformed"}
	}
	if s.progress, err = consumer.ParseSnapshot(rest.b); err != nil {
		return nil, &SnapshotError{Name: name, What: "malformed", Err: err}
	}
	return c, nil
}

func (e *encoder) carried(list []carriedLetter) {
	e.uint(uint64(len(list)))
	for _, l := range list {
		e.uint(l.offset)
		e.u64(uint64(l.dead.UnixMilli()))
		e.uint(uint64(l.entry.Position))
		e.uint(uint64(l.entry.Size))
		e.u32(l.entry.Hash)
	}
}
