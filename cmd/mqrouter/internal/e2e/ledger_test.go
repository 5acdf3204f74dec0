package e2e

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// ledger is what clients saw of a deployment, over its client ports only: what
// they sent, each once, what was acknowledged, and where each message arrived.
type ledger struct {
	t          *testing.T
	publishers sync.WaitGroup
	consumers  sync.WaitGroup

	mu       sync.Mutex
	sent     map[string]*sent           // guarded by mu: by message id
	streams  []*stream                  // guarded by mu
	strays   []string                   // guarded by mu: what nobody sent, or not there
	versions map[string]map[uint64]bool // guarded by mu: cache key -> version sent -> acknowledged
	consumed int                        // guarded by mu: deliveries
	arrivals int                        // guarded by mu: first deliveries, in their order
	troubles []window                   // guarded by mu: when something was broken
	homeOf   func(broker string) string // of places; nil: a broker is its own
	stop     [2]context.CancelFunc      // of publishers, of consumers
	contexts [2]context.Context
}

// sent is a message: it has one home, a broadcast one in each city.
type sent struct {
	id     string
	homes  []string
	topic  string
	stream string // messages of one stream are in order; empty: no order is promised
	fifo   bool   // they are delivered in order, too
	plain  bool   // its body is bodyOf its id
	seq    int
	acked  bool
	from   string                    // zone
	at     time.Time                 // of the call
	seen   map[string]map[place]bool // zone -> places
	first  map[string]time.Time      // zone -> first receipt
	due    time.Time                 // not delivered before; zero: at once
	never  bool                      // nobody has asked to commit it; guarded by the ledger's mu
	turns  map[string][]turn         // zone -> deliveries, of consumers that wander
	rank   map[string]int            // zone -> first delivery among all
}

// place is where a message landed.
type place struct {
	broker string
	queue  int32
	offset int64
}

// stream is one publisher.
type stream struct {
	name          string
	acked, failed int    // guarded by the ledger's mu
	pulse         *pulse // of several; nil: nobody asks
}

// letter is what a publisher sends next.
type letter struct {
	topic, key string
	from       string // zone; empty: it does not matter
	properties map[string]string
	homes      []string
	stream     string
	version    uint64 // of a change of key
	size       int    // of the body in bytes, 0: small
	group      string // message group
	delay      time.Duration
	end        ending
}

// ending is what becomes of a transaction.
type ending int

const (
	noTransaction ending = iota
	committed
	rolledBack
)

func newLedger(t *testing.T) *ledger {
	l := &ledger{t: t, sent: map[string]*sent{}, versions: map[string]map[uint64]bool{}}
	for i := range l.stop {
		l.contexts[i], l.stop[i] = context.WithCancel(t.Context())
	}
	t.Cleanup(func() {
		l.stop[0]()
		l.stop[1]()
		l.publishers.Wait()
		l.consumers.Wait()
	})
	return l
}

