package broker

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

var zoneSeed = flag.Uint64("zone-seed", 0, "run this seed of TestZoneIsTheModel only; 0 = all")

// The topics of the model, one of each kind; each stays in the zone.
const (
	kindNormal   = zone.Topic("m-normal")
	kindOnce     = zone.Topic("m-once")
	kindFIFO     = zone.Topic("m-fifo")
	kindDelay    = zone.Topic("m-delay")
	kindTx       = zone.Topic("m-tx")
	kindPriority = zone.Topic("m-priority")
)

// zoneTopics are the declarations of the topics and of the groups that read them.
// Two groups read what is normal, to see that none takes from the other.
const (
	zoneTopics = `topics:
  - {name: m-normal, queues: 3, route: local}
  - {name: m-once, queues: 2, route: local, idempotent: 10m}
  - {name: m-fifo, kind: fifo, route: local, idempotent: 10m}
  - {name: m-delay, kind: delay, route: local, idempotent: 10m}
  - {name: m-tx, kind: transaction, route: local, idempotent: 10m, transaction: {immunity: 1h, interval: 1h, checks: 1000}}
  - {name: m-priority, kind: priority, route: local}
` + zoneLiteTopic
	zoneGroups = `consumer_groups:
  - {name: one, topics: [m-normal, m-once, m-fifo, m-delay, m-tx, m-priority], max_attempts: 1000}
  - {name: two, topics: [m-normal], max_attempts: 1000}
` + zoneLiteGroups
)

// sent is a message of the model.
type sent struct {
	id       string
	topic    zone.Topic
	message  Message
	at       time.Time // of the first copy
	visible  time.Time // not before; zero = not yet known (a half message)
	never    bool      // recalled or rolled back
	handle   string    // recall handle or transaction id
	decided  Resolution
	ofGroup  map[zone.ConsumerGroup]*reading
	numbered int  // of a FIFO message: its place in its message group
	over     bool // the time of its lite topic is over: it may come, or not
}

// reading is a message as a consumer group has it.
type reading struct {
	acked   bool // acknowledged, and a crash may forget it
	unsure  bool // a crash may have forgotten it: it comes again or does not
	settled bool // for good
	hands   *held
}

// held is a delivery.
type held struct {
	d     Delivery
	by    int       // broker
	until time.Time // nobody else may have it before
	old   bool      // the broker was restarted since
}

// zoneModel is a zone of two brokers and what is known of its messages.
type zoneModel struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	s       [2]*station
	mem     [2]*disk.Mem
	up      [2]bool
	all     map[string]*sent
	next    int              // ids given
	order   []string         // ids, in order of sending
	fifo    map[string][]int // by message group: indexes into order
	refused []*sent          // sends whose home was away
	lites   map[string]*liteLife
	since   [2]time.Time   // since when a broker is up
	counts  map[string]int // what happened, over all seeds
	mutant  *zoneMutant    // nil: the zone is as it is
}

// Call of zoneModel connects the brokers that are up.
func (m *zoneModel) connect() {
	z := zoneOf{}
	for i, s := range m.s {
		if m.up[i] {
			z[s.self] = s.Broker
		}
	}
	for i, s := range m.s {
		if m.up[i] {
			s.SetCaller(z)
		}
	}
}

func newZoneModel(t *testing.T, seed uint64, counts map[string]int) *zoneModel {
	t.Helper()
	topo := sample(t, "topics:\n", zoneTopics, "consumer_groups:\n", zoneGroups)
	limits := testLimits()
	limits.SegmentBytes, limits.SnapshotBytes = 64<<10, 16<<10
	m := &zoneModel{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 11)), all: map[string]*sent{}, fifo: map[string][]int{}, counts: counts}
	for i, node := range []zone.Node{"rz01-a-1", "rz01-b-1"} {
		m.mem[i] = disk.NewMem()
		m.s[i], m.up[i] = &station{t: t, fs: m.mem[i], node: node, topo: topo, limits: limits}, true
		m.s[i].tap = slowLog(seed, m.s[i])
		begin(m.s[i])
		m.since[i] = time.Now()
	}
	m.startLite()
	m.connect()
	return m
}

