package broker

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/zone"
)

// A consumer of a topic of kind lite gets the lite topics that it names, unless its
// group gets them all (zone.LiteMode). What clients name is not in the log: they tell
// it again every 30 s, to whichever broker of the zone they know, which passes on what
// lives elsewhere: a lite topic has its home where its slot has its owner, whatever the
// topic's route.

// liteMemory is for how long what a client has named holds without a word from it:
// three times 30 s, and 10 s.
const liteMemory = 100 * time.Second

// liteGrace is for how long LiteReplace leaves a lite topic that a client has added: the
// client may have put the set together before, and sent it at the same time, as the
// one for Node.js does when it starts.
const liteGrace = 5 * time.Second

// LiteAction is what a client says of the lite topics that it wants.
type LiteAction uint8

// The actions. Their values travel between brokers.
const (
	LiteAdd     LiteAction = iota + 1 // these, too
	LiteRemove                        // not these any more
	LiteReplace                       // these and no others, but for what was added within the last seconds
	LiteLeave                         // none any more
)

// LiteFrom is where a consumer group is to go on in a lite topic.
type LiteFrom uint8

// The places. Their values travel between brokers.
const (
	LiteFromLast   LiteFrom = iota // where it is
	LiteFromMin                    // its oldest message
	LiteFromMax                    // behind its newest
	LiteFromOffset                 // the message of that number, its first ever being 0
	LiteFromTail                   // so many before its end
	LiteFromTime                   // the first that was stored here at or after a time, Unix milliseconds
)

// LiteRequest tells which lite topics a client wants.
type LiteRequest struct {
	Group    zone.ConsumerGroup
	Topic    zone.Topic // of kind lite
	ClientID string     // as in ReceiveRequest
	Action   LiteAction
	Names    []string // of lite topics; LiteLeave looks at none
	// From, of LiteAdd, has the whole group go on elsewhere in these lite topics;
	// N says where. Such a request may have 100 names.
	From LiteFrom
	N    int64
}

// liteNameText is what a refused message or subscription says of a bad name.
func liteNameText(name, what string) string {
	return fmt.Sprintf("the lite topic %.80q is not one: %s", name, what)
}