// publish starts a publisher: one message after another, each once.
func (l *ledger) publish(name, endpoint string, pace time.Duration, next func(i int) letter) {
	s := &stream{name: name}
	l.mu.Lock()
	l.streams = append(l.streams, s)
	l.mu.Unlock()
	ids, err := rocketmqclient.NewIDs(cryptorand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx := l.contexts[0]
	l.publishers.Go(func() {
		var producer *rocketmqclient.Producer
		for i := 0; ctx.Err() == nil; i++ {
			hold(pace)
			if producer == nil {
				p, err := rocketmqclient.NewProducer(ctx, rocketmqclient.Config{Endpoint: endpoint})
				if err != nil {
					continue // it is down: the next turn tries again
				}
				producer = p
				defer producer.Close()
			}
			l.one(ctx, producer, s, ids.Next(), i, next(i))
		}
	})
}

// one sends a letter and reports whether all that it takes was acknowledged.
func (l *ledger) one(ctx context.Context, producer *rocketmqclient.Producer, s *stream, id string, seq int, next letter) bool {
	m := &sent{id: id, homes: next.homes, topic: next.topic, stream: next.stream, fifo: next.group != "", plain: next.version == 0 && next.size == 0, seq: seq, from: next.from, at: time.Now(),
		seen: map[string]map[place]bool{}, first: map[string]time.Time{}, turns: map[string][]turn{}, rank: map[string]int{}, never: next.end != noTransaction}
	out := next.message(id)
	m.due = out.DeliverAt
	l.mu.Lock()
	l.sent[id] = m
	if next.version > 0 {
		if l.versions[next.key] == nil {
			l.versions[next.key] = map[uint64]bool{}
		}
		l.versions[next.key][next.version] = false
	}
	l.mu.Unlock()
	got, err := producer.Send(context.WithoutCancel(ctx), out)
	if err == nil && next.end != noTransaction {
		l.mu.Lock()
		m.never = next.end == rolledBack
		l.mu.Unlock()
		err = producer.EndTransaction(context.WithoutCancel(ctx), next.topic, got, next.end == committed)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		s.failed++
		return false
	}
	s.acked++
	if s.pulse != nil {
		s.pulse.beat(time.Now())
	}
	m.acked = next.end != rolledBack
	if next.version > 0 {
		l.versions[next.key][next.version] = true
	}
	return true
}

// bodyOf is the body of a message that has no other: what arrives is compared with it.
func bodyOf(id string) []byte { return []byte(strings.Repeat(id, 4)) }

// message is what is sent.
func (next *letter) message(id string) *rocketmqclient.Message {
	out := &rocketmqclient.Message{Topic: next.topic, ID: id, Properties: next.properties, MessageGroup: next.group, Body: bodyOf(id)}
	if next.version > 0 {
		out.Body = fmt.Appendf(nil, "v%d", next.version)
	}
	if next.size > 0 {
		out.Body = make([]byte, next.size)
	}
	if next.key != "" {
		out.Keys = []string{next.key}
	}
	if next.delay > 0 {
		out.DeliverAt = time.Now().Add(next.delay)
	}
	if next.end != noTransaction {
		out.Type = pb.MessageType_TRANSACTION
	}
	return out
}

// burst publishes one large letter after another until enough says so. It is
// none of the publishers that have to go on.
func (l *ledger) burst(endpoint string, next letter, enough func() bool) {
	l.t.Helper()
	ids, err := rocketmqclient.NewIDs(cryptorand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	producer, err := rocketmqclient.NewProducer(l.t.Context(), rocketmqclient.Config{Endpoint: endpoint})
	if err != nil {
		l.t.Fatal(err)
	}
	defer producer.Close()
	s := &stream{}
	for i := 0; !enough(); i++ {
		l.one(l.t.Context(), producer, s, ids.Next(), i, next)
	}
}

// flood publishes from several senders without a pause, so that something is in
// every window between receiving and storing. It returns when n are acknowledged;
// end stops it.
func (l *ledger) flood(endpoint string, n int, next func(i int) letter) (end func()) {
	l.t.Helper()
	ids, err := rocketmqclient.NewIDs(cryptorand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	producer, err := rocketmqclient.NewProducer(l.t.Context(), rocketmqclient.Config{Endpoint: endpoint})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(l.t.Context())
	s := &stream{}
	var senders sync.WaitGroup
	for i := range 16 {
		senders.Go(func() {
			for ; ctx.Err() == nil; i += 16 {
				l.one(ctx, producer, s, ids.Next(), i, next(i))
			}
		})
	}
	end = func() {
		stop()
		senders.Wait()
		producer.Close()
	}
	l.t.Cleanup(stop)
	eventually(l.t, "a flood begins", time.Minute, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if s.acked < n {
			return fmt.Errorf("%d acknowledged, %d failed", s.acked, s.failed)
		}
		return nil
	})
	return end
}

// consume starts a consumer of a zone, which notes places and acknowledges.
func (l *ledger) consume(zone, endpoint, group, topic string) {
	ctx := l.contexts[1]
	l.consumers.Go(func() {
		for ctx.Err() == nil {
			consumer, err := rocketmqclient.NewSimpleConsumer(ctx, rocketmqclient.Config{Endpoint: endpoint}, group, time.Second, rocketmqclient.Subscription{Topic: topic})
			if err != nil {
				hold(100 * time.Millisecond)
				continue
			}
			for ctx.Err() == nil {
				got, err := consumer.Receive(ctx, 32, 20*time.Second)
				if err != nil {
					hold(50 * time.Millisecond)
					continue
				}
				l.note(zone, got)
				if len(got) > 0 {
					consumer.Ack(ctx, got...) // else it comes again, from the same place
				}
			}
			consumer.Close()
		}
	})
}

func (l *ledger) note(zone string, got []*rocketmqclient.Received) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.consumed += len(got)
	for _, r := range got {
		m := l.sent[r.MessageID]
		if m == nil || !slices.Contains(m.homes, zone) {
			l.strays = append(l.strays, fmt.Sprintf("%s in %s", r.MessageID, zone))
			continue
		}
		if m.plain && !bytes.Equal(r.Body, bodyOf(m.id)) {
			l.strays = append(l.strays, fmt.Sprintf("%s in %s with other bytes than were sent: %q", r.MessageID, zone, r.Body))
		}
		if m.seen[zone] == nil {
			m.seen[zone] = map[place]bool{}
			m.first[zone] = time.Now()
			l.arrivals++
			m.rank[zone] = l.arrivals
		}
		m.seen[zone][l.placeOf(r)] = true
	}
}

func (l *ledger) placeOf(r *rocketmqclient.Received) place {
	p := place{r.Broker, r.QueueID, r.Offset}
	if l.homeOf != nil {
		p.broker = l.homeOf(r.Broker)
	}
	return p
}

// mark is a moment: what was acknowledged by then, and how far each publisher was.
type mark struct {
	acked  []*sent
	wanted []*sent // of these, what had not arrived everywhere when last looked at
	sends  []int
	newest map[string]uint64 // acknowledged version of each cache key
}

func (l *ledger) mark() *mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &mark{newest: map[string]uint64{}}
	for key, versions := range l.versions {
		for v, acked := range versions {
			if acked {
				m.newest[key] = max(m.newest[key], v)
			}
		}
	}
	for _, s := range l.sent {
		if s.acked {
			m.acked = append(m.acked, s)
		}
	}
	for _, s := range l.streams {
		m.sends = append(m.sends, s.acked)
	}
	m.wanted = slices.Clone(m.acked)
	return m
}

