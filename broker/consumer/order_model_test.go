package consumer

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var orderSeeds = flag.Int("order-seeds", 150, "worlds of TestOrderHolds")

// orderModel is what a consumer group may see of message groups, told in the
// simplest way: a message may be offered when everything before it in its message
// group is settled, and nobody has it.
type orderModel struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	d       *Dispatcher
	p       *Progress
	now     Instant
	wall    time.Time
	max     uint32
	waiting int
	process uint64
	queues  [2][]*ordered
	trimmed [2]uint64
	polls   uint64
	marks   uint64
	log     []string
}

type ordered struct {
	place
	key      uint64
	attempts uint32
	putOff   bool // the present delivery's attempt was taken back
	settled  bool
	dying    bool
	buried   bool
	delivery uint64  // the newest handle of this process; 0 = none
	until    Instant // in hands or delayed until then
	attempt  uint64  // in hands under it
	told     uint32  // attempts that progress must know
	old      []uint64
}

func (m *orderModel) failf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-60):] {
		m.t.Log(l)
	}
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *orderModel) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *orderModel) start() {
	m.process++
	m.d = NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: int(m.max), MaxInFlight: 30, MaxWaiting: m.waiting,
		FirstDelivery: m.process << 40, InOrder: true}, m.p.State("g", "t"), m.now, m.wall)
	for q := range m.queues {
		m.d.Advance(uint16(q), uint64(len(m.queues[q])))
	}
}

func (m *orderModel) publish() {
	q := m.rng.IntN(len(m.queues))
	for range m.rng.IntN(30) {
		p := place{offset: uint64(len(m.queues[q])), queue: uint16(q)}
		m.queues[q] = append(m.queues[q], &ordered{place: p, key: m.rng.Uint64N(1 + m.seed%9)})
	}
	m.d.Advance(uint16(q), uint64(len(m.queues[q])))
}

func (m *orderModel) each(fn func(*ordered)) {
	for q := range m.queues {
		for _, x := range m.queues[q] {
			fn(x)
		}
	}
}

// mayOffer holds an offer to the promise.
func (m *orderModel) mayOffer(x *ordered, again uint64) {
	switch {
	case x.settled:
		m.failf("offered the settled %v", x.place)
	case x.dying:
		m.failf("offered the dying %v", x.place)
	case x.until > m.now && (again == 0 || x.attempt != again):
		m.failf("offered %v, which is in hands until %v", x.place, x.until)
	}
	for _, y := range m.queues[x.queue][:x.offset] {
		if y.key == x.key && !y.settled {
			m.failf("offered %v before %v of its message group %d", x.place, y.place, x.key)
		}
	}
}

// request is a poll with random answers. verdicts takes what was said.
func (m *orderModel) request(again uint64, verdicts map[place]Verdict) TakeRequest {
	filter, broken := m.rng.IntN(4) == 0, m.rng.IntN(12) == 0
	salt := m.rng.Uint64N(7)
	return TakeRequest{
		Now: m.now, Max: m.rng.IntN(12), Invisible: time.Duration(m.rng.Int64N(int64(time.Minute))),
		Key: func(q uint16, o uint64) (uint64, Verdict) {
			switch {
			case broken && o%5 == salt%5:
				return 0, Later
			case o < m.trimmed[q]:
				if x := m.queues[q][o]; !x.settled && !x.dying {
					m.note("gone %v", x.place)
					x.settled = true
				}
				return 0, Skip
			}
			return m.queues[q][o].key, Deliver
		},
		Match: func(q uint16, o uint64) Verdict {
			x := m.queues[q][o]
			m.mayOffer(x, again)
			if _, twice := verdicts[x.place]; twice {
				m.failf("offered %v twice in one call", x.place)
			}
			v := Deliver
			switch {
			case o < m.trimmed[q]:
				v = Skip
			case filter && (o+salt)%7 == 0:
				v = Skip
			case filter && (o+salt)%7 == 1:
				v = Later
			}
			verdicts[x.place] = v
			if v == Skip { // whoever comes next in its message group may be offered in this call
				x.settled = true
				m.note("skip %v", x.place)
			}
			return v
		},
	}
}

func (m *orderModel) receive() {
	verdicts := make(map[place]Verdict)
	r := m.request(0, verdicts)
	if m.rng.IntN(2) == 0 {
		m.polls++
		r.Attempt = m.d.Begin(m.polls)
		defer m.d.End(r.Attempt)
	}
	got, _ := m.d.Take(r, nil)
	m.took(r, got, verdicts, false)
}

