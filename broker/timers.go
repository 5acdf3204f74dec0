package broker

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/replication/record"
)

// bucketMillis is what a bucket spans (milliseconds): an hour. Thirty days are 720
// index files then, and the messages of an hour are looked through at once.
const bucketMillis = int64(time.Hour / time.Millisecond)

// timers is what the fold knows of messages that wait for their delivery time. A
// message costs an entry in the index of its bucket, on disk, and a bit in memory
// once it is settled: fired, recalled, or carried to another entry.
type timers struct {
	list    []*timerBucket // ascending by start
	byID    map[uint64]*timerBucket
	pending uint64 // messages that wait
	fired   int64  // the latest delivery time that fell due: older buckets that are settled go

	soonest int64 // volatile: the earliest time of those that came since it was last looked at; 0 = none came
}

// timerBucket has the messages that are due in one span of bucketMillis. Entry
// hashes are milliseconds after its beginning; a carried entry has a label.
type timerBucket struct {
	start    int64 // Unix milliseconds / bucketMillis
	id       uint64
	index    *queue.Index
	first    record.Position // of the entry that made it
	settled  timer.Set
	recalled timer.Set // of these
	carried  uint64    // entries that are carried ones, ever
}

// carriedLabel marks entries whose record is a TypeCarried one.
const carriedLabel = 1

// pending returns how many of its messages wait.
func (k *timerBucket) pending() uint64 { return k.index.Next() - k.settled.Count() }

// waits reports whether entry number n waits.
func (k *timerBucket) waits(n uint64) bool { return n < k.index.Next() && !k.settled.Has(n) }

// due returns when an entry is due (Unix milliseconds).
func (k *timerBucket) due(e queue.Entry) int64 { return k.start*bucketMillis + int64(e.Hash) }

// name is how causes and handles name a bucket: never 0, and of no other bucket,
// ever.
func (k *timerBucket) name() uint64 { return k.id + 1 }

// dueMillis is a delivery time in milliseconds, rounded up: never early.
func dueMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

// isWaiting reports whether a message of this group's own waits for its time. One
// with a cause has waited, or is not to wait.
func isWaiting(v record.View) bool { return len(v.Cause()) == 0 && !v.DeliverAt().IsZero() }

// timerEntry is the entry of a waiting message in its bucket.
func timerEntry(e *commitlog.Entry, due int64) queue.Entry {
	return queue.Entry{Position: e.Position, Size: uint32(e.Size), Hash: uint32(due % bucketMillis)}
}

func (t *timers) at(start int64) (int, bool) {
	return slices.BinarySearchFunc(t.list, start, func(k *timerBucket, s int64) int { return cmp.Compare(k.start, s) })
}

// bucketOf returns the bucket that a cause or handle names, or nil.
func (t *timers) bucketOf(name uint64) *timerBucket { return t.byID[name-1] }

// wait puts a message into the bucket of its delivery time.
func (s *state) wait(e *commitlog.Entry, v record.View) (placement, error) {
	due := dueMillis(v.DeliverAt())
	if due < 0 {
		return placement{}, fmt.Errorf("a delivery time before 1970")
	}
	t, start := &s.timers, due/bucketMillis
	i, ok := t.at(start)
	if !ok {
		k := &timerBucket{start: start, first: e.Position}
		var err error
		if k.id, k.index, err = s.newIndex(); err != nil {
			return placement{}, err
		}
		t.insert(i, k)
	}
	k := t.list[i]
	n, err := k.index.Append(timerEntry(e, due))
	if err != nil {
		return placement{}, err
	}
	t.pending++
	t.touch(due)
	return placement{ok: true, waits: true, bucket: k.name(), offset: n}, nil
}

func (t *timers) insert(i int, k *timerBucket) {
	t.list = slices.Insert(t.list, i, k)
	t.byID[k.id] = k
}

// touch notes that something came that is due then.
func (t *timers) touch(due int64) {
	if t.soonest == 0 || due < t.soonest {
		t.soonest = max(due, 1)
	}
}

// settleTimer settles a message that waits; false when it does not wait any more:
// the first decision counts.
func (s *state) settleTimer(name, number uint64, recall bool) bool {
	k := s.timers.bucketOf(name)
	if k == nil || !k.waits(number) {
		return false
	}
	k.settled.Add(number)
	if recall {
		k.recalled.Add(number)
	}
	s.timers.pending--
	return true
}

// fire folds that a message fell due; v is the copy that is delivered. It reports
// whether the copy counts.
func (s *state) fire(c *Cause, v record.View, pos record.Position) bool {
	if c.Bucket == 0 {
		return true // its time was past when it was published
	}
	if !s.settleTimer(c.Bucket, c.Offset, false) {
		s.counts.VoidTimers++
		return false
	}
	s.counts.Fired++
	s.fellDue(v, pos)
	return true
}

// strand folds that a message fell due whose topic was gone; v is its dead letter. It
// reports whether the letter counts.
func (s *state) strand(c *Cause, v record.View, pos record.Position) bool {
	if !s.settleTimer(c.Bucket, c.Offset, false) {
		return false
	}
	s.fellDue(v, pos)
	return true
}

// fellDue notes the delivery time of a message that came, and lets go of buckets that
// are over.
func (s *state) fellDue(v record.View, pos record.Position) {
	s.timers.fired = max(s.timers.fired, dueMillis(v.DeliverAt()))
	s.dropSettled(pos)
}