// without leaves the messages of a stream out.
func (m *mark) without(stream string) *mark {
	m.wanted = slices.DeleteFunc(m.wanted, func(s *sent) bool { return s.stream == stream })
	return m
}

// goesOn is nil when every publisher but those named has n more acknowledgements
// than at the mark.
func (l *ledger) goesOn(m *mark, n int, but ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, s := range l.streams {
		if s.acked < m.sends[i]+n && !slices.Contains(but, s.name) {
			return fmt.Errorf("%s: %d acknowledged since, %d failed in all", s.name, s.acked-m.sends[i], s.failed)
		}
	}
	return nil
}

// arrived is nil when what the mark knows as acknowledged has been received at
// each of its homes but those named.
func (l *ledger) arrived(m *mark, but ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := map[string]int{}
	m.wanted = slices.DeleteFunc(m.wanted, func(s *sent) bool {
		everywhere := true
		for _, home := range s.homes {
			if len(s.seen[home]) > 0 {
				continue
			}
			everywhere = false
			if !slices.Contains(but, home) {
				missing[s.topic+" in "+home]++
			}
		}
		return everywhere
	})
	if len(missing) > 0 {
		return fmt.Errorf("of %d acknowledged messages some are missing: %v", len(m.acked), missing)
	}
	return nil
}

// endPublishing stops the publishers, each with the answer to its last send;
// consumers go on.
func (l *ledger) endPublishing() {
	l.stop[0]()
	l.publishers.Wait()
}

// verdict is every promise that what clients saw breaks: I1 for what was
// acknowledged, I2 and I4 for all, I3 within streams, and one message at each place.
func (l *ledger) verdict() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, m := range l.sent {
		for _, home := range m.homes {
			if m.acked && len(m.seen[home]) == 0 {
				errs = append(errs, fmt.Errorf("I1: message %s of %s, sent at %s and acknowledged, did not arrive in %s", m.id, m.topic, stamp(m.at), home))
			}
		}
	}
	errs = append(errs[:min(len(errs), 20)], l.broken())
	return errors.Join(errs...)
}

// soFar is verdict while messages are under way: what is missing is none of it.
func (l *ledger) soFar() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken()
}

// broken is verdict without what is missing. The caller holds mu.
func (l *ledger) broken() error {
	var errs []error
	for _, s := range l.strays {
		errs = append(errs, fmt.Errorf("received what was not sent there: %s", s))
	}
	order := map[string][]*sent{}
	for _, m := range l.sent {
		for _, home := range m.homes {
			switch n := len(m.seen[home]); {
			case n > 0 && m.never:
				errs = append(errs, fmt.Errorf("I4: message %s of %s was not committed and came to %s", m.id, m.topic, home))
			case n > 1:
				errs = append(errs, fmt.Errorf("I2: message %s is at %d places of %s: %v", m.id, n, home, m.seen[home]))
			}
		}
		if m.acked && m.stream != "" && len(m.seen) > 0 {
			order[m.stream] = append(order[m.stream], m)
		}
	}
	for name, ms := range order {
		errs = append(errs, inOrder(name, ms)...)
		if ms[0].fifo {
			errs = append(errs, outOfTurn(name, ms)...)
		}
	}
	errs = slices.Concat(errs, l.repeats(), l.early(), l.shared())
	return errors.Join(errs[:min(len(errs), 20)]...)
}

// inOrder holds the order of sending against the offsets of each queue.
func inOrder(name string, ms []*sent) []error {
	slices.SortFunc(ms, func(a, b *sent) int { return a.seq - b.seq })
	type queue struct {
		broker string
		queue  int32
	}
	last := map[queue]int64{}
	var errs []error
	for _, m := range ms {
		for _, places := range m.seen {
			for p := range places {
				q := queue{p.broker, p.queue}
				if before, ok := last[q]; ok && p.offset <= before {
					errs = append(errs, fmt.Errorf("I3: %s: message %d is at offset %d of %v, an earlier one at %d", name, m.seq, p.offset, q, before))
				}
				last[q] = p.offset
			}
		}
	}
	return errs
}

// sums is a line for the log.
func (l *ledger) sums() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	acked := 0
	for _, m := range l.sent {
		if m.acked {
			acked++
		}
	}
	return fmt.Sprintf("%d messages: %d acknowledged, %d without an acknowledgement; %d deliveries", len(l.sent), acked, len(l.sent)-acked, l.consumed)
}
