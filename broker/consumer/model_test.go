package consumer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// model is what a consumer group may see, told in the simplest way.
type model struct {
	t        *testing.T
	seed     uint64
	rng      *rand.Rand
	d        *Dispatcher
	p        *Progress
	now      Instant
	wall     time.Time
	max      uint32
	process  uint64
	ends     []uint64
	messages map[place]*modelMessage
	log      []string
}

type modelMessage struct {
	attempts uint32
	settled  bool
	dying    bool    // a copy was tried; from now on only one that is written settles it
	buried   bool    // dead-lettered
	delivery uint64  // the newest handle; 0 = none in this process
	until    Instant // in hands or delayed until then; meaningful when delivery != 0
	old      []uint64
}

func (m *model) failf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-40):] {
		m.t.Log(l)
	}
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *model) start() {
	m.process++
	m.d = NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: int(m.max), MaxInFlight: 40, FirstDelivery: m.process << 40,
		Priority: m.seed%2 == 1},
		m.p.State("g", "t"), m.now, m.wall)
	for q, end := range m.ends {
		m.d.Advance(uint16(q), end)
	}
}

func (m *model) publish() {
	q := m.rng.IntN(len(m.ends))
	for range m.rng.IntN(20) {
		m.messages[place{offset: m.ends[q], queue: uint16(q)}] = &modelMessage{}
		m.ends[q]++
	}
	m.d.Advance(uint16(q), m.ends[q])
}

func (m *model) receive() {
	salt := m.rng.Uint64N(7)
	invisible := time.Duration(m.rng.Int64N(int64(time.Minute)))
	filter := m.rng.IntN(4) == 0
	match := func(q uint16, o uint64) Verdict {
		switch x := m.messages[place{o, q}]; {
		case x.settled:
			m.failf("offered a settled message %d/%d", q, o)
		case x.dying:
			m.failf("offered a dying message %d/%d", q, o)
		case x.delivery != 0 && x.until > m.now:
			m.failf("offered %d/%d, which is in hands until %v", q, o, x.until)
		}
		if !filter {
			return Deliver
		}
		switch (o + salt) % 7 {
		case 0:
			return Skip
		case 1:
			return Later
		}
		return Deliver
	}
	verdicts := make(map[place]Verdict)
	got, _ := m.d.Take(TakeRequest{Now: m.now, Max: m.rng.IntN(12), Invisible: invisible,
		Match: func(q uint16, o uint64) Verdict {
			v := match(q, o)
			if _, twice := verdicts[place{o, q}]; twice {
				m.failf("offered %d/%d twice in one call", q, o)
			}
			verdicts[place{o, q}] = v
			return v
		}}, nil)
	for _, g := range got {
		p := place{g.Offset, g.Queue}
		x := m.messages[p]
		if verdicts[p] != Deliver {
			m.failf("delivered %v against the verdict", p)
		}
		delete(verdicts, p)
		x.attempts++
		if g.Attempt != x.attempts || g.Attempt > m.max {
			m.failf("attempt of %v is %d, want %d of %d", p, g.Attempt, x.attempts, m.max)
		}
		if x.delivery != 0 {
			x.old = append(x.old, x.delivery)
		}
		x.delivery, x.until = g.Delivery, m.now.Add(invisible)
		m.note("deliver %v attempt %d until %v", p, g.Attempt, x.until)
	}
	for p, v := range verdicts {
		switch x := m.messages[p]; v {
		case Skip:
			x.settled = true
			m.note("skip %v", p)
		case Later:
			if x.delivery != 0 {
				x.until = m.now + second
			}
			m.note("later %v", p)
		default:
			m.failf("%v matched and was not delivered", p)
		}
	}
}

// any returns a random message that was delivered at least once by any process.
func (m *model) any() (place, *modelMessage, uint64) {
	var known []place
	for p, x := range m.messages {
		if x.delivery != 0 || len(x.old) > 0 {
			known = append(known, p)
		}
	}
	if len(known) == 0 {
		return place{}, nil, 0
	}
	slices.SortFunc(known, func(a, b place) int { return int(a.offset) - int(b.offset) + 1000*(int(a.queue)-int(b.queue)) })
	p := known[m.rng.IntN(len(known))]
	x := m.messages[p]
	if n := len(x.old); n > 0 && (x.delivery == 0 || m.rng.IntN(3) == 0) {
		return p, x, x.old[m.rng.IntN(n)]
	}
	return p, x, x.delivery
}