// zoneMutant makes the zone appear to break a promise.
type zoneMutant struct {
	// delivered may change what a receive has brought, before it is judged.
	delivered func(m *zoneModel, i int, g zone.ConsumerGroup, list []Delivery) []Delivery
	publish   func(m *zoneModel, s *station, msg Message) Message // may change what is sent
	ended     func(m *zoneModel, i int)                           // comes after a restart
	asks      func(m *zoneModel, who seat) seat                   // who receives in fact, of lite topics
	sync      func(m *zoneModel, r LiteRequest) LiteRequest       // may change what a client says of lite topics
}

// brokenPromise is what fail says of a mutant.
type brokenPromise string

// TestZoneIsTheModel: random operations of producers and consumers on two brokers of
// a zone, with every kind of topic, restarts, power cuts and time, against what a
// user is promised.
func TestZoneIsTheModel(t *testing.T) {
	counts := map[string]int{}
	first, last := uint64(1), uint64(zoneSeeds) // MQROUTER_LONG: 100 times as many
	if os.Getenv("MQROUTER_LONG") != "" {
		last *= 100
	}
	if *zoneSeed != 0 {
		first, last = *zoneSeed, *zoneSeed
	}
	for seed := first; seed <= last; seed++ {
		synctest.Test(t, func(t *testing.T) { runZone(t, seed, counts) })
		if t.Failed() {
			t.Fatalf("-zone-seed %d replays it", seed)
		}
	}
	if first == last {
		return
	}
	t.Log(counts)
	for _, what := range []string{"sent", "copy", "unavailable", "sent at last", "received", "again", "acked", "late ack", "dead", "recalled", "committed",
		"rolled back", "restart", "crash", "away", "delayed", "hidden", "lost ack", "lite received", "lite over", "lite anew", "lite moved", "lite taken over"} {
		if counts[what] < zoneSeeds/5 {
			t.Errorf("%s happened %d times: the histories show too little: %v", what, counts[what], counts)
		}
	}
}

func runZone(t *testing.T, seed uint64, counts map[string]int) {
	m := newZoneModel(t, seed, counts)
	defer m.close()
	m.run()
}

func (m *zoneModel) run() {
	for range 500 {
		m.step()
	}
	m.finish()
}

func (m *zoneModel) close() {
	for i, s := range m.s {
		if m.up[i] {
			s.Close()
		}
	}
}

func (m *zoneModel) step() {
	switch n := m.rng.IntN(125); {
	case n >= 116:
		m.choose()
	case n >= 108:
		m.hear(m.rng.IntN(2), seat{liteReaders[m.rng.IntN(2)], liteSeats[m.rng.IntN(len(liteSeats))]}, 1+m.rng.IntN(8), time.Duration(1+m.rng.IntN(40))*time.Second)
	case n >= 100:
		m.say(liteNames[m.rng.IntN(1+m.rng.IntN(len(liteNames)))])
	case n < 26:
		m.send()
	case n < 32:
		m.sendAgain()
	case n < 40:
		m.decide()
	case n < 62:
		m.receive(m.rng.IntN(2), 1+m.rng.IntN(8), time.Duration(1+m.rng.IntN(40))*time.Second)
	case n < 82:
		m.settle()
	case n < 93:
		m.pass(time.Duration(m.rng.ExpFloat64() * float64(20*time.Second)))
	default:
		m.trouble()
	}
}

// living picks a broker that is up; one always is.
func (m *zoneModel) living() (int, *station) {
	i := m.rng.IntN(2)
	if !m.up[i] {
		i = 1 - i
	}
	return i, m.s[i]
}

// pick returns a random message that which accepts, or nil.
func (m *zoneModel) pick(which func(*sent) bool) *sent {
	if len(m.order) == 0 {
		return nil
	}
	from := m.rng.IntN(len(m.order))
	for i := range m.order {
		if x := m.all[m.order[(from+i)%len(m.order)]]; which(x) {
			return x
		}
	}
	return nil
}

