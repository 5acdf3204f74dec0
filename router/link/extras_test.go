package link

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// both is the two ends of a link and the connections between them; what one end
// does the other learns after a delay.
type both struct {
	t     *testing.T
	seed  uint64
	r     *rand.Rand
	now   time.Time
	m     [2]*machine
	load  [2]load
	last  [2]time.Time // of the samples
	conns map[uint64]*joint
	next  uint64
	queue []later
	cut   bool
	loose bool // connections may be lost
}

// joint is a connection: the same id at both ends.
type joint struct {
	extra  bool
	dialed int // by which end
	knows  [2]bool
}

type later struct {
	at  time.Time
	end int
	ev  event
}

func newBoth(t *testing.T, seed uint64, most [2]int) *both {
	b := &both{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 5)), now: epoch, conns: make(map[uint64]*joint)}
	jitter := func(d time.Duration) time.Duration { return time.Duration(b.r.Int64N(int64(d))) }
	for i := range b.m {
		b.m[i] = newMachine(Timing{}.withDefaults(), i == 0, most[i], jitter, epoch)
	}
	for i := range b.m {
		b.do(i, evWant{true})
	}
	return b
}

// delay is a trip over the path.
func (b *both) delay() time.Duration {
	return time.Duration(10+b.r.IntN(40)) * time.Millisecond
}

func (b *both) tell(end int, after time.Duration, ev event) {
	b.queue = append(b.queue, later{b.now.Add(after), end, ev})
}

// do gives an end an event and carries its effects out.
func (b *both) do(end int, ev event) {
	if lost, ok := ev.(evLost); ok && b.conns[lost.conn] != nil {
		b.conns[lost.conn].knows[end] = false
	}
	for _, e := range b.m[end].step(b.now, ev) {
		switch e.kind {
		case doDial, doExtra:
			b.dial(end, e)
		case doProbe:
			if c := b.conns[e.id]; c != nil && !b.cut && c.knows[1-end] {
				b.tell(end, 2*b.delay(), evReply{e.id})
			}
		case doSilent, doSurplus, doStale:
			b.conns[e.id].knows[end] = false
			b.tell(1-end, b.delay(), evLost{e.id})
		case doRetire:
			b.tell(1-end, b.delay(), evDrain{e.id})
		}
	}
}

func (b *both) dial(end int, e effect) {
	if b.cut || b.r.IntN(20) == 0 {
		b.tell(end, 3*time.Second, evFailed{e.id})
		return
	}
	b.next++
	id := 1000 + b.next
	b.conns[id] = &joint{extra: e.kind == doExtra, dialed: end}
	up := func(who int, attempt uint64) evUp {
		return evUp{attempt: attempt, conn: id, incarnation: uint64(1 + who), extra: e.kind == doExtra, takes: b.m[1-who].extras.takes()}
	}
	b.tell(1-end, 2*b.delay(), up(1-end, 0))
	b.tell(end, 4*b.delay(), up(end, e.id))
}

// run lets time pass.
func (b *both) run(d time.Duration) {
	for end := b.now.Add(d); b.now.Before(end); b.now = b.now.Add(20 * time.Millisecond) {
		b.step()
	}
}

func (b *both) step() {
	var due []later
	b.queue = slices.DeleteFunc(b.queue, func(l later) bool {
		if l.at.After(b.now) {
			return false
		}
		due = append(due, l)
		return true
	})
	for _, l := range due {
		if up, ok := l.ev.(evUp); ok {
			if up.attempt != 0 && !b.m[l.end].expects(up.attempt) {
				b.tell(1-l.end, b.delay(), evLost{up.conn}) // given up meanwhile
				continue
			}
			b.conns[up.conn].knows[l.end] = true
		}
		b.do(l.end, l.ev)
	}
	if b.loose && b.r.IntN(200) == 0 {
		b.lose()
	}
	for i, m := range b.m {
		if b.now.Sub(b.last[i]) >= 500*time.Millisecond {
			s := b.load[i]
			s.over, b.last[i] = 500*time.Millisecond, b.now
			s.rate *= float64(m.extras.demand.want)
			b.do(i, evLoad{s})
		}
		m.retiring(func(id uint64) { b.do(i, evIdle{id}) })
		if at := m.deadline(); !at.IsZero() && !at.After(b.now) {
			b.do(i, evTick{})
		}
		b.check(i)
	}
}

// lose ends a connection at both ends, as a fault does.
func (b *both) lose() {
	ids := slices.Sorted(maps.Keys(b.conns))
	if len(ids) == 0 {
		return
	}
	for _, id := range ids[b.r.IntN(len(ids)):] {
		if c := b.conns[id]; c.knows[0] && c.knows[1] {
			b.do(0, evLost{id})
			b.do(1, evLost{id})
			return
		}
	}
}

func (b *both) check(end int) {
	m := b.m[end]
	if n := len(m.extras.conns); n > m.extras.bound() {
		b.t.Fatalf("seed %d: end %d has %d extra connections, want at most %d", b.seed, end, n, m.extras.bound())
	}
	if n := len(m.extras.attempts); n > m.extras.most {
		b.t.Fatalf("seed %d: end %d has %d attempts at extra connections", b.seed, end, n)
	}
	for i := range m.extras.conns {
		if m.conn(m.extras.conns[i].id) >= 0 {
			b.t.Fatalf("seed %d: connection %d is both the link's own and an extra one", b.seed, m.extras.conns[i].id)
		}
	}
	if m.current() == 0 && m.state == StateUp || m.current() != 0 && m.state != StateUp {
		b.t.Fatalf("seed %d: state %s with connection %d", b.seed, m.state, m.current())
	}
}