// counts reports whether an acknowledgement with the handle has to count.
func (m *model) counts(x *modelMessage, delivery uint64) bool {
	if x.settled || x.dying {
		return false
	}
	if x.delivery == 0 { // nobody of this process had it
		return delivery <= m.process<<40
	}
	return delivery == x.delivery
}

// lapsed reports whether the message may already be among the dead.
func (m *model) lapsed(x *modelMessage) bool {
	return x.attempts >= m.max && (x.delivery == 0 || x.until <= m.now)
}

func (m *model) acknowledge() {
	p, x, delivery := m.any()
	if x == nil {
		return
	}
	counts, lapsed := m.counts(x, delivery), m.lapsed(x)
	err := m.d.Ack(m.now, p.queue, p.offset, delivery)
	m.note("ack %v with %d: %v", p, delivery, err)
	switch {
	case x.settled && !x.buried:
		if err != nil {
			m.failf("ack of the settled %v: %v", p, err)
		}
	case x.buried, !counts:
		if err == nil {
			m.failf("ack of %v with the dead handle %d counts", p, delivery)
		}
	case err != nil && (!lapsed || reason(m.t, err) != ReasonDeadLettered):
		m.failf("ack of %v with %d: %v", p, delivery, err)
	case err == nil:
		x.settled = true
	}
}

func (m *model) delay() {
	p, x, delivery := m.any()
	if x == nil {
		return
	}
	counts, lapsed := m.counts(x, delivery), m.lapsed(x)
	d := time.Duration(m.rng.Int64N(int64(time.Minute))) * time.Duration(m.rng.IntN(2))
	n, err := m.d.ChangeInvisible(m.now, p.queue, p.offset, delivery, d)
	m.note("delay %v by %v with %d: %v", p, d, delivery, err)
	switch {
	case err == nil && !counts:
		m.failf("delay of %v with the dead handle %d counts", p, delivery)
	case err != nil && counts && (!lapsed || reason(m.t, err) != ReasonDeadLettered):
		m.failf("delay of %v with %d: %v", p, delivery, err)
	case err == nil:
		x.old = append(x.old, delivery)
		x.delivery, x.until = n, m.now.Add(d)
		x.attempts = max(x.attempts, 1)
	}
}

func (m *model) bury() {
	for _, dead := range m.d.TakeDead(m.now, m.rng.IntN(4), nil) {
		x := m.messages[place{dead.Offset, dead.Queue}]
		if x.settled || dead.Attempts != x.attempts || x.attempts < m.max || (x.delivery != 0 || x.dying) && x.until > m.now {
			m.failf("dead: %+v, which is %+v", dead, x)
		}
		if m.rng.IntN(3) == 0 {
			m.d.DeadLetterFailed(m.now, dead.Queue, dead.Offset)
			x.dying, x.until = true, m.now+second
			continue
		}
		m.p.Settle("g", "t", dead.Queue, dead.Offset)
		m.d.DeadLettered(dead.Queue, dead.Offset)
		x.settled, x.buried = true, true
		m.note("bury %d/%d", dead.Queue, dead.Offset)
	}
}

func (m *model) logProgress() {
	g, ok := m.d.Collect(m.now, m.wall)
	if !ok {
		return
	}
	if m.rng.IntN(4) == 0 {
		m.d.Restore(g)
		return
	}
	d, err := ParseDelta((&Delta{Groups: []GroupDelta{g}}).Append(nil))
	if err != nil {
		m.failf("delta: %v", err)
	}
	m.p.Apply(d)
}

// checkProgress: right after a delta, Progress knows exactly what is settled.
func (m *model) checkProgress() {
	g, ok := m.d.Collect(m.now, m.wall)
	if ok {
		m.p.Apply(Delta{Groups: []GroupDelta{g}})
	}
	durable := m.durable()
	for p, x := range m.messages {
		if durable[p] != x.settled {
			m.failf("%v is settled: %v, in progress: %v", p, x.settled, durable[p])
		}
	}
}

