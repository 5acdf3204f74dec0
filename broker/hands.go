package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// noLimit is the maximum of attempts of dead-letter topics: a message there has
// nowhere else to go.
const noLimit = 1 << 30

// hands is what consumers of one subscription have in hands.
type hands struct {
	sub     *subscription
	topic   *topic
	id      uint64 // of topic and its incarnation, in handles
	disp    *consumer.Dispatcher
	marks   atomic.Pointer[map[uint16]uint64] // by queue; nil = no queue was ever reset
	order   order                             // as the topology asked for when they were made
	stale   atomic.Bool                       // the topology asks for another order: to be replaced
	retired bool                              // replaced; guarded by Broker.gate
	ofLite  bool                              // the topic has lite topics
	lite    *liteMembers                      // nil unless clients name the lite topics that they want
	gone    chan struct{}                     // closed when they are retired: who waits asks again
}

// handleID returns what the handles of a queue name. A reset of the queue changes
// it, so that handles of before are refused, by whatever process.
func (h *hands) handleID(marks *map[uint16]uint64, queue uint16) uint64 {
	if marks == nil || (*marks)[queue] == 0 {
		return h.id
	}
	return topicID(h.topic.name, record.Position((*marks)[queue]))
}

// topicID names a topic and its incarnation in a receipt handle.
func topicID(name zone.Topic, first record.Position) uint64 {
	return xxhash.Sum64(binary.LittleEndian.AppendUint64([]byte(name), uint64(first)))
}

// advance tells the dispatcher of new records. The fold's lock is held.
func (h *hands) advance(t *topic) {
	if h == nil {
		return
	}
	for i, q := range t.queues {
		h.disp.Advance(uint16(i), q.index.Next())
	}
}

// handsOf returns the subscription's hands, made when nobody had any.
func (b *Broker) handsOf(key subKey) *hands {
	b.mu.RLock()
	var h *hands
	sub := b.state.subs[key]
	if sub != nil {
		h = sub.hands
	}
	b.mu.RUnlock()
	if h != nil || sub == nil {
		return h
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.makeHands(key)
}

// makeHands is handsOf for callers that hold mu.
func (b *Broker) makeHands(key subKey) *hands {
	sub := b.state.subs[key]
	if sub == nil || sub.hands != nil {
		if sub == nil {
			return nil
		}
		return sub.hands
	}
	return b.newHands(sub, b.log.Epoch()<<40)
}

// newHands makes hands from the durable progress; mu is held. first is above all
// delivery numbers given before.
func (b *Broker) newHands(sub *subscription, first uint64) *hands {
	key := sub.key
	h := &hands{sub: sub, topic: sub.topic, id: topicID(sub.topic.name, sub.topic.first), order: b.view.Load().order(key), gone: make(chan struct{})}
	inFlight := b.limits.MaxInFlight
	if t := b.Topology().FindTopic(key.topic); t != nil && t.Kind == zone.KindLite {
		h.ofLite = true
		inFlight += 2 * t.Lite.Topics // each may have a message that is the next one
	}
	if h.order == liteOrder {
		h.lite = newLiteMembers()
	}
	h.disp = consumer.NewDispatcher(consumer.Options{
		Group: key.group, Topic: key.topic,
		MaxAttempts: b.maxAttempts(key, sub.topic), MaxInFlight: inFlight,
		FirstDelivery: first, InOrder: h.order == groupOrder || h.order == liteOrder, Chosen: h.order == liteOrder, Priority: h.order == priorityOrder, Alive: b.isAlive, Kick: b.kick,
	}, b.state.progress.State(key.group, key.topic), b.now(), b.wallNow())
	h.setMarks(b.state.progress)
	sub.hands = h
	h.advance(sub.topic)
	b.holding[h] = struct{}{}
	return h
}

// resumeHands makes the hands of every subscription that has retries, so that
// what has used up its attempts moves on although nobody receives.
func (b *Broker) resumeHands() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.state.subs {
		for _, st := range b.state.progress.State(key.group, key.topic) {
			if len(st.Retries) > 0 {
				b.makeHands(key)
				break
			}
		}
	}
	poke(b.kick)
}

func (b *Broker) maxAttempts(key subKey, t *topic) int {
	if t.deadLetter {
		return noLimit
	}
	if g := b.Topology().FindConsumerGroup(key.group); g != nil {
		return max(g.MaxAttempts, 1)
	}
	return b.limits.UnknownTries
}

// refreshHands takes over what a topology changes and drops the hands of what
// the fold has dropped.
func (b *Broker) refreshHands() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for h := range b.holding {
		key := h.sub.key
		if b.state.subs[key] != h.sub {
			delete(b.holding, h)
			continue
		}
		h.disp.SetMaxAttempts(b.maxAttempts(key, h.topic))
		h.stale.Store(h.order != b.view.Load().order(key))
	}
	poke(b.kick)
}