// took notes what a poll brought.
func (m *orderModel) took(r TakeRequest, got []Taken, verdicts map[place]Verdict, again bool) {
	for _, g := range got {
		x := m.queues[g.Queue][g.Offset]
		if verdicts[x.place] != Deliver {
			m.failf("delivered %v against the verdict", x.place)
		}
		delete(verdicts, x.place)
		if !again {
			x.attempts++
			x.putOff = false
		}
		if g.Attempt != x.attempts || g.Attempt > m.max {
			m.failf("attempt of %v is %d, want %d of %d", x.place, g.Attempt, x.attempts, m.max)
		}
		if x.delivery != 0 {
			x.old = append(x.old, x.delivery)
		}
		x.delivery, x.until, x.attempt = g.Delivery, m.now.Add(r.Invisible), 0
		if r.Attempt != nil {
			x.attempt = r.Attempt.id
		}
		m.note("deliver %v of %d, attempt %d under %d until %v, again %v", x.place, x.key, g.Attempt, x.attempt, x.until, again)
	}
	for p, v := range verdicts {
		switch x := m.queues[p.queue][p.offset]; v {
		case Skip:
		case Later:
			x.until = m.now + second
			if !again {
				x.attempt = 0 // its time was over
			}
			m.note("later %v", p)
		default:
			m.failf("%v matched and was not delivered", p)
		}
	}
}

// repeat asks once more under an attempt id, as a client that lost the answer: it
// gets exactly what it has in hands under it.
func (m *orderModel) repeat() {
	if m.polls == 0 {
		return
	}
	id := 1 + m.rng.Uint64N(m.polls)
	m.d.Expire(m.now)
	want := 0
	m.each(func(x *ordered) {
		if x.attempt == id && x.delivery != 0 && x.until > m.now && !x.settled && !x.dying {
			want++
		}
	})
	if want == 0 {
		return
	}
	verdicts := make(map[place]Verdict)
	r := m.request(id, verdicts)
	r.Max = 100
	r.Invisible = time.Minute
	stale := m.d.Begin(id)
	r.Attempt = stale
	newest := m.d.Begin(id)
	if got, more := m.d.Take(r, nil); len(got) != 0 || more {
		m.failf("a poll that a newer one replaced got %v", got)
	}
	m.d.End(stale)
	if !m.d.Newest(newest) {
		m.failf("the end of an older poll ended the newer")
	}
	r.Attempt = newest
	got, _ := m.d.Take(r, nil)
	m.d.End(newest)
	if len(verdicts) != want {
		m.failf("attempt %d has %d messages in hands, and was offered %d", id, want, len(verdicts))
	}
	m.took(r, got, verdicts, true)
}

// any returns a random message that was delivered at least once by any process.
func (m *orderModel) any() (*ordered, uint64) {
	var known []*ordered
	m.each(func(x *ordered) {
		if x.delivery != 0 || len(x.old) > 0 {
			known = append(known, x)
		}
	})
	if len(known) == 0 {
		return nil, 0
	}
	x := known[m.rng.IntN(len(known))]
	if n := len(x.old); n > 0 && (x.delivery == 0 || m.rng.IntN(3) == 0) {
		return x, x.old[m.rng.IntN(n)]
	}
	return x, x.delivery
}

// counts reports whether an acknowledgement with the handle has to count.
func (m *orderModel) counts(x *ordered, delivery uint64) bool {
	if x.settled || x.dying {
		return false
	}
	if x.delivery == 0 { // nobody of this process had it
		return delivery <= m.process<<40
	}
	return delivery == x.delivery
}

func (m *orderModel) lapsed(x *ordered) bool {
	return x.attempts >= m.max && (x.delivery == 0 || x.until <= m.now)
}

func (m *orderModel) acknowledge() {
	x, delivery := m.any()
	if x == nil {
		return
	}
	counts, lapsed := m.counts(x, delivery), m.lapsed(x)
	err := m.d.Ack(m.now, x.queue, x.offset, delivery)
	m.note("ack %v with %d: %v", x.place, delivery, err)
	switch {
	case x.settled && !x.buried:
		if err != nil {
			m.failf("ack of the settled %v: %v", x.place, err)
		}
	case x.buried, !counts:
		if err == nil {
			m.failf("ack of %v with the dead handle %d counts", x.place, delivery)
		}
	case err != nil && (!lapsed || reason(m.t, err) != ReasonDeadLettered):
		m.failf("ack of %v with %d: %v", x.place, delivery, err)
	case err == nil:
		x.settled = true
	}
}