func (m *zoneModel) fail(format string, args ...any) {
	m.t.Helper()
	if m.mutant != nil {
		panic(brokenPromise(fmt.Sprintf(format, args...)))
	}
	m.t.Fatalf("seed %d, %s: %s", m.seed, time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// due reports whether the message may be delivered.
func (x *sent) due() bool { return !x.never && !x.visible.IsZero() && !x.visible.After(time.Now()) }

// blocked returns a message of the same message group that must be settled first.
func (m *zoneModel) blocked(x *sent, g zone.ConsumerGroup) *sent {
	if x.topic == kindLite {
		return m.lites[x.message.MessageGroup].before(x, g)
	}
	if x.topic != kindFIFO {
		return nil
	}
	for _, at := range m.fifo[x.message.MessageGroup][:x.numbered] {
		before := m.all[m.order[at]]
		if r := before.ofGroup[g]; !r.settled && !r.acked && !r.unsure {
			return before
		}
	}
	return nil
}

// pass lets time go by. What was acknowledged a second ago is durable.
func (m *zoneModel) pass(d time.Duration) {
	for left := d; left > 0; left -= time.Minute { // longer, and clients of lite topics are forgotten
		time.Sleep(min(left, time.Minute))
		m.quick()
	}
	m.age()
	if d < time.Second {
		return
	}
	for _, id := range m.order {
		for _, r := range m.all[id].ofGroup {
			if r.acked {
				r.acked, r.settled = false, true
			}
		}
	}
}

// trouble restarts a broker, cuts its power, or leaves it away for a while.
func (m *zoneModel) trouble() {
	i := m.rng.IntN(2)
	switch kind := m.rng.IntN(3); {
	case !m.up[i]:
		m.s[i].start()
		m.up[i], m.since[i] = true, time.Now()
	case kind == 0:
		m.counts["restart"]++
		m.s[i].restart()
		m.ended(i, false)
	case kind == 1 || !m.up[1-i]:
		m.counts["crash"]++
		m.crash(i)
		m.s[i].start()
		m.ended(i, true)
	default:
		m.counts["away"]++
		m.crash(i)
		m.up[i] = false
		m.ended(i, true)
	}
	m.connect()
}

func (m *zoneModel) crash(i int) {
	kept := m.mem[i].Crash(m.rng)
	m.s[i].Close()
	m.mem[i], m.s[i].fs = kept, kept
}

// ended tells what the end of a broker changes for what it has.
func (m *zoneModel) ended(i int, crash bool) {
	m.endedLite(i)
	m.since[i] = time.Now()
	for _, id := range m.order {
		x := m.all[id]
		for _, r := range x.ofGroup {
			if r.hands == nil || r.hands.by != i {
				continue
			}
			r.hands.old = true
			if crash {
				r.hands.until = time.Time{} // what was in hands may be forgotten
				if r.acked {
					m.counts["lost ack"]++
					r.acked, r.unsure = false, true
				}
			}
			if r.acked {
				r.acked, r.settled = false, true
			}
		}
	}
	if m.mutant != nil && m.mutant.ended != nil && !crash {
		m.mutant.ended(m, i)
	}
}

// finish makes everything go well and holds the zone to it: what is to be delivered
// is, to each group, and nothing else ever was.
func (m *zoneModel) finish() {
	m.t.Helper()
	for i, up := range m.up {
		if !up {
			m.s[i].start()
			m.up[i], m.since[i] = true, time.Now()
		}
	}
	m.connect()
	m.finishLite()
	for _, id := range m.order {
		if x := m.all[id]; x.topic == kindTx && x.decided == ResolutionUnknown && x.handle != "" {
			m.end(m.s[0], x, ResolutionCommit)
		}
	}
	m.pass(2 * time.Hour) // beyond every delay, every invisible time and the life of lite topics
	m.forgottenLite()
	for range 40 {
		for i := range m.s {
			m.receive(i, 1000, time.Minute)
		}
		for _, id := range m.order {
			for g, r := range m.all[id].ofGroup {
				if r.hands != nil && !r.acked && !r.settled {
					m.ack(m.all[id], g, r)
				}
			}
		}
		m.pass(2 * time.Second)
	}
	for _, id := range m.order {
		x := m.all[id]
		for g, r := range x.ofGroup {
			if x.topic != kindLite && x.due() && !r.settled {
				m.fail("message %s of %s never came to group %s", id, x.topic, g)
			}
		}
	}
}

// groupsOf returns the groups that read a topic.
func groupsOf(t zone.Topic) []zone.ConsumerGroup {
	if t == kindLite {
		return liteReaders
	}
	if t == kindNormal {
		return []zone.ConsumerGroup{"one", "two"}
	}
	return []zone.ConsumerGroup{"one"}
}
