package broker

import (
	"errors"
	"maps"
	"time"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/internal/loglimit"
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
	// dueTick is how often the clock is looked at; see timer.Clock. dueIdle is how often
	// while no message waits and no step of it is on trial: often enough to follow a
	// clock that is adjusted by 2000 ppm (timer.Slack).
	dueTick = time.Second
	dueIdle = 10 * time.Second
	// dueRest is how long the loop waits after the log refused an append.
	dueRest = time.Second
	// topicGrace is how long after its time a message still waits for its topic, which
	// the topology has no more, and how long the topic has to be away: long enough to
	// see the slip and to take it back, also for what something else has kept until
	// then. After both it becomes a dead letter.
	topicGrace = 10 * time.Minute
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
	rest    time.Time                // monotonic: no append before
	held    string                   // why the log refused the last append; empty when it did not
	unread  string                   // why a bucket cannot be read; empty when all can
	missing map[zone.Topic]time.Time // since when topics of due messages are seen to be away; monotonic
	told    loglimit.Limit           // lines about dead letters
	buf     [1024]queue.Entry
}

// dueLoop runs until the broker closes.
func (b *Broker) dueLoop() {
	d := &dueLoop{b: b, window: timer.NewWindow(dueWindow), read: map[uint64]uint64{}, blocked: newBlocked(), missing: map[zone.Topic]time.Time{},
		told: loglimit.Limit{Lines: 1, Window: time.Minute}}
	b.loop(0, b.dueKick, d.step)
}

// step does what is due and returns when to come again.
func (d *dueLoop) step() time.Duration {
	if !d.b.serves() {
		return farWake // who takes over must get to the end of the log; it goes on with what is due
	}
	now := d.b.clock.Now().UnixMilli()
	if d.b.dueAll.Swap(false) {
		d.blocked.hurry()
	}
	d.found()
	d.look(now)
	if time.Until(d.rest) <= 0 {
		d.fire(now)
		d.retry()
	}
	d.tell(now)
	return d.sleep(now)
}

// found forgets since when topics are away that are back. A topology that is put in force
// wakes the loop (dueAll).
func (d *dueLoop) found() {
	v := d.b.view.Load()
	maps.DeleteFunc(d.missing, func(t zone.Topic, _ time.Time) bool { return v.topics[t] != nil })
}

// givesUp reports whether a message that was due then waits for its topic no longer.
func (d *dueLoop) givesUp(t zone.Topic, due int64) bool {
	since, ok := d.missing[t]
	if !ok {
		since = time.Now()
		d.missing[t] = since
	}
	return d.b.clock.Now().UnixMilli()-due >= topicGrace.Milliseconds() && time.Since(since) >= topicGrace
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
	if step, _ := d.b.clock.Trial(); step == 0 && d.b.timersPending() == 0 {
		wait = dueIdle
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

// waiting returns the index of a message, or nil when it does not wait any more.
func (d *dueLoop) waiting(r timer.Ref) *queue.Index {
	d.b.mu.RLock()
	defer d.b.mu.RUnlock()
	if k := d.b.state.timers.byID[r.Bucket]; k != nil && k.waits(r.Number) {
		return k.index
	}
	return nil
}