func (m *model) durable() map[place]bool {
	out := make(map[place]bool)
	for _, s := range m.p.State("g", "t") {
		for p := range m.messages {
			if p.queue != s.Queue {
				continue
			}
			i := rangeSet(s.Acked)
			out[p] = p.offset < s.Floor || i.contains(p.offset)
		}
	}
	return out
}

// crash loses what was not logged; stop does not.
func (m *model) crash(orderly bool) {
	if orderly {
		if g, ok := m.d.Held(m.now, m.wall); ok {
			m.p.Apply(Delta{Groups: []GroupDelta{g}})
		}
	}
	durable := m.durable()
	retries := make(map[place]Retry)
	for _, s := range m.p.State("g", "t") {
		for _, r := range s.Retries {
			retries[place{r.Offset, s.Queue}] = r
		}
	}
	for p, x := range m.messages {
		if x.settled && !durable[p] && (orderly || x.buried) {
			m.failf("%v was settled and is not in progress", p)
		}
		r, waits := retries[p]
		if orderly && !x.settled && (waits != (x.attempts > 0) || r.Attempts != x.attempts) {
			m.failf("%v had %d attempts, in progress: %+v", p, x.attempts, r)
		}
		if x.delivery != 0 {
			x.old = append(x.old, x.delivery)
		}
		x.settled, x.attempts, x.delivery, x.dying, x.buried = durable[p], r.Attempts, 0, false, false
	}
	m.note("start again, orderly: %v", orderly)
	m.start()
}

// drain consumes everything; nothing may be missing.
func (m *model) drain() {
	for range 1000 {
		m.now += 2 * minute
		m.d.Expire(m.now)
		for _, dead := range m.d.TakeDead(m.now, 1000, nil) {
			m.p.Settle("g", "t", dead.Queue, dead.Offset)
			m.d.DeadLettered(dead.Queue, dead.Offset)
			m.messages[place{dead.Offset, dead.Queue}].settled = true
		}
		got, _ := m.d.Take(TakeRequest{Now: m.now, Max: 1000, Invisible: time.Minute}, nil)
		for _, g := range got {
			x := m.messages[place{g.Offset, g.Queue}]
			if x.settled {
				m.failf("delivered a settled message: %+v", g)
			}
			if err := m.d.Ack(m.now, g.Queue, g.Offset, g.Delivery); err != nil {
				m.failf("ack: %v", err)
			}
			x.settled = true
		}
		if len(got) == 0 && m.d.Stats() == (Stats{}) {
			break
		}
	}
	for p, x := range m.messages {
		if !x.settled {
			m.failf("%v was never delivered: %+v", p, x)
		}
	}
	m.checkProgress()
	for q, end := range m.ends {
		if lag := m.p.Lag("g", "t", uint16(q), end); end > 0 && lag != 0 {
			m.failf("lag of queue %d is %d", q, lag)
		}
	}
}

// TestDispatcherKeepsItsPromises runs random operations, restarts and crashes
// included, against the model: nothing is delivered while somebody has it, nor
// after it is settled; attempts count on; everything unsettled comes back,
// however old it is (fault L3).
func TestDispatcherKeepsItsPromises(t *testing.T) {
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 4))
		m := &model{t: t, seed: seed, rng: rng, p: NewProgress(), wall: wall0, max: 1 + rng.Uint32N(4),
			ends: make([]uint64, 1+rng.IntN(4)), messages: make(map[place]*modelMessage)}
		m.start()
		for range 300 {
			switch rng.IntN(14) {
			case 0, 1:
				m.publish()
			case 2, 3, 4:
				m.receive()
			case 5, 6, 7:
				m.acknowledge()
			case 8:
				m.delay()
			case 9:
				m.bury()
			case 10, 11:
				m.now += Instant(rng.Int64N(int64(30 * time.Second)))
				m.wall = m.wall.Add(time.Duration(rng.Int64N(int64(2*time.Hour))) - time.Hour)
				m.d.Expire(m.now)
			case 12:
				m.logProgress()
			case 13:
				if rng.IntN(6) == 0 {
					m.crash(rng.IntN(2) == 0)
				} else if rng.IntN(4) == 0 {
					m.checkProgress()
				} else if rng.IntN(4) == 0 {
					m.reset()
				}
			}
		}
		m.now += Instant(maxHold) // whatever the wall clock did
		m.drain()
	}
}
