package e2e

import (
	cryptorand "crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// heldFor is how long a delivery is a wandering consumer's.
const heldFor = 10 * time.Second

// unsynced is for how long after its answer an acknowledgement of consumption may not
// be on every disk yet: the broker waits for company (ProgressDelay, 50 ms), then it has
// to be committed. The rest is for a machine under load.
const unsynced = 2 * time.Second

// window is a time during which something was broken.
type window struct {
	from, to time.Time
	clock    bool // a node may have started with a wrong clock, which it believes then
}

// turn is one delivery as its consumer saw it.
type turn struct {
	asked, got     time.Time // the call that brought it
	settle, answer time.Time // its acknowledgement; answer is zero without one
}

// troubleBegins notes that from now on things are broken, until the returned func says
// that they are whole again.
func (l *ledger) troubleBegins(clock bool) (over func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.troubles)
	l.troubles = append(l.troubles, window{from: time.Now(), clock: clock})
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.troubles[n].to = time.Now()
	}
}

// troubled reports whether something was broken at a moment of the window.
func (l *ledger) troubled(w window) bool {
	return slices.ContainsFunc(l.troubles, func(t window) bool {
		return t.from.Before(w.to) && (t.to.IsZero() || t.to.After(w.from))
	})
}

// wanderingPublisher is publish by way of whichever node answers: after a failure the
// next one is asked. It sends each message once.
func (l *ledger) wanderingPublisher(name string, endpoints []string, pace time.Duration, p *pulse, next func(i int) letter) {
	s := &stream{name: name, pulse: p}
	l.mu.Lock()
	l.streams = append(l.streams, s)
	l.mu.Unlock()
	ids, err := rocketmqclient.NewIDs(cryptorand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx := l.contexts[0]
	l.publishers.Go(func() {
		for at, i := 0, 0; ctx.Err() == nil; at++ {
			hold(pace)
			producer, err := rocketmqclient.NewProducer(ctx, rocketmqclient.Config{Endpoint: endpoints[at%len(endpoints)], RequestTimeout: 2 * time.Second})
			if err != nil {
				continue
			}
			for ok := true; ok && ctx.Err() == nil; i++ {
				hold(pace)
				ok = l.one(ctx, producer, s, ids.Next(), i, next(i))
			}
			producer.Close()
		}
	})
}

// wanderingConsumer receives at whichever node answers. Messages of one topic come to
// one consumer, so that the order of its deliveries is that of the zone.
func (l *ledger) wanderingConsumer(zone string, endpoints []string, group, topic string) {
	ctx := l.contexts[1]
	l.consumers.Go(func() {
		for at := 0; ctx.Err() == nil; at++ {
			hold(20 * time.Millisecond)
			consumer, err := rocketmqclient.NewSimpleConsumer(ctx, rocketmqclient.Config{Endpoint: endpoints[at%len(endpoints)], RequestTimeout: 2 * time.Second},
				group, time.Second, rocketmqclient.Subscription{Topic: topic})
			if err != nil {
				continue
			}
			for err == nil && ctx.Err() == nil {
				asked := time.Now()
				var got []*rocketmqclient.Received
				if got, err = consumer.Receive(ctx, 32, heldFor); err == nil && len(got) > 0 {
					l.took(zone, asked, got)
					err = l.settle(zone, consumer, got)
				}
			}
			consumer.Close()
		}
	})
}

// took notes deliveries.
func (l *ledger) took(zone string, asked time.Time, got []*rocketmqclient.Received) {
	l.note(zone, got)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range got {
		if m := l.sent[r.MessageID]; m != nil {
			m.turns[zone] = append(m.turns[zone], turn{asked: asked, got: time.Now()})
		}
	}
}

// settle acknowledges deliveries and notes those that were taken.
func (l *ledger) settle(zone string, consumer *rocketmqclient.SimpleConsumer, got []*rocketmqclient.Received) error {
	var last error
	for ; len(got) > 0; got = got[min(8, len(got)):] {
		some := got[:min(8, len(got))]
		asked := time.Now()
		err := consumer.Ack(l.contexts[1], some...)
		if err != nil {
			last = err
			continue
		}
		l.mu.Lock()
		for _, r := range some {
			if m := l.sent[r.MessageID]; m != nil && len(m.turns[zone]) > 0 {
				t := &m.turns[zone][len(m.turns[zone])-1]
				t.settle, t.answer = asked, time.Now()
			}
		}
		l.mu.Unlock()
	}
	return last
}

// repeats is every delivery that came again although nothing explains it: its time had
// not run out, or it was settled, and nothing was broken when that was made durable.
func (l *ledger) repeats() []error {
	var errs []error
	for _, m := range l.sent {
		for zone, turns := range m.turns {
			for i := 1; i < len(turns); i++ {
				a, b := turns[i-1], turns[i]
				switch {
				case !a.answer.IsZero() && !l.troubled(window{from: a.settle, to: a.answer.Add(unsynced)}):
					errs = append(errs, fmt.Errorf("message %s of %s was settled in %s at %s and came again at %s", m.id, m.topic, zone, stamp(a.answer), stamp(b.got)))
				case a.answer.IsZero() && b.got.Sub(a.asked) < heldFor && !l.troubled(window{from: a.asked, to: b.got}):
					errs = append(errs, fmt.Errorf("message %s of %s is a consumer's in %s since %s and came again at %s", m.id, m.topic, zone, stamp(a.got), stamp(b.got)))
				}
			}
		}
	}
	return errs
}

func stamp(t time.Time) string { return t.Format("15:04:05.000") }

// early is what came before it was due, by the clock of this test.
func (l *ledger) early() []error {
	var errs []error
	for _, m := range l.sent {
		for zone, at := range m.first {
			astray := slices.ContainsFunc(l.troubles, func(t window) bool { return t.clock && t.from.Before(at) && (t.to.IsZero() || at.Before(t.to)) })
			if !m.due.IsZero() && at.Before(m.due) && !astray {
				errs = append(errs, fmt.Errorf("message %s came to %s %v before it was due", m.id, zone, m.due.Sub(at)))
			}
		}
	}
	return errs
}

// shared is every place at which there are two messages: two masters wrote there.
func (l *ledger) shared() []error {
	type spot struct {
		topic, zone string
		at          place
	}
	var errs []error
	who := map[spot]string{}
	for _, m := range l.sent {
		for zone, places := range m.seen {
			for p := range places {
				s := spot{m.topic, zone, p}
				if other := who[s]; other != "" {
					errs = append(errs, fmt.Errorf("I5: messages %s and %s are both at %v of %s in %s", other, m.id, p, m.topic, zone))
				}
				who[s] = m.id
			}
		}
	}
	return errs
}

// outOfTurn is what an ordered consumer group got in another order than it was sent in.
func outOfTurn(name string, ms []*sent) []error {
	slices.SortFunc(ms, func(a, b *sent) int { return a.seq - b.seq })
	last := map[string]*sent{}
	var errs []error
	for _, m := range ms {
		for zone, rank := range m.rank {
			if before := last[zone]; before != nil && rank < before.rank[zone] {
				errs = append(errs, fmt.Errorf("I3: %s: message %d was delivered in %s before message %d", name, m.seq, zone, before.seq))
			}
			last[zone] = m
		}
	}
	return errs
}

// pulse is when any of some publishers was acknowledged.
type pulse struct {
	last    time.Time     // guarded by the ledger's mu, as is all
	longest time.Duration // time without an acknowledgement since begin
}

func (p *pulse) beat(now time.Time) {
	p.longest = max(p.longest, now.Sub(p.last))
	p.last = now
}

// begin counts anew.
func (l *ledger) begin(p *pulse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.last, p.longest = time.Now(), 0
}

// silence returns the longest time without an acknowledgement.
func (l *ledger) silence(p *pulse) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(p.longest, time.Since(p.last))
}