// SyncLite takes over what a client wants, here and at the other brokers of the zone
// where some of it lives. At nil it holds; of LiteReplace it may not hold yet at a
// broker that cannot be reached, which hears of it with the next one. Of a group that
// is not exclusive, clients that name the same lite topic share it. Of one that is, the
// client that names it last by LiteAdd has it, and the others are told (SetLiteNotify).
//
// KindLiteSubscriptions refuses more than the topic's limit, KindInvalid a bad name.
// Where the request says where to go on, that is durable at nil.
func (b *Broker) SyncLite(ctx context.Context, r LiteRequest) error {
	const op = "subscribe"
	if err := b.ready(op); err != nil {
		return err
	}
	v := b.view.Load()
	if r.Action == LiteLeave {
		r.Names = nil
	}
	if err := b.checkLite(op, v, &r); err != nil {
		return err
	}
	if v.topo.LiteModeOf(r.Group) == zone.LiteAll {
		return nil
	}
	parts := map[zone.Group]*LiteRequest{}
	for _, g := range v.zone.Groups {
		part := r
		part.Names = nil
		parts[g.Name] = &part
	}
	for _, name := range r.Names {
		part := parts[v.zone.SlotOwner(zone.HashSlot(name)).Name]
		part.Names = append(part.Names, name)
	}
	if r.Action == LiteReplace || r.Action == LiteLeave {
		return b.syncAll(ctx, parts)
	}
	for _, g := range v.zone.Groups {
		if part := parts[g.Name]; len(part.Names) > 0 {
			if err := b.syncPart(ctx, g.Name, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// syncAll tells every group its part at once. Those that cannot be reached hear of it
// when the client repeats itself.
func (b *Broker) syncAll(ctx context.Context, parts map[zone.Group]*LiteRequest) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error // guarded by mu
	for g, part := range parts {
		wg.Go(func() {
			err := b.syncPart(ctx, g, part)
			if err == nil || g != b.self && KindOf(err) == KindUnavailable {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// syncPart has a group take over its part.
func (b *Broker) syncPart(ctx context.Context, g zone.Group, part *LiteRequest) error {
	if g == b.self {
		return b.syncHere(ctx, part)
	}
	_, err := b.call(ctx, g, CallLite, part.append(nil))
	return err
}

// checkLite judges a request as a whole.
func (b *Broker) checkLite(op string, v *view, r *LiteRequest) error {
	refuse := func(kind Kind, text string) error {
		return &Error{Op: op, Kind: kind, Group: r.Group, Topic: r.Topic, Text: text}
	}
	if err := b.mayConsume(op, subKey{r.Group, r.Topic}); err != nil {
		return err
	}
	t := v.topics[r.Topic]
	switch {
	case t == nil || t.info.Kind != zone.KindLite:
		return refuse(KindUnsupported, "the topic is not of kind lite, and has no lite topics")
	case r.ClientID == "" || r.Action < LiteAdd || r.Action > LiteLeave || r.From > LiteFromTime || r.N < 0:
		return refuse(KindInvalid, "no client, or an action or a place that this version does not know")
	case r.Action != LiteRemove && len(r.Names) > t.info.Lite.Subscriptions:
		return refuse(KindLiteSubscriptions, fmt.Sprintf("%d lite topics; a client may subscribe to %d", len(r.Names), t.info.Lite.Subscriptions))
	}
	if r.Action == LiteAdd && r.From != LiteFromLast && len(r.Names) > maxLiteMoves {
		return refuse(KindInvalid, fmt.Sprintf("%d lite topics with a place to go on at; a request may have %d", len(r.Names), maxLiteMoves))
	}
	for _, name := range r.Names {
		if text := zone.LiteName(name); text != "" {
			return refuse(KindLiteName, liteNameText(name, text))
		}
	}
	return nil
}

// syncHere takes over what lives here.
func (b *Broker) syncHere(ctx context.Context, r *LiteRequest) error {
	const op = "subscribe"
	v := b.view.Load()
	if err := b.checkLite(op, v, r); err != nil {
		return err
	}
	for range 2 { // the order of the topic may change meanwhile
		h, err := b.subscriptionFor(ctx, op, r.Group, r.Topic)
		if err != nil {
			return err
		}
		if h.order != liteOrder {
			return &Error{Op: op, Kind: KindBusy, Group: r.Group, Topic: r.Topic, Text: "the topic or its group changes at this moment"}
		}
		lost, err := b.remember(h, r, v.topics[r.Topic].info.Lite.Subscriptions, v.topo.LiteModeOf(r.Group) == zone.LiteExclusive)
		if errors.Is(err, errRetired) {
			continue
		}
		b.tellLost(h, lost)
		if err != nil {
			return err
		}
		if r.Action == LiteAdd && r.From != LiteFromLast {
			return b.moveLite(ctx, h, r)
		}
		return nil
	}
	return &Error{Op: op, Kind: KindBusy, Group: r.Group, Topic: r.Topic, Text: "the subscription changes at this moment"}
}

// LeaveLite forgets what a client has named here, at its own word.
func (b *Broker) LeaveLite(clientID string) {
	for _, h := range b.handsList() {
		if h.lite == nil {
			continue
		}
		h.lite.mu.Lock()
		if c := h.lite.clients[clientID]; c != nil {
			h.lite.drop(b, h, clientID, c)
		}
		h.lite.mu.Unlock()
	}
}

// SetLiteNotify sets who tells a client that it has a lite topic no longer. f must not
// block or call the broker; it may reach nobody.
func (b *Broker) SetLiteNotify(f func(clientID string, t zone.Topic, name string)) {
	b.liteNotify.Store(&f)
}

func (b *Broker) tellLost(h *hands, lost []lostLite) {
	f := b.liteNotify.Load()
	if f == nil {
		return
	}
	for _, l := range lost {
		(*f)(l.client, h.topic.name, l.name)
	}
}

// liteKey names the lite topic of an index entry to the dispatcher; false when it was
// forgotten.
func (b *Broker) liteKey(t *topic, id uint32, offset uint64) (uint64, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if t.lite == nil {
		return 0, false
	}
	l := t.lite.alive(id, offset)
	if l == nil {
		return 0, false
	}
	return maphash.String(b.liteSeed, l.name), true
}

// ofGoneLite is the verdict on a message of a lite topic that was forgotten.
func (b *Broker) ofGoneLite(h *hands, q uint16, offset uint64) consumer.Verdict {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.state.progress.Settled(h.sub.key.group, h.topic.name, q, offset) {
		return consumer.Settled
	}
	return consumer.Skip
}

// checkLiteKinds refuses a topology by which a topic with messages becomes one with
// lite topics, or without: what it holds would have lost its readers. open says that a
// topic would be refused as soon as it has a message.
func (b *Broker) checkLiteKinds(v *view) (open bool, err error) {
	var list []string
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, name := range sortedKeys(b.state.topics) {
		t, next := b.state.topics[name], v.topics[name]
		if next == nil || !next.lands || !t.declared || (t.lite != nil) == (next.info.Kind == zone.KindLite) {
			continue
		}
		if slices.ContainsFunc(t.queues, func(q *topicQueue) bool { return q.index.Next() > 0 }) {
			list = append(list, fmt.Sprintf("topic %s, which has messages, becomes one of kind %s", name, next.info.Kind))
		} else {
			open = true
		}
	}
	if len(list) == 0 {
		return open, nil
	}
	return open, &Error{Op: "topology", Kind: KindUnsupported, Text: fmt.Sprintf("epoch %s: %s; use a new topic", v.topo.Epoch, list[0])}
}
