package consumer

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var liteSeeds = flag.Int("lite-seeds", 200, "worlds of TestLiteTopicsAreDeliveredInOrderToWhoChoseThem")

// liteModel is what clients may see of message groups that they choose: the first
// unsettled message of one that they have chosen, if nobody has it.
type liteModel struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	d       *Dispatcher
	p       *Progress
	now     Instant
	process uint64
	msgs    []*liteMessage
	gone    map[uint64]uint64 // message groups that were abandoned: below which offset
	chosen  map[string]map[uint64]bool
	lately  map[uint64]bool // chosen since the last Take began, by whomever
	calm    bool            // nothing happens while the index is read
	log     []string
}

type liteMessage struct {
	key      uint64
	settled  bool
	delivery uint64
	until    Instant
	attempts uint32
}

const liteKeys, liteClients = 7, 3

func (m *liteModel) failf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-60):] {
		m.t.Log(l)
	}
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *liteModel) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *liteModel) client() string { return fmt.Sprint("c", m.rng.IntN(liteClients)) }

func (m *liteModel) start() {
	m.process++
	m.d = NewDispatcher(Options{Group: "g", Topic: "t", MaxAttempts: 1000, MaxInFlight: 40, MaxWaiting: 3,
		FirstDelivery: m.process << 40, InOrder: true, Chosen: true}, m.p.State("g", "t"), m.now, time.Unix(1_000_000, 0).Add(time.Duration(m.now)))
	m.d.Advance(liteQueue, uint64(len(m.msgs)))
	for c, keys := range m.chosen {
		for key := range keys {
			m.d.Choose(c, key)
		}
	}
}

// log appends what was collected, as the broker does.
func (m *liteModel) flush(held bool) {
	wall := time.Unix(1_000_000, 0).Add(time.Duration(m.now))
	collect := m.d.Collect
	if held {
		collect = m.d.Held
	}
	if g, ok := collect(m.now, wall); ok {
		m.p.Apply(Delta{Groups: []GroupDelta{g}})
	}
}

func (m *liteModel) key(_ uint16, o uint64) (uint64, Verdict) {
	if !m.calm && m.rng.IntN(40) == 0 { // the index is read without the mutex
		switch m.rng.IntN(3) {
		case 0:
			m.choose()
		case 1:
			m.unchoose()
		default:
			m.publish(1)
		}
	}
	if x := m.msgs[o]; o >= m.gone[x.key] {
		return x.key, Deliver
	}
	return 0, Skip
}

func (m *liteModel) first(key uint64) int {
	return slices.IndexFunc(m.msgs, func(x *liteMessage) bool { return x.key == key && !x.settled })
}

func (m *liteModel) take(c string, most int) int {
	broken := m.rng.IntN(10) == 0
	r := TakeRequest{Now: m.now, Max: most, Client: c, Invisible: time.Duration(1+m.rng.IntN(60)) * time.Second, Key: m.key}
	if broken {
		r.Key = func(q uint16, o uint64) (uint64, Verdict) {
			if o%5 == 3 {
				return 0, Later
			}
			return m.key(q, o)
		}
	}
	m.lately = map[uint64]bool{}
	maps.Copy(m.lately, m.chosen[c])
	got, _ := m.d.Take(r, nil)
	for _, g := range got {
		x := m.msgs[g.Offset]
		m.note("take %s: %d of %d", c, g.Offset, x.key)
		switch {
		case !m.chosen[c][x.key] && !m.lately[x.key]:
			m.failf("%s got offset %d of %d, which it has not chosen", c, g.Offset, x.key)
		case x.settled:
			m.failf("%s got the settled %d", c, g.Offset)
		case x.until > m.now:
			m.failf("%s got %d, which is in hands", c, g.Offset)
		case m.first(x.key) != int(g.Offset):
			m.failf("%s got %d of %d before %d", c, g.Offset, x.key, m.first(x.key))
		}
		if x.attempts++; g.Attempt != x.attempts {
			m.failf("%d comes for time %d, as number %d", g.Offset, x.attempts, g.Attempt)
		}
		x.delivery, x.until = g.Delivery, m.now.Add(r.Invisible)
	}
	return len(got)
}

func (m *liteModel) offsets(key, from uint64) (list []uint64) {
	for o := from; o < uint64(len(m.msgs)); o++ {
		if m.msgs[o].key == key {
			list = append(list, o)
		}
	}
	return list
}

// abandon settles a message group whatever is left of it.
func (m *liteModel) abandon(key uint64) {
	m.note("abandon %d", key)
	m.gone[key] = uint64(len(m.msgs))
	for _, o := range m.offsets(key, 0) {
		m.msgs[o].settled = true
	}
	if from, ok := m.d.Abandon(key); ok {
		m.d.Settle(m.offsets(key, from))
	}
}