func (m *orderModel) delay() {
	x, delivery := m.any()
	if x == nil {
		return
	}
	counts, lapsed, foreign := m.counts(x, delivery), m.lapsed(x), delivery <= m.process<<40
	d := time.Duration(m.rng.Int64N(int64(time.Minute))) * time.Duration(m.rng.IntN(2))
	change, suspend := m.d.ChangeInvisible, m.rng.IntN(3) == 0
	if suspend {
		change = m.d.Suspend
	}
	n, err := change(m.now, x.queue, x.offset, delivery, d)
	m.note("delay %v by %v with %d, suspend %v: %v", x.place, d, delivery, suspend, err)
	switch {
	case err == nil && !counts:
		m.failf("delay of %v with the dead handle %d counts", x.place, delivery)
	case err != nil && counts && !foreign && (!lapsed || reason(m.t, err) != ReasonDeadLettered):
		m.failf("delay of %v with %d: %v", x.place, delivery, err)
	case err == nil:
		x.old = append(x.old, delivery)
		if x.delivery == 0 { // at least the attempt of that handle
			x.attempts = max(x.attempts, 1)
		}
		x.delivery, x.until, x.attempt = n, m.now.Add(d), 0
		if suspend && !x.putOff && x.attempts > 0 {
			x.attempts--
			x.putOff = true
		}
	}
}

func (m *orderModel) bury() {
	for _, dead := range m.d.TakeDead(m.now, m.rng.IntN(4), nil) {
		x := m.queues[dead.Queue][dead.Offset]
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
		m.note("bury %v", x.place)
	}
}

func (m *orderModel) logProgress() {
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
	m.each(func(x *ordered) { x.told = x.attempts })
}

// crash loses what was not logged; a stop does not. Whoever had a message in hands
// when that was logged has it until its time is over.
func (m *orderModel) crash(orderly bool) {
	if orderly {
		if g, ok := m.d.Held(m.now, m.wall); ok {
			m.p.Apply(Delta{Groups: []GroupDelta{g}})
		}
	}
	retries := make(map[place]Retry)
	for _, s := range m.p.State("g", "t") {
		for _, r := range s.Retries {
			retries[place{r.Offset, s.Queue}] = r
		}
	}
	m.each(func(x *ordered) {
		durable := m.p.Settled("g", "t", x.queue, x.offset)
		if x.settled && !durable && (orderly || x.buried) {
			m.failf("%v was settled and is not in progress", x.place)
		}
		r := retries[x.place]
		if !durable && !x.settled && r.Attempts < x.told && x.told <= x.attempts {
			m.failf("%v was in hands when progress was logged, which knows %+v", x.place, r)
		}
		x.told = r.Attempts
		if orderly && !x.settled && r.Attempts != x.attempts {
			m.failf("%v had %d attempts, in progress: %+v", x.place, x.attempts, r)
		}
		if x.delivery != 0 {
			x.old = append(x.old, x.delivery)
		}
		x.settled, x.attempts, x.delivery, x.dying, x.buried, x.putOff = durable, r.Attempts, 0, false, false, false
		x.attempt = r.Attempt
		x.until = m.now
		if !r.Visible.IsZero() {
			x.until = m.now.Add(min(max(r.Visible.Sub(m.wall), 0), maxHold))
		}
	})
	m.note("start again, orderly: %v", orderly)
	m.start()
}

// reset has the group go on elsewhere in a queue, at times while a Take looks at the
// index. Handles of before are the caller's to refuse.
func (m *orderModel) reset() {
	q := m.rng.IntN(len(m.queues))
	do := func() {
		m.marks++
		to := m.rng.Uint64N(uint64(len(m.queues[q])) + 1)
		m.p.Reset("g", "t", uint16(q), to, m.marks)
		s, _ := m.p.QueueState("g", "t", uint16(q))
		m.d.Reset(&s, m.now, m.wall)
		for _, x := range m.queues[q] {
			*x = ordered{place: x.place, key: x.key, settled: x.offset < to}
		}
		m.note("reset %d to %d", q, to)
	}
	if m.rng.IntN(2) == 0 {
		do()
		return
	}
	r, once := m.request(0, make(map[place]Verdict)), false
	r.Key = func(q uint16, o uint64) (uint64, Verdict) {
		if !once {
			once = true
			do()
		}
		return m.queues[q][o].key, Deliver
	}
	r.Match = func(uint16, uint64) Verdict { return Stop }
	m.d.Take(r, nil)
}