// dropSettled drops the buckets of the past that have nothing that waits. Whether
// one is past is known from what fired, and not from a clock.
func (s *state) dropSettled(pos record.Position) {
	t, now := &s.timers, s.timers.fired/bucketMillis
	for i := 0; i < len(t.list) && t.list[i].start < now; {
		k := t.list[i]
		if k.pending() > 0 {
			i++
			continue
		}
		t.list = slices.Delete(t.list, i, i+1)
		delete(t.byID, k.id)
		s.dropped = append(s.dropped, droppedIndex{indexName(k.id), pos})
	}
}

// recallBody is the body of a TypeRecall record: a message that waits is not to be
// delivered. Topic and id of the message are those of the record.
type recallBody struct{ bucket, number uint64 }

func (r recallBody) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(recallVersion)
	e.uint(r.bucket)
	e.uint(r.number)
	return e.b
}

func parseRecall(b []byte) (recallBody, error) {
	d := decoder{b: b}
	if v := d.byte(); v != recallVersion {
		return recallBody{}, &BodyError{What: "recall", Version: v}
	}
	r := recallBody{bucket: d.uint(), number: d.uint()}
	if !d.ok() {
		return recallBody{}, &BodyError{What: "recall", Version: recallVersion}
	}
	return r, nil
}

// applyRecall folds a recall; the placement says whether it counts.
func (s *state) applyRecall(pos record.Position, body []byte) (placement, error) {
	r, err := parseRecall(body)
	if err != nil {
		return placement{}, err
	}
	if !s.settleTimer(r.bucket, r.number, true) {
		s.counts.LateRecalls++
		return placement{}, nil
	}
	s.counts.Recalled++
	s.dropSettled(pos)
	return placement{ok: true}, nil
}

// applyTimerCarried moves a message that waits to a new entry, whose record is the
// carried one.
func (s *state) applyTimerCarried(e *commitlog.Entry, c *carriedBody) error {
	k := s.timers.bucketOf(c.bucket)
	if k == nil || !k.waits(c.number) {
		s.counts.VoidTimers++
		return nil
	}
	entry := timerEntry(e, c.due)
	entry.Label = carriedLabel
	if _, err := k.index.Append(entry); err != nil {
		return err
	}
	k.settled.Add(c.number)
	k.carried++
	s.timers.touch(c.due)
	return nil
}

func (s *state) encodeTimers(e *encoder) {
	t := &s.timers
	e.uint(uint64(t.fired))
	e.uint(uint64(len(t.list)))
	for _, k := range t.list {
		e.uint(uint64(k.start))
		e.uint(k.id)
		e.uint(k.index.Next())
		e.u64(uint64(k.first))
		e.uint(k.carried)
		e.b = k.settled.Append(e.b)
		e.b = k.recalled.Append(e.b)
	}
}

func (s *state) decodeTimers(d *decoder, c *cuts) {
	t := &s.timers
	t.fired = int64(d.uint())
	for range d.count() {
		k := &timerBucket{start: int64(d.uint()), id: d.uint()}
		next := d.uint()
		k.first, k.carried = record.Position(d.u64()), d.uint()
		k.settled, k.recalled = d.timerSet(next), d.timerSet(next)
		if n := len(t.list); d.bad || n > 0 && t.list[n-1].start >= k.start {
			d.bad = true
			return
		}
		c.add(k.id, next, &k.index)
		t.pending += next - k.settled.Count()
		t.insert(len(t.list), k)
	}
}

// timerSet reads a set of numbers below end.
func (d *decoder) timerSet(end uint64) timer.Set {
	if d.bad {
		return timer.Set{}
	}
	s, rest, ok := timer.ParseSet(d.b, end)
	if !ok {
		d.bad = true
		return timer.Set{}
	}
	d.b = rest
	return s
}

// timerSlot returns the entry of a delayed message in its bucket.
func (s *state) timerSlot(e *commitlog.Entry, v record.View, dst []slot) ([]slot, error) {
	var k *timerBucket
	var entry queue.Entry
	if v.Type() == record.TypeCarried {
		c, err := parseCarried(v.Body())
		if err != nil || c.bucket == 0 {
			return dst, err // a dead letter has no second entry
		}
		k, entry = s.timers.bucketOf(c.bucket), timerEntry(e, c.due)
		entry.Label = carriedLabel
	} else {
		due := dueMillis(v.DeliverAt())
		if i, ok := s.timers.at(due / bucketMillis); ok {
			k, entry = s.timers.list[i], timerEntry(e, due)
		}
	}
	if k == nil || e.Position < k.first {
		return dst, nil // of a bucket that was dropped
	}
	return append(dst, slot{index: k.id, entry: entry}), nil
}

// mayBeVoid reports whether the fold may have ignored a record of this group since
// the delayed message that it settles was settled.
func mayBeVoid(v record.View) bool {
	switch v.Type() {
	case record.TypeCarried:
		return true
	case record.TypeMessage:
		c, err := ParseCause(v.Cause())
		return err == nil && c.Kind == CauseDue
	}
	return false
}

// shed lets go of what far buckets have in memory. Their entries are flushed.
func (t *timers) shed(near int64) {
	for _, k := range t.list {
		if k.start*bucketMillis >= near {
			k.index.Shed()
		}
	}
}
