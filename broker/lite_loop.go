package broker

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// maxForgotten bounds the lite topics that one round forgets of a topic: the
	// records' size, and how long consumers wait for it.
	maxForgotten = 4096
	// liteEvery is how often the lite loop looks, unless a topic's time is shorter.
	liteEvery = 10 * time.Second
	// leastLiteEvery bounds what short times cost.
	leastLiteEvery = 250 * time.Millisecond
)

// liteLoop forgets lite topics whose time is over, and clients that have gone.
func (b *Broker) liteLoop() {
	timer := time.NewTimer(leastLiteEvery)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-b.ctx.Done():
			return
		case <-b.failed:
			return
		case <-timer.C:
		}
		if first {
			b.settleBefore(b.ctx)
		}
		timer.Reset(b.liteRound(b.ctx))
	}
}

// settleBefore has every group look at what lite topics left behind that were forgotten
// before this process: an end between the record and its settling leaves it.
func (b *Broker) settleBefore(ctx context.Context) {
	for _, info := range b.Topology().Topics {
		b.mu.RLock()
		t := b.state.topics[info.Name]
		b.mu.RUnlock()
		if info.Kind != zone.KindLite || t == nil {
			continue
		}
		if err := b.settleForgotten(ctx, t, nil); err != nil && ctx.Err() == nil {
			b.logger.Warn("lite topics that were forgotten are not settled", "topic", string(info.Name), "err", err)
		}
	}
}

// liteRound looks once, and returns when to look again.
func (b *Broker) liteRound(ctx context.Context) time.Duration {
	wait := liteEvery
	for _, info := range b.Topology().Topics {
		if info.Kind != zone.KindLite {
			continue
		}
		wait = min(wait, max(info.Lite.TTL/4, leastLiteEvery))
		if err := b.forgetUnused(ctx, info); err != nil && ctx.Err() == nil {
			b.logger.Warn("lite topics whose time is over stay", "topic", string(info.Name), "err", err)
		}
	}
	for _, h := range b.handsList() {
		if h.lite == nil {
			continue
		}
		h.lite.forgetSilent(b, h, b.now())
		b.sortOn(ctx, h)
	}
	return wait
}

// sortOn looks at what has come, although nobody receives: what is of lite topics that
// were forgotten, or trimmed, is settled.
func (b *Broker) sortOn(ctx context.Context, h *hands) {
	for more := true; more && ctx.Err() == nil; {
		if b.enter("sort") != nil {
			return
		}
		b.mu.RLock()
		t := newTaker(ctx, b, h, &ReceiveRequest{}, h.topic.queues)
		b.mu.RUnlock()
		h.disp.Trimmed(t.queues[0].index.First())
		more = h.disp.Sort(consumer.TakeRequest{Now: b.now(), Key: t.key})
		b.leave()
	}
	poke(b.kick)
}

// forgetUnused forgets lite topics of a topic whose time is over.
func (b *Broker) forgetUnused(ctx context.Context, info *zone.TopicInfo) error {
	for {
		t, gone, more := b.unused(info)
		if len(gone) == 0 {
			return nil
		}
		body := &liteBody{topic: t.name, incarnation: t.first}
		for i := range gone {
			if gone[i].used != 0 {
				body.unused = append(body.unused, liteUnused{gone[i].id, gone[i].last})
			}
		}
		if len(body.unused) > 0 {
			e, err := b.control(record.TypeLite, body.append(nil))
			if err == nil {
				err = b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}, Reserved: true}})
			}
			if err != nil {
				return err
			}
		}
		if err := b.settleForgotten(ctx, t, gone); err != nil || !more {
			return err
		}
	}
}

// unused returns lite topics whose time is over, and those that made room for others,
// which have used 0. more reports that there are others.
func (b *Broker) unused(info *zone.TopicInfo) (t *topic, gone []liteTopic, more bool) {
	now := b.wallNow()
	b.mu.Lock()
	defer b.mu.Unlock()
	if t = b.state.topics[info.Name]; t == nil || t.lite == nil {
		return nil, nil, false
	}
	for _, l := range t.lite.evicted {
		was := *l
		was.used = 0
		gone = append(gone, was)
	}
	t.lite.evicted = nil
	for l := t.lite.oldest; l != nil && l.idle(now) > info.Lite.TTL; l = l.newer {
		if len(gone) >= maxForgotten {
			return t, gone, true
		}
		gone = append(gone, *l)
	}
	return t, gone, false
}

// settleForgotten settles, for every group that chooses, what is left of lite topics
// that were forgotten. One that a message has come to meanwhile lives on.
func (b *Broker) settleForgotten(ctx context.Context, t *topic, gone []liteTopic) error {
	b.mu.Lock()
	var list []*hands
	for _, sub := range t.subs {
		if ownGroup(sub.key.group) || sub.cache {
			continue
		}
		if h := b.makeHands(sub.key); h.lite != nil {
			list = append(list, h)
		}
	}
	still := slices.DeleteFunc(gone, func(l liteTopic) bool { return t.lite != nil && t.lite.byID[l.id] != nil })
	b.mu.Unlock()
	for _, h := range list {
		b.sortOn(ctx, h)
		if err := b.settleLeft(ctx, h, still); err != nil {
			return err
		}
	}
	return nil
}

// settleLeft settles for one group what is left of lite topics that are gone. Of one
// that lives anew only what is of the former life: what the group has of the new one
// stays as it is.
func (b *Broker) settleLeft(ctx context.Context, h *hands, gone []liteTopic) error {
	left := map[uint32]uint64{} // where the group was
	scan := b.scanLite(h.topic)
	b.gate.Lock() // nobody takes what is abandoned
	if b.closing || h.retired {
		b.gate.Unlock()
		return nil
	}
	scan.next = math.MaxUint64
	end := uint64(0)
	for i := range gone {
		l := &gone[i]
		from, some := b.abandonLite(h, l)
		if !some {
			continue
		}
		left[l.id] = from
		scan.offsets[l.id] = nil
		scan.next, end = min(scan.next, from), max(end, l.last+1)
	}
	b.gate.Unlock()
	if len(left) == 0 {
		return nil
	}
	if err := scan.scanTo(ctx, end); err != nil {
		return err
	}
	unread := 0
	for id, offsets := range scan.offsets {
		at, _ := slices.BinarySearch(offsets, left[id])
		unread += len(offsets[at:])
		h.disp.Settle(offsets[at:])
	}
	b.metrics.liteUnread(h.sub.key, unread)
	b.logger.Info("lite topics were forgotten with messages that were not consumed", "group", string(h.sub.key.group),
		"topic", string(h.topic.name), "topics", len(left), "messages", unread)
	poke(b.kick)
	return nil
}

// abandonLite takes a lite topic that is gone from a group, and returns where it was in it;
// false when nothing was left to it. The gate is held.
func (b *Broker) abandonLite(h *hands, l *liteTopic) (from uint64, some bool) {
	key := b.keys([]string{l.name})[0]
	if from, some = h.disp.First(key); !some || from > l.last {
		return 0, false // what there is of the name is of a new life
	}
	h.disp.Abandon(key)
	for _, anew := range b.lookUp(h.topic, []string{l.name}) {
		h.disp.Resume(key, anew.first) // it was behind what is abandoned: nobody has it
	}
	return from, true
}
