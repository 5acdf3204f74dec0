package broker

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/zone"
)

// noGroupKey is the key of messages without a message group in a FIFO topic, which
// were published when it was none: above all hashes, so that they keep their order
// in their queue.
const noGroupKey = 1 << 32

// reorderRetry is how long a change of order waits for dead letters that are being
// written.
const reorderRetry = 100 * time.Millisecond

// order says in which order a subscription gets its messages.
type order uint8

const (
	anyOrder      order = iota // as stored, without a promise
	groupOrder                 // each message group in order, one message of it at a time
	priorityOrder              // higher priorities first
	liteOrder                  // as groupOrder, of the lite topics that a client has named
)

func (v *view) order(key subKey) order {
	t := v.topics[key.topic]
	switch {
	case t == nil:
	case t.info.Kind == zone.KindLite && v.topo.LiteModeOf(key.group) != zone.LiteAll:
		return liteOrder
	case v.topo.InOrder(key.group, t.info):
		return groupOrder
	case t.info.Kind == zone.KindPriority:
		return priorityOrder
	}
	return anyOrder
}

// begin tells of a poll under an attempt id; nil when there is none that counts.
func (h *hands) begin(r *ReceiveRequest) *consumer.Attempt {
	if h.order != groupOrder && h.order != liteOrder || r.AttemptID == "" {
		return nil
	}
	return h.disp.Begin(attemptID(r.ClientID, r.AttemptID))
}

func (h *hands) end(a *consumer.Attempt) {
	if a != nil {
		h.disp.End(a)
	}
}

// outdated reports whether the client has asked again under the attempt id: nobody
// waits for the answer of the older poll any more.
func (h *hands) outdated(a *consumer.Attempt) bool { return a != nil && !h.disp.Newest(a) }

// attemptID hashes what a client calls an attempt; never 0. It outlives the
// process, in the progress of the group.
func attemptID(client, attempt string) uint64 {
	d := xxhash.New()
	_, _ = d.WriteString(client) // never fails
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(attempt)
	return max(d.Sum64(), 1)
}

// key names the message group of a message, from the index alone.
func (t *taker) key(q uint16, offset uint64) (uint64, consumer.Verdict) {
	if int(q) >= len(t.queues) {
		return 0, consumer.Later
	}
	e, err := t.queues[q].get(offset)
	switch {
	case err != nil:
		return 0, t.unreadable(q, offset, err)
	case e.Label == markLabel:
		return 0, consumer.Skip
	case e.Label == groupLabel && t.h.ofLite:
		key, alive := t.b.liteKey(t.h.topic, e.Hash, offset)
		if !alive {
			return 0, t.b.ofGoneLite(t.h, q, offset)
		}
		return key, consumer.Deliver
	case e.Label == groupLabel:
		return uint64(e.Hash), consumer.Deliver
	}
	return noGroupKey, consumer.Deliver
}

// reorder replaces hands whose order the topology has changed: everything they know
// is made durable, and new ones go on from there. Handles stay good. It reports
// false when that has to wait for dead letters that are being written, or failed.
// Consumers wait meanwhile, for one append. It belongs to the progress loop.
func (b *Broker) reorder(h *hands) bool {
	b.gate.Lock() // nobody takes or settles
	defer b.gate.Unlock()
	if b.closing || h.disp.Burying() > 0 {
		return b.closing
	}
	for _, o := range b.collectHands(h) {
		undo := o.finished
		if err := b.appendWait(b.ctx, o); err != nil {
			undo(err)
			return false
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.holding, h)
	h.retired = true
	close(h.gone)
	if b.state.subs[h.sub.key] == h.sub && h.sub.hands == h {
		next := b.newHands(h.sub, h.disp.LastDelivery())
		if h.lite != nil && next.lite != nil {
			h.lite.inherit(b, next)
		}
	}
	return true
}