// rewind has a message group go on at one of its offsets, as a subscription may ask.
func (m *liteModel) rewind(key uint64) {
	list := m.offsets(key, m.gone[key])
	if len(list) == 0 {
		return
	}
	i := m.rng.IntN(len(list) + 1)
	m.note("rewind %d to %v", key, list[i:])
	m.flush(true)
	for n, o := range list {
		m.msgs[o].settled = n < i
		if n >= i {
			m.msgs[o].until, m.msgs[o].delivery, m.msgs[o].attempts = 0, 0, 0
			m.p.Unsettle("g", "t", liteQueue, []Range{{From: o, To: o + 1}})
		} else {
			m.p.Settle("g", "t", liteQueue, o)
		}
	}
	m.d.Rewind(key, list, i)
}

func (m *liteModel) publish(n int) {
	for range n {
		m.msgs = append(m.msgs, &liteMessage{key: 1 + m.rng.Uint64N(liteKeys)})
	}
	m.d.Advance(liteQueue, uint64(len(m.msgs)))
}

func (m *liteModel) choose() {
	c, key := m.client(), 1+m.rng.Uint64N(liteKeys)
	m.note("choose %s %d", c, key)
	if m.chosen[c] == nil {
		m.chosen[c] = map[uint64]bool{}
	}
	m.chosen[c][key], m.lately[key] = true, true
	m.d.Choose(c, key)
}

func (m *liteModel) unchoose() {
	c, key := m.client(), 1+m.rng.Uint64N(liteKeys)
	m.note("unchoose %s %d", c, key)
	delete(m.chosen[c], key)
	m.d.Unchoose(c, key)
}

func (m *liteModel) step() {
	switch op := m.rng.IntN(20); {
	case op < 4:
		m.publish(m.rng.IntN(12))
	case op < 6:
		m.choose()
	case op < 8:
		m.unchoose()
	case op < 13:
		m.take(m.client(), m.rng.IntN(6))
	case op < 16:
		m.settle()
	case op < 17:
		m.now = m.now.Add(time.Duration(m.rng.IntN(40)) * time.Second)
		m.d.Expire(m.now)
	case op < 18:
		m.flush(false)
	case op < 19:
		if m.rng.IntN(3) == 0 {
			m.flush(true)
			m.note("restart")
			m.start()
			for _, x := range m.msgs {
				x.delivery = 0
			}
		}
	default:
		key := 1 + m.rng.Uint64N(liteKeys)
		if m.rng.IntN(4) == 0 {
			m.abandon(key)
		} else {
			m.rewind(key)
		}
	}
}

// settle acknowledges, or gives back, a message in hands.
func (m *liteModel) settle() {
	for o, x := range m.msgs {
		if x.settled || x.until <= m.now || x.delivery == 0 || m.rng.IntN(3) == 0 {
			continue
		}
		if m.rng.IntN(4) == 0 {
			delay := time.Duration(m.rng.IntN(20)) * time.Second
			number, err := m.d.ChangeInvisible(m.now, liteQueue, uint64(o), x.delivery, delay)
			m.note("nack %d: %v", o, err)
			if err != nil {
				m.failf("nack of %d: %v", o, err)
			}
			x.delivery, x.until = number, m.now.Add(delay)
			continue
		}
		if err := m.d.Ack(m.now, liteQueue, uint64(o), x.delivery); err != nil {
			m.failf("ack of %d: %v", o, err)
		}
		m.note("ack %d", o)
		x.settled = true
	}
}

// drain consumes all that is there.
func (m *liteModel) drain() {
	m.note("drain")
	m.calm = true
	for c := range liteClients {
		name := fmt.Sprint("c", c)
		m.chosen[name] = map[uint64]bool{}
		for key := range uint64(liteKeys) {
			m.chosen[name][key+1] = true
			m.d.Choose(name, key+1)
		}
	}
	for range 40 * (len(m.msgs) + 1) {
		m.now = m.now.Add(70 * time.Second)
		m.take(m.client(), 8)
		for o, x := range m.msgs {
			if !x.settled && x.until > m.now && x.delivery != 0 {
				if err := m.d.Ack(m.now, liteQueue, uint64(o), x.delivery); err != nil {
					m.failf("ack of %d: %v", o, err)
				}
				x.settled = true
			}
		}
		if !slices.ContainsFunc(m.msgs, func(x *liteMessage) bool { return !x.settled }) {
			m.flush(false)
			for m.d.Sort(TakeRequest{Now: m.now, Key: m.key}) {
			}
			m.flush(false)
			if lag := m.p.Lag("g", "t", liteQueue, uint64(len(m.msgs))); lag != 0 {
				m.failf("all is settled, and the lag is %d: %+v, %+v", lag, m.p.State("g", "t"), m.d.Stats())
			}
			return
		}
	}
	st := m.d.Stats()
	for o, x := range m.msgs {
		if !x.settled {
			m.failf("offset %d of %d was never delivered: %+v, in hands until %v, now %v", o, x.key, st, x.until, m.now)
		}
	}
}

func TestLiteTopicsAreDeliveredInOrderToWhoChoseThem(t *testing.T) {
	for seed := range uint64(*liteSeeds) {
		m := &liteModel{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), p: NewProgress(), now: 1,
			gone: map[uint64]uint64{}, lately: map[uint64]bool{}, chosen: map[string]map[uint64]bool{}}
		m.p.Create("g", "t", liteQueue, 0)
		m.start()
		for range 400 {
			m.step()
		}
		m.drain()
	}
}
