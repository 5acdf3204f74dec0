package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// A dead letter is kept for long, and a log is trimmed by whole segments: one old
// letter would keep everything behind it. So old letters that are few are appended
// to the log again, as they are and under their old offsets, and the log behind
// them goes.
const (
	// maxCarried bounds the letters of a dead-letter queue that are carried; with
	// more, the log is kept instead.
	maxCarried = 4096
	// carriedPart is what carried letters may be of the log that they set free: a
	// quarter at most is written again.
	carriedPart = 4
	// carryBatch is about how many bytes one append of carried letters has.
	carryBatch = 1 << 20
)

// carriedLetter is where a dead letter is whose first copy may be trimmed.
type carriedLetter struct {
	offset uint64
	dead   time.Time // when it was given up: how long it is kept counts from there
	entry  queue.Entry
}

// carriedList are the carried letters of a queue. Its methods are safe for
// concurrent use.
type carriedList struct {
	mu   sync.RWMutex
	list []carriedLetter // ascending by offset; guarded by mu
}

func (c *carriedList) find(offset uint64) (int, bool) {
	return slices.BinarySearchFunc(c.list, offset, func(l carriedLetter, o uint64) int {
		switch {
		case l.offset < o:
			return -1
		case l.offset > o:
			return 1
		}
		return 0
	})
}

func (c *carriedList) get(offset uint64) (queue.Entry, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	i, ok := c.find(offset)
	if !ok {
		return queue.Entry{}, false
	}
	return c.list[i].entry, true
}

func (c *carriedList) put(l carriedLetter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i, ok := c.find(l.offset); ok {
		c.list[i] = l
	} else {
		c.list = slices.Insert(c.list, i, l)
	}
}

// dropBelow forgets letters that the log no longer has.
func (c *carriedList) dropBelow(begin record.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = slices.DeleteFunc(c.list, func(l carriedLetter) bool { return l.entry.Position < begin })
}

func (c *carriedList) all() []carriedLetter {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Clone(c.list)
}

// get returns where the record of an offset is.
func (q *topicQueue) get(offset uint64) (queue.Entry, error) {
	if e, ok := q.carried.get(offset); ok {
		return e, nil
	}
	e, err := q.index.Get(offset)
	if err != nil {
		if c, ok := q.carried.get(offset); ok { // carried and trimmed between the two looks
			return c, nil
		}
	}
	return e, err
}

// readEntry reads what is at an offset and was at e when the caller looked. A
// letter may be carried, and the log behind it trimmed, between that look and the
// read: it is read where it is now.
func (b *Broker) readEntry(q *topicQueue, offset uint64, e queue.Entry) (commitlog.Entry, error) {
	for {
		entry, err := b.log.ReadAt(e.Position, int(e.Size))
		if !errors.Is(err, commitlog.ErrTrimmed) {
			return entry, err
		}
		now, ok := q.carried.get(offset)
		if !ok || now.Position <= e.Position {
			return entry, err
		}
		e = now
	}
}

// readMessage reads the record of what readEntry finds.
func (b *Broker) readMessage(q *topicQueue, offset uint64, e queue.Entry) (record.View, error) {
	entry, err := b.readEntry(q, offset, e)
	if err != nil {
		return record.View{}, err
	}
	return recordOf(&entry)
}

// carriedBody is the body of a TypeCarried record.
type carriedBody struct {
	// Of a dead letter, or of a half message: then the topic is empty, and incarnation,
	// offset and hash are 0.
	topic       zone.Topic
	incarnation record.Position
	offset      uint64
	hash        uint32 // of the queue entry
	dead        time.Time

	// Of a delayed message; see timers_carry.go.
	bucket, number uint64
	origin         uint64 // the number that its handle names
	due            int64  // Unix milliseconds

	record []byte // as it was appended first, identity included
}

func (c *carriedBody) append(dst []byte) []byte {
	e := encoder{b: dst}
	if c.bucket != 0 {
		e.byte(carriedTimer)
		e.uint(c.bucket)
		e.uint(c.number)
		e.uint(c.origin)
		e.u64(uint64(c.due))
		e.uint(uint64(len(c.record)))
		e.raw(c.record)
		return e.b
	}
	e.byte(carriedVersion)
	e.str(string(c.topic))
	e.u64(uint64(c.incarnation))
	e.uint(c.offset)
	e.u32(c.hash)
	e.u64(uint64(c.dead.UnixMilli()))
	e.uint(uint64(len(c.record)))
	e.raw(c.record)
	return e.b
}

// parseCarried reads a body; the record is a part of b.
func parseCarried(b []byte) (carriedBody, error) {
	d := decoder{b: b}
	switch v := d.byte(); v {
	case carriedVersion:
	case carriedTimer:
		c := carriedBody{bucket: d.uint(), number: d.uint(), origin: d.uint(), due: int64(d.u64()), record: d.bytes()}
		if !d.ok() || c.bucket == 0 || c.due < 0 {
			return carriedBody{}, &BodyError{What: "carried message", Version: v}
		}
		return c, nil
	default:
		return carriedBody{}, &BodyError{What: "carried record", Version: v}
	}
	c := carriedBody{topic: zone.Topic(d.str()), incarnation: record.Position(d.u64()), offset: d.uint(), hash: d.u32(),
		dead: time.UnixMilli(int64(d.u64())), record: d.bytes()}
	if !d.ok() {
		return carriedBody{}, &BodyError{What: "carried letter", Version: carriedVersion}
	}
	return c, nil
}

