package broker

import (
	"errors"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Bounds of the due loop.
const (
	// dueAhead is how long before its beginning a bucket is looked through
	// (milliseconds): longer than looking through one takes.
	dueAhead = int64(2 * time.Minute / time.Millisecond)
	// dueWindow is how many messages are kept sorted in memory: 6 to 12 MiB. With
	// more in a bucket it is looked through several times.
	dueWindow = 1 << 18
	// dueBatch and dueBytes are what one append of due messages has.
	dueBatch = 2048
	dueBytes = 4 << 20
	// dueTick is how often the clock is looked at; see timer.Clock.
	dueTick = time.Second
	// dueRest is how long the loop waits after the log refused an append.
	dueRest = time.Second
)

// dueLoop delivers what is due: it appends each message again with a cause that
// names where it waited. The fold lets the first such copy count, so whatever the
// loop forgets in a crash it may do again. Nothing in it is needed to be right, but
// for skipping what the log settled.
type dueLoop struct {
	b       *Broker
	window  *timer.Window
	near    int64             // buckets that begin before are looked through (Unix milliseconds)
	read    map[uint64]uint64 // by bucket: entries below are looked at
	blocked *blocked
	rest    time.Time // monotonic: no append before
	held    string    // why the log refused the last append; empty when it did not
	unread  string    // why a bucket cannot be read; empty when all can
	buf     [1024]queue.Entry
}

// dueLoop runs until the broker closes.
func (b *Broker) dueLoop() {
	d := &dueLoop{b: b, window: timer.NewWindow(dueWindow), read: map[uint64]uint64{}, blocked: newBlocked()}
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.failed:
			return
		case <-b.dueKick:
		case <-wake.C:
		}
		wake.Reset(d.step())
	}
}

// step does what is due and returns when to come again.
func (d *dueLoop) step() time.Duration {
	now := d.b.clock.Now().UnixMilli()
	if d.b.dueAll.Swap(false) {
		d.blocked.hurry()
	}
	d.look(now)
	if time.Until(d.rest) <= 0 {
		d.fire(now)
		d.retry()
	}
	d.tell(now)
	return d.sleep(now)
}

// refused notes why nothing can be delivered for a while.
func (d *dueLoop) refused(text string, err error) {
	if d.b.ctx.Err() != nil {
		return
	}
	d.rest, d.held = time.Now().Add(dueRest), err.Error()
	d.b.logger.Warn(text, "group", string(d.b.self), "err", err)
}

// sleep returns how long there is nothing to do.
func (d *dueLoop) sleep(now int64) time.Duration {
	wait := dueTick
	if rest := time.Until(d.rest); rest > 0 {
		return min(wait, rest)
	}
	if first, ok := d.window.First(); ok {
		wait = min(wait, time.Duration(first.Due-now)*time.Millisecond)
	}
	if next, ok := d.blocked.next(); ok {
		wait = min(wait, time.Until(next))
	}
	return max(wait, 0)
}

// look brings the window up to date: with what came since, or anew when the next
// bucket is near, or what was left out for want of room is. A bucket that cannot be
// read now is looked at again with the next step, and holds up no other.
func (d *dueLoop) look(now int64) {
	near := ((now+dueAhead)/bucketMillis + 1) * bucketMillis
	if near != d.near || d.window.Low() {
		d.near = near
		d.b.dueBefore.Store(near) // before the indexes are read: what the fold adds from here on, it tells
		d.window.Reset(near)
		clear(d.read)
	}
	var todo []nearBucket
	b := d.b
	b.mu.RLock()
	for _, k := range b.state.timers.list {
		if k.start*bucketMillis >= d.near {
			break
		}
		if from, next := d.read[k.id], k.index.Next(); from < next {
			todo = append(todo, nearBucket{k, from, next})
		}
	}
	b.mu.RUnlock()
	var failed error
	for _, n := range todo {
		if err := d.scan(n); err != nil && failed == nil {
			failed = err
		}
	}
	switch {
	case failed == nil || b.ctx.Err() != nil:
		d.unread = ""
	case d.unread != failed.Error():
		d.unread = failed.Error()
		b.logger.Error("delayed messages cannot be looked at, trying again", "group", string(b.self), "err", failed)
	}
}