// subscriptionFor returns the hands for a receive; it makes the subscription of
// a group that the topology does not declare when the topology allows that.
func (b *Broker) subscriptionFor(ctx context.Context, op string, g zone.ConsumerGroup, t zone.Topic) (*hands, error) {
	key := subKey{g, t}
	if err := b.mayConsume(op, key); err != nil {
		return nil, err
	}
	if h := b.handsOf(key); h != nil {
		return h, nil
	}
	// A topic of dead letters begins with its first one: a subscription that is made at
	// the same time may be of the topic that was not there yet, and counts for nothing.
	for range 3 {
		if err := b.createSubscription(ctx, op, key); err != nil {
			return nil, err
		}
		if h := b.handsOf(key); h != nil {
			return h, nil
		}
	}
	return nil, &Error{Op: op, Kind: KindBusy, Group: g, Topic: t, Text: "the topic changed meanwhile"}
}

// mayConsume says whether the group may receive from the topic here.
func (b *Broker) mayConsume(op string, key subKey) error {
	v := b.view.Load()
	refuse := func(kind Kind, text string) error {
		return &Error{Op: op, Kind: kind, Group: key.group, Topic: key.topic, Text: text}
	}
	if key.group == "" {
		return refuse(KindInvalid, "no consumer group")
	}
	info := v.topo.FindConsumerGroup(key.group)
	if info == nil && !v.topo.UnknownGroupsNewest {
		return refuse(KindGroupUnknown, "the topology does not declare the consumer group")
	}
	if info != nil && info.Cache {
		return refuse(KindUnsupported, "a cache subscription is read by cachesync only")
	}
	if key.topic == UndecidedTopic {
		return refuse(KindTopicUnknown, "half messages that nobody decided are for operators")
	}
	if isDeadLetter(key.topic) {
		if !b.hasDeadLetters(v, key.topic) {
			return refuse(KindTopicUnknown, "nothing is or can be in that dead-letter topic")
		}
		return nil
	}
	t := v.topics[key.topic]
	switch {
	case t == nil:
		return refuse(KindTopicUnknown, "")
	case !t.lands:
		return refuse(KindTopicUnknown, fmt.Sprintf("the topic does not land in zone %s", v.zone.Name))
	case info == nil:
		return nil
	case !v.topo.ConsumedIn(info, v.zone):
		return refuse(KindGroupUnknown, fmt.Sprintf("the consumer group does not consume in zone %s", v.zone.Name))
	}
	for _, o := range info.Topics {
		if o.Name == key.topic {
			return nil
		}
	}
	return refuse(KindGroupUnknown, "the consumer group does not subscribe to the topic")
}

// hasDeadLetters reports whether the dead-letter topic exists or is of a
// declared group: others are not made by asking for them.
func (b *Broker) hasDeadLetters(v *view, name zone.Topic) bool {
	group := zone.ConsumerGroup(name[len(DeadLetterPrefix):])
	if name == ParkedTopic || v.topo.FindConsumerGroup(group) != nil {
		return true
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.state.topics[name] != nil
}

// createSubscription logs the beginning of a subscription: at the newest
// message of a topic, at the oldest one of a dead-letter topic.
func (b *Broker) createSubscription(ctx context.Context, opName string, key subKey) error {
	b.mu.RLock()
	if b.state.undeclared() >= b.limits.MaxUndeclared {
		b.mu.RUnlock()
		return &Error{Op: opName, Kind: KindBusy, Topic: key.topic, Group: key.group, Text: "too many subscriptions that the topology does not declare"}
	}
	g := consumer.GroupDelta{Group: key.group, Topic: key.topic}
	incarnations := map[zone.Topic]record.Position{key.topic: 0}
	if t := b.state.topics[key.topic]; t != nil {
		incarnations[key.topic] = t.first
		for i, q := range t.queues {
			start := q.index.Next()
			if t.deadLetter {
				start = 0
			}
			g.Queues = append(g.Queues, consumer.QueueDelta{Queue: uint16(i), Created: true, Start: start})
		}
	} else if isDeadLetter(key.topic) {
		g.Queues = []consumer.QueueDelta{{Created: true}}
	}
	b.mu.RUnlock()
	if len(g.Queues) == 0 {
		return &Error{Op: opName, Kind: KindTopicUnknown, Topic: key.topic, Group: key.group}
	}
	e, err := b.control(record.TypeProgress, appendProgressBody(nil, incarnations, &consumer.Delta{Groups: []consumer.GroupDelta{g}}))
	if err == nil {
		err = b.appendWait(ctx, &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}}})
	}
	if err != nil {
		return &Error{Op: opName, Kind: kindOfLog(err), Topic: key.topic, Group: key.group, Err: err}
	}
	return nil
}