// applyCarried notes that a letter or a half message is here now, too.
func (s *state) applyCarried(e *commitlog.Entry, body []byte) error {
	c, err := parseCarried(body)
	if err != nil {
		return err
	}
	if c.bucket != 0 {
		return s.applyTimerCarried(e, &c)
	}
	if c.topic == "" {
		return s.applyCarriedHalf(e, c.record)
	}
	t := s.topics[c.topic]
	if t == nil || !t.deadLetter || t.first != c.incarnation || c.offset >= t.queues[0].index.Next() {
		return nil // its topic went meanwhile
	}
	t.queues[0].carried.put(carriedLetter{offset: c.offset, dead: c.dead,
		entry: queue.Entry{Position: e.Position, Size: uint32(e.Size), Hash: c.hash}})
	return nil
}

// letterNeed is what a dead-letter queue needs of the log.
type letterNeed struct {
	topic       zone.Topic
	incarnation record.Position
	q           *topicQueue
}

func (b *Broker) letterNeeds() []letterNeed {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var list []letterNeed
	for _, name := range sortedKeys(b.state.topics) {
		if t := b.state.topics[name]; t.deadLetter {
			list = append(list, letterNeed{name, t.first, t.queues[0]})
		}
	}
	return list
}

// carry appends the old letters of the queue again that keep the log below floor,
// which nothing else needs, if they are few. It returns where the queue still
// needs the log from. old is the position below which entries of the index are
// older than letters are kept.
func (b *Broker) carry(ctx context.Context, n letterNeed, now time.Time, floor, old record.Position) (record.Position, error) {
	var move []carriedLetter
	lowest, bytes := ^record.Position(0), int64(0)
	take := func(l carriedLetter) {
		lowest = min(lowest, l.entry.Position)
		if l.entry.Position < floor && len(move) <= maxCarried {
			move, bytes = append(move, l), bytes+int64(l.entry.Size)
		}
	}
	for _, l := range n.q.carried.all() {
		if now.Sub(l.dead) < b.limits.DeadLetterRetention {
			take(l)
		}
	}
	at, _, err := n.q.index.Search(old)
	if err != nil {
		return 0, err
	}
	for ; at < n.q.index.Next() && len(move) <= maxCarried; at++ {
		if _, ok := n.q.carried.get(at); ok {
			continue
		}
		e, err := n.q.index.Get(at)
		if err != nil {
			return 0, err
		}
		take(carriedLetter{offset: at, entry: e})
		if e.Position >= floor {
			break
		}
	}
	begin := b.log.Begin()
	if len(move) == 0 || len(move) > maxCarried || floor <= begin || bytes > int64(floor-begin)/carriedPart {
		return lowest, nil
	}
	if err := b.carryAll(ctx, n, move); err != nil {
		b.logger.Warn("old dead letters cannot be appended again; they hold the log back", "topic", string(n.topic), "letters", len(move), "err", err)
		return lowest, nil
	}
	b.logger.Info("old dead letters are appended again, so that the log behind them can go", "topic", string(n.topic), "letters", len(move), "bytes", bytes, "free", int64(floor-begin))
	return floor, nil
}

// carryAll appends the letters and waits until they are folded.
func (b *Broker) carryAll(ctx context.Context, n letterNeed, move []carriedLetter) error {
	batch := carrying{b: b}
	for _, l := range move {
		v, err := b.readRecord(l.entry)
		if err != nil {
			return err
		}
		body := carriedBody{topic: n.topic, incarnation: n.incarnation, offset: l.offset, hash: l.entry.Hash, dead: v.Stored(), record: v.Bytes()}
		if err := batch.add(ctx, &body); err != nil {
			return err
		}
	}
	return batch.flush(ctx)
}

// carrying appends carried records, about carryBatch bytes at a time, and waits
// until they are folded.
type carrying struct {
	b       *Broker
	entries []commitlog.Entry
	size    int
}

func (c *carrying) add(ctx context.Context, body *carriedBody) error {
	e, err := c.b.control(record.TypeCarried, body.append(nil))
	if err != nil {
		return err
	}
	c.entries = append(c.entries, e)
	if c.size += len(e.Record); c.size < carryBatch {
		return nil
	}
	return c.flush(ctx)
}

func (c *carrying) flush(ctx context.Context) error {
	if len(c.entries) == 0 {
		return nil
	}
	o := &op{batch: commitlog.Batch{Entries: c.entries, Reserved: true}}
	c.entries, c.size = nil, 0
	return c.b.appendWait(ctx, o)
}

// unwrap returns the record that a carried one holds; others are returned as
// they are.
func unwrap(v record.View) (record.View, error) {
	if v.Type() != record.TypeCarried {
		return v, nil
	}
	c, err := parseCarried(v.Body())
	if err != nil {
		return record.View{}, err
	}
	return record.Parse(c.record)
}