// nearBucket is a part of a bucket that is not looked at yet.
type nearBucket struct {
	bucket     *timerBucket
	from, next uint64
}

// scan puts what waits in a part of a bucket into the window.
func (d *dueLoop) scan(p nearBucket) error {
	b, k := d.b, p.bucket
	for n := p.from; n < p.next; {
		b.mu.RLock()
		gone := b.state.timers.byID[k.id] != k
		n = max(k.settled.NextOut(n, p.next), k.index.First())
		b.mu.RUnlock()
		if gone || n >= p.next {
			break
		}
		got, err := k.index.Read(n, d.buf[:min(uint64(len(d.buf)), p.next-n)])
		var outside *queue.RangeError
		var corrupt *queue.CorruptError
		switch {
		case err == nil:
		case errors.As(err, &outside) && n < k.index.First():
			continue // trimmed meanwhile
		case errors.As(err, &corrupt): // one entry; the others are good
			d.blocked.put(timer.Ref{Bucket: k.id, Number: n + uint64(got)}, obstacle{kind: unreadable, text: err.Error()})
		default:
			return err
		}
		entries := d.buf[:got]
		b.mu.RLock()
		for i := range entries {
			if k.settled.Has(n + uint64(i)) {
				entries[i].Size = 0
			}
		}
		b.mu.RUnlock()
		for i, e := range entries {
			if r := (timer.Ref{Due: k.due(e), Bucket: k.id, Number: n + uint64(i)}); e.Size > 0 && !d.blocked.has(r) {
				d.window.Push(r)
			}
		}
		if n += uint64(got); corrupt != nil {
			n++
		}
	}
	d.read[k.id] = p.next
	return nil
}

// fire appends a batch of what is due.
func (d *dueLoop) fire(now int64) {
	refs := make([]timer.Ref, 0, 16)
	for len(refs) < dueBatch {
		first, ok := d.window.First()
		if !ok || first.Due > now {
			break
		}
		refs = append(refs, d.window.Pop())
	}
	if len(refs) == 0 {
		return
	}
	left, _, err := d.send(refs)
	for _, r := range left {
		d.window.Push(r)
	}
	if err != nil {
		d.refused("due messages cannot be stored, trying again", err)
		return
	}
	d.held = ""
}

// retry tries some of what is blocked, of each obstacle whose time has come.
func (d *dueLoop) retry() {
	for _, l := range d.blocked.ripe(time.Now()) {
		refs := d.blocked.take(l)
		left, stored, err := d.send(refs)
		for _, r := range left {
			d.blocked.put(r, l.obstacle)
		}
		d.blocked.tried(l, stored, len(refs))
		if err != nil {
			d.refused("due messages cannot be stored, trying again", err)
			return
		}
	}
}

// send appends copies of the messages that still wait, but for those that have an
// obstacle, which are put aside. With an error it returns those of which nothing
// was stored, as far as is known; should they be stored after all, the fold ignores
// the copies that follow.
func (d *dueLoop) send(refs []timer.Ref) (left []timer.Ref, stored int, err error) {
	b, o, size := d.b, &op{}, 0
	var batch []timer.Ref
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := b.appendWait(b.ctx, o); err != nil {
			return err
		}
		now := b.clock.Now().UnixMilli()
		for i := range batch {
			if o.places[i].ok { // else it was recalled just now
				stored++
				b.metrics.fired(now - batch[i].Due)
			}
		}
		o, size, batch = &op{}, 0, batch[:0]
		return nil
	}
	v := b.view.Load()
	for i, r := range refs {
		index := d.waiting(r)
		if index == nil {
			continue
		}
		e, obstacle := b.dueCopy(v, &r, index)
		if obstacle != nil {
			if d.waiting(r) != nil { // else it was carried meanwhile, or recalled
				d.blocked.put(r, *obstacle)
			}
			continue
		}
		o.batch.Entries, batch = append(o.batch.Entries, e), append(batch, r)
		if size += len(e.Record); size >= dueBytes {
			if err := flush(); err != nil {
				return append(batch, refs[i+1:]...), stored, err
			}
		}
	}
	if err := flush(); err != nil {
		return batch, stored, err
	}
	return nil, stored, nil
}