// carriers returns what an end puts sessions on.
func (b *both) carriers(end int) []uint64 {
	var out []uint64
	b.m[end].carriers(func(id uint64) { out = append(out, id) })
	slices.Sort(out)
	return out
}

// TestBothEndsAgreeOnTheExtraConnections runs two ends with random needs, cuts
// and losses. Whenever it is calm for a while, both put sessions on the same
// connections, as many as the one that needs more wants.
func TestBothEndsAgreeOnTheExtraConnections(t *testing.T) {
	for seed := range uint64(32) {
		most := [2]int{1 + int(seed)%8, 1 + int(3*seed/8)%8}
		b := newBoth(t, seed, most)
		for round := range 5 {
			b.loose = true
			for i := range b.load {
				b.load[i] = idlePath(1e3, 1)(1)
				if b.r.IntN(2) == 0 {
					b.load[i] = lossyPath(1)
				}
			}
			b.cut = b.r.IntN(4) == 0
			b.run(time.Duration(b.r.IntN(20)) * time.Second)
			b.cut, b.loose = false, false
			b.run(80 * time.Second)
			low, high := b.carriers(0), b.carriers(1)
			if !slices.Equal(low, high) {
				t.Fatalf("seed %d, round %d: one end uses %v, the other %v", seed, round, low, high)
			}
			want := max(b.m[0].wantedExtras(), b.m[1].wantedExtras())
			if len(low) != want || want > min(most[0], most[1]) {
				t.Fatalf("seed %d, round %d: %d extra connections, wanted %d of at most %v", seed, round, len(low), want, most)
			}
			for i, m := range b.m {
				if m.state != StateUp || len(m.conns) != 1 || len(m.extras.conns) != want {
					t.Fatalf("seed %d, round %d: end %d is %s with %d + %d connections, want one and %d", seed, round, i, m.state, len(m.conns), len(m.extras.conns), want)
				}
			}
		}
	}
}

// TestOldPeerKeepsOneConnection: a peer that says nothing of extra connections
// gets none, and is never asked.
func TestOldPeerKeepsOneConnection(t *testing.T) {
	m := newMachine(Timing{}.withDefaults(), true, 8, func(d time.Duration) time.Duration { return d / 2 }, epoch)
	m.step(epoch, evWant{true})
	m.step(epoch, evUp{attempt: 1, conn: 1, incarnation: 1})
	for now := epoch; now.Before(epoch.Add(time.Minute)); now = now.Add(500 * time.Millisecond) {
		m.step(now, evReply{1})
		s := lossyPath(1)
		s.over = 500 * time.Millisecond
		for _, e := range m.step(now, evLoad{s}) {
			if e.kind == doExtra {
				t.Fatalf("an extra connection is dialled to a peer that takes none")
			}
		}
	}
}

// TestLostExtraConnectionIsReplacedAndHarmsNothing loses one of four.
func TestLostExtraConnectionIsReplacedAndHarmsNothing(t *testing.T) {
	b := newBoth(t, 3, [2]int{4, 4})
	b.load[0] = lossyPath(1)
	b.run(20 * time.Second)
	before := b.carriers(0)
	if len(before) != 4 {
		t.Fatalf("%d extra connections, want 4", len(before))
	}
	own := b.m[0].conns[0].id
	b.do(0, evLost{before[1]})
	b.do(1, evLost{before[1]})
	for end := range b.m {
		if got := b.carriers(end); len(got) != 3 || b.m[end].state != StateUp || b.m[end].conns[0].id != own {
			t.Errorf("end %d: carriers %v of %v, state %s", end, got, before, b.m[end].state)
		}
	}
	b.run(3 * time.Second)
	if after := b.carriers(1); len(after) != 4 || slices.Contains(after, before[1]) || !slices.Contains(after, before[0]) {
		t.Errorf("carriers %v after %v lost its second", after, before)
	}
}

// TestSessionsGoOnWhileTheLinksOwnConnectionIsDialledAgain loses the link's own.
func TestSessionsGoOnWhileTheLinksOwnConnectionIsDialledAgain(t *testing.T) {
	b := newBoth(t, 4, [2]int{4, 4})
	b.load[1] = lossyPath(1)
	b.run(20 * time.Second)
	before := b.carriers(0)
	id := b.m[0].conns[0].id
	b.do(0, evLost{id})
	b.do(1, evLost{id})
	for end := range b.m {
		if b.m[end].state != StateUp || b.m[end].current() != before[0] {
			t.Errorf("end %d: %s with %d, want up with %d", end, b.m[end].state, b.m[end].current(), before[0])
		}
	}
	b.run(6 * time.Second)
	if after := b.carriers(0); !slices.Equal(after, before) || len(b.m[0].conns) != 1 {
		t.Errorf("carriers %v, before %v; %d own connections", after, before, len(b.m[0].conns))
	}
}