// drain consumes everything; nothing may be missing, and the order holds to the
// end.
func (m *orderModel) drain() {
	for range 20_000 {
		m.now += 2 * minute
		m.d.Expire(m.now)
		for _, dead := range m.d.TakeDead(m.now, 1000, nil) {
			m.p.Settle("g", "t", dead.Queue, dead.Offset)
			m.d.DeadLettered(dead.Queue, dead.Offset)
			m.queues[dead.Queue][dead.Offset].settled = true
		}
		got, _ := m.d.Take(TakeRequest{Now: m.now, Max: 1000, Invisible: time.Minute,
			Key: func(q uint16, o uint64) (uint64, Verdict) { return m.queues[q][o].key, Deliver },
			Match: func(q uint16, o uint64) Verdict {
				m.mayOffer(m.queues[q][o], 0)
				return Deliver
			}}, nil)
		for _, g := range got {
			if err := m.d.Ack(m.now, g.Queue, g.Offset, g.Delivery); err != nil {
				m.failf("ack: %v", err)
			}
			m.queues[g.Queue][g.Offset].settled = true
		}
		if len(got) == 0 && m.d.Stats() == (Stats{}) {
			break
		}
	}
	m.each(func(x *ordered) {
		if !x.settled {
			m.failf("%v was never delivered: %+v, %+v", x.place, x, m.d.Stats())
		}
	})
	if g, ok := m.d.Collect(m.now, m.wall); ok {
		m.p.Apply(Delta{Groups: []GroupDelta{g}})
	}
	for q, list := range m.queues {
		if lag := m.p.Lag("g", "t", uint16(q), uint64(len(list))); len(list) > 0 && lag != 0 {
			m.failf("lag of queue %d is %d", q, lag)
		}
	}
	if o := m.d.order; len(o.groups) > 0 || len(o.attempts) > 0 || len(o.polls) > 0 || o.waiting > 0 {
		m.failf("state is left of %d groups, %d attempts, %d polls, %d waiting", len(o.groups), len(o.attempts), len(o.polls), o.waiting)
	}
}

// TestOrderHolds runs random operations, filters, unreadable and trimmed messages,
// repeated attempts, restarts and crashes included, against the model: within a
// message group nothing is offered before everything earlier is settled, one at a
// time; other message groups go on; nothing is lost, and nothing is left of idle
// message groups.
func TestOrderHolds(t *testing.T) {
	for seed := range uint64(*orderSeeds) {
		rng := rand.New(rand.NewPCG(seed, 6))
		m := &orderModel{t: t, seed: seed, rng: rng, p: NewProgress(), wall: wall0, max: 1 + rng.Uint32N(4), waiting: 5 + rng.IntN(200)}
		m.start()
		for range 400 {
			m.step()
		}
		m.now += Instant(maxHold) // whatever the wall clock did
		m.drain()
	}
}

func (m *orderModel) step() {
	switch m.rng.IntN(16) {
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
		m.now += Instant(m.rng.Int64N(int64(30 * time.Second)))
		m.wall = m.wall.Add(time.Duration(m.rng.Int64N(int64(2*time.Hour))) - time.Hour)
		m.d.Expire(m.now)
	case 12:
		m.logProgress()
	case 13:
		if m.rng.IntN(6) == 0 {
			m.crash(m.rng.IntN(2) == 0)
		}
	case 14:
		if m.rng.IntN(15) == 0 {
			m.reset()
		} else {
			m.repeat()
		}
	case 15:
		if q := m.rng.IntN(2); m.rng.IntN(10) == 0 && len(m.queues[q]) > 0 {
			m.trimmed[q] = max(m.trimmed[q], m.rng.Uint64N(uint64(len(m.queues[q]))))
		}
	}
}

// TestAttemptThatCannotBeReadEndsTheTake repeats an attempt whose message cannot be
// read now: the take says that there is nothing more, so that nobody asks without end.
func TestAttemptThatCannotBeReadEndsTheTake(t *testing.T) {
	p := NewProgress()
	p.Create("g", "t", 0, 0)
	d := NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: 3, FirstDelivery: 1 << 40, InOrder: true}, p.State("g", "t"), 0, wall0)
	d.Advance(0, 1)
	key := func(uint16, uint64) (uint64, Verdict) { return 7, Deliver }
	a := d.Begin(5)
	if got, _ := d.Take(TakeRequest{Max: 1, Invisible: time.Minute, Key: key, Attempt: a}, nil); len(got) != 1 {
		t.Fatal("nothing was taken")
	}
	d.End(a)
	again := d.Begin(5)
	defer d.End(again)
	got, more := d.Take(TakeRequest{Max: 1, Invisible: time.Minute, Key: key, Attempt: again,
		Match: func(uint16, uint64) Verdict { return Later }}, nil)
	if len(got) != 0 || more {
		t.Errorf("took %v, more %v; want nothing, and nothing more for now", got, more)
	}
}
