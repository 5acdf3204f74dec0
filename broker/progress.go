package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// maxBuried bounds the dead-letter copies that one round appends for one
	// subscription.
	maxBuried = 512
	// farWake is how long the loop sleeps when nothing waits for time.
	farWake = time.Hour
	// maxProgress is about how many bytes one progress record has, unless one
	// subscription alone has more: a hundred thousand retries are some 1.5 MB.
	maxProgress = 4 << 20
)

// deltas keeps the order between records that tell progress and those that undo some
// of it. Progress is collected, and appended later; until that is over its record, or
// the next one if it fails, may settle what was collected.
type deltas struct {
	order chan struct{} // a lock, which a wait for it may give up: held from collecting to appending, and by who undoes progress
	mu    sync.Mutex
	out   int           // collected, and not yet told what became of it; guarded by mu
	none  chan struct{} // closed when out becomes 0; nil when nobody waits; guarded by mu
}

func newDeltas() *deltas { return &deltas{order: make(chan struct{}, 1)} }

func (d *deltas) lock(ctx context.Context) error {
	select {
	case d.order <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *deltas) unlock() { <-d.order }

// track counts the op until it is finished.
func (d *deltas) track(o *op) {
	d.mu.Lock()
	d.out++
	d.mu.Unlock()
	finished := o.finished
	o.finished = func(err error) {
		finished(err)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.out--; d.out == 0 && d.none != nil {
			close(d.none)
			d.none = nil
		}
	}
}

// settle waits until nothing is out. order is held, so nothing more goes out.
func (d *deltas) settle(ctx context.Context) error {
	d.mu.Lock()
	if d.out == 0 {
		d.mu.Unlock()
		return nil
	}
	if d.none == nil {
		d.none = make(chan struct{})
	}
	none := d.none
	d.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// progressLoop expires deliveries, moves the dead, and appends what consumers
// and destinations settled, at most once each ProgressDelay.
func (b *Broker) progressLoop() {
	timer := time.NewTimer(farWake)
	defer timer.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.kick:
		case <-timer.C:
		}
		timer.Reset(b.expireRound())
		// Wait for company: one record then carries it all.
		pause := time.NewTimer(b.limits.ProgressDelay)
		select {
		case <-b.ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		b.flushProgress(b.ctx)
	}
}

// handsList returns who has something in hands.
func (b *Broker) handsList() []*hands {
	b.mu.RLock()
	defer b.mu.RUnlock()
	list := make([]*hands, 0, len(b.holding))
	for h := range b.holding {
		list = append(list, h)
	}
	return list
}

// expireRound takes back what ran out and returns how long nothing will.
func (b *Broker) expireRound() time.Duration {
	wait := farWake
	for _, h := range b.handsList() {
		if h.stale.Load() && !b.reorder(h) {
			wait = min(wait, reorderRetry)
		}
		now := b.now()
		h.disp.Expire(now)
		b.buryDead(h, now)
		if at, ok := h.disp.NextWake(); ok {
			wait = min(wait, max(time.Duration(at-b.now()), time.Millisecond))
		}
	}
	return wait
}

// buryDead moves what has no attempts left. Its records settle, too.
func (b *Broker) buryDead(h *hands, now consumer.Instant) {
	if b.deltas.lock(b.ctx) != nil {
		return
	}
	defer b.deltas.unlock()
	for _, d := range h.disp.TakeDead(now, maxBuried, nil) {
		b.bury(b.ctx, h, d, func(error) {})
	}
}

// flushProgress appends the progress of consumers, as a rule in one record, and
// all cursors in another.
func (b *Broker) flushProgress(ctx context.Context) {
	if b.deltas.lock(ctx) != nil {
		return
	}
	defer b.deltas.unlock()
	progress := b.collectProgress(false)
	for _, o := range progress {
		b.deltas.track(o)
	}
	for _, o := range slices.Concat(progress, b.collectSettles(), b.collectChecks()) {
		if err := b.append(ctx, o); err != nil {
			o.finished(err)
		}
	}
}

// flushHeld makes everything durable that was answered but not yet logged.
func (b *Broker) flushHeld(ctx context.Context) error {
	if err := b.deltas.lock(ctx); err != nil {
		return &Error{Op: "close", Kind: kindOfLog(err), Err: err}
	}
	defer b.deltas.unlock()
	for _, o := range slices.Concat(b.collectProgress(true), b.collectSettles(), b.collectChecks()) {
		if err := b.appendWait(ctx, o); err != nil {
			return &Error{Op: "close", Kind: kindOfLog(err), Err: err}
		}
	}
	return nil
}

// collected is a part of a progress record and where it goes back to when the
// record cannot be appended.
type collected struct {
	topic *topic
	g     consumer.GroupDelta
	undo  func(consumer.GroupDelta)
}

// collectReads takes what readers of landings have applied.
func (b *Broker) collectReads() []collected {
	b.mu.Lock()
	defer b.mu.Unlock()
	var parts []collected
	for key, to := range b.reads {
		g := consumer.GroupDelta{Group: key.group, Topic: key.topic, Queues: []consumer.QueueDelta{{
			Acked: []consumer.Range{{From: 0, To: to.offset}},
		}}}
		undo := func(consumer.GroupDelta) { b.applied(key, to.topic, to.offset) }
		if to.offset > 0 {
			parts = append(parts, collected{topic: to.topic, g: g, undo: undo})
		}
	}
	clear(b.reads)
	return parts
}

// collectProgress returns what is to be logged of consumers' progress. held
// includes what is in hands: for an orderly stop.
func (b *Broker) collectProgress(held bool) []*op {
	parts := b.collectReads()
	for _, h := range b.handsList() {
		parts = b.collectFrom(h, held, parts)
	}
	return b.progressOps(parts)
}

// collectHands returns what is to be logged of one subscription, what is in hands
// included.
func (b *Broker) collectHands(h *hands) []*op { return b.progressOps(b.collectFrom(h, true, nil)) }

func (b *Broker) collectFrom(h *hands, held bool, parts []collected) []collected {
	undo := func(g consumer.GroupDelta) { h.disp.Restore(g) }
	now, wall := b.now(), b.wallNow()
	if g, ok := h.disp.Collect(now, wall); ok {
		parts = append(parts, collected{h.topic, g, undo})
	}
	if !held {
		return parts
	}
	if g, ok := h.disp.Held(now, wall); ok {
		parts = append(parts, collected{h.topic, g, undo})
	}
	return parts
}

// progressOps spreads the parts over records that fit the log.
func (b *Broker) progressOps(parts []collected) []*op {
	var ops []*op
	for len(parts) > 0 {
		n, size := 0, 0
		for n < len(parts) && (n == 0 || size+parts[n].size() <= maxProgress) {
			size += parts[n].size()
			n++
		}
		if o := b.progressOp(parts[:n]); o != nil {
			ops = append(ops, o)
		}
		parts = parts[n:]
	}
	return ops
}

// size returns about how many bytes the part takes in a record; never less.
func (c *collected) size() int {
	n := len(c.g.Group) + len(c.g.Topic) + 16
	for i := range c.g.Queues {
		q := &c.g.Queues[i]
		n += 32 + 20*len(q.Acked) + 25*len(q.Retries)
	}
	return n
}

// progressOp makes one record of the parts.
func (b *Broker) progressOp(parts []collected) *op {
	var delta consumer.Delta
	incarnations := map[zone.Topic]record.Position{}
	for _, p := range parts {
		delta.Groups = append(delta.Groups, p.g)
		incarnations[p.g.Topic] = p.topic.first
	}
	o := &op{finished: func(err error) {
		if err == nil {
			return
		}
		b.metrics.progressFailed()
		for _, p := range parts {
			p.undo(p.g)
		}
		poke(b.kick)
	}}
	return b.sealOp(o, record.TypeProgress, appendProgressBody(nil, incarnations, &delta))
}

// collectSettles returns the record of all cursors that have moved, if any.
func (b *Broker) collectSettles() []*op {
	b.mu.Lock()
	settles := b.settles
	b.settles = map[flow.Leg]settled{}
	b.mu.Unlock()
	if len(settles) == 0 {
		return nil
	}
	items := make([]settleItem, 0, len(settles))
	for leg, to := range settles {
		items = append(items, settleItem{leg, to})
	}
	o := &op{finished: func(err error) {
		if err != nil {
			b.restoreSettles(settles)
		}
	}}
	if o = b.sealOp(o, record.TypeSettle, appendSettleBody(nil, items)); o == nil {
		return nil
	}
	return []*op{o}
}

func (b *Broker) restoreSettles(settles map[flow.Leg]settled) {
	b.mu.Lock()
	for leg, to := range settles {
		b.settles[leg] = to.then(b.settles[leg])
	}
	b.mu.Unlock()
	poke(b.kick)
}

// sealOp gives the op its one control record. Such records may use the space
// that the log keeps back: without them no space would ever come free.
func (b *Broker) sealOp(o *op, t record.Type, body []byte) *op {
	e, err := b.control(t, body)
	if err != nil {
		b.logger.Error("control record cannot be encoded", "group", string(b.self), "err", err)
		o.finished(err)
		return nil
	}
	o.batch = commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}
	return o
}