// waiting returns the index of a message, or nil when it does not wait any more.
func (d *dueLoop) waiting(r timer.Ref) *queue.Index {
	d.b.mu.RLock()
	defer d.b.mu.RUnlock()
	if k := d.b.state.timers.byID[r.Bucket]; k != nil && k.waits(r.Number) {
		return k.index
	}
	return nil
}

// dueCopy makes the record that delivers a message: as it was published, but routed
// by the topology in force. It notes when it was due.
func (b *Broker) dueCopy(v *view, ref *timer.Ref, index *queue.Index) (commitlog.Entry, *obstacle) {
	entry, err := index.Get(ref.Number)
	var waited record.View
	var r record.Record
	if err == nil {
		waited, err = b.readRecord(entry)
	}
	if err == nil {
		err = waited.Decode(&r)
	}
	if err != nil {
		return commitlog.Entry{}, &obstacle{kind: unreadable, text: err.Error()}
	}
	ref.Due = dueMillis(r.DeliverAt)
	if err := b.routeDue(v, &r); err != nil {
		return commitlog.Entry{}, obstacleOf(r.Topic, r.Target, err)
	}
	r.Cause = appendCause(nil, &Cause{Kind: CauseDue, Bucket: ref.Bucket + 1, Offset: ref.Number, Original: waited.Identity()})
	e, err := b.own(&r)
	if err != nil {
		return commitlog.Entry{}, &obstacle{topic: r.Topic, kind: unreadable, text: err.Error()}
	}
	return e, nil
}

// routeDue resolves the route of a message anew.
func (b *Broker) routeDue(v *view, r *record.Record) error {
	t := v.topics[r.Topic]
	if t == nil {
		return &Error{Op: "deliver", Kind: KindTopicUnknown, Topic: r.Topic}
	}
	m := Message{
		Topic: t.info, ID: r.MessageID, Tag: r.Tag, Keys: r.Keys, MessageGroup: r.MessageGroup, Body: r.Body,
		Encoding: r.Encoding, Digest: r.Digest, Born: r.Born, BornHost: r.BornHost, TraceContext: r.TraceContext,
		Queue: int(r.Queue), Attempt: int(r.Attempt), DeliverAt: r.DeliverAt,
	}
	if route := t.info.Route; route.From == zone.FromProperty {
		for _, p := range r.Properties {
			if p.Key == route.Property {
				m.Properties = map[string]string{p.Key: p.Value}
			}
		}
	}
	dest, err := v.topo.Resolve(query(v, t.info, &m))
	if err != nil {
		r.Target = ""
		return &Error{Op: "deliver", Kind: kindOfResolve(err), Topic: r.Topic, Err: err}
	}
	if dest.Reach == zone.ReachZone && m.MessageGroup == "" {
		dest.Group = v.group // as Publish does
	}
	kept := *r
	b.recordOf(r, v, t, &m, &dest, wallNow())
	r.Flags, r.Properties, r.Priority, r.ExpireAt = kept.Flags, kept.Properties, kept.Priority, kept.ExpireAt
	if r.Target == "" {
		return nil
	}
	err = b.checkBudget(t.info, r)
	if err != nil && b.makeRoom(b.ctx, t.info) {
		err = b.checkBudget(t.info, r)
	}
	return err
}
