package broker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Lite topics in the model: few names, so that they come to an end and live anew, two
// groups whose clients choose, and a third that reads nothing, for which the log keeps
// what the others may be moved back to.
const (
	kindLite      = zone.Topic("m-lite")
	liteShared    = zone.ConsumerGroup("lite-shared")
	liteExclusive = zone.ConsumerGroup("lite-exclusive")
	liteTTL       = 3 * time.Minute

	zoneLiteTopic  = "  - {name: m-lite, kind: lite, route: local, lite: {topics: 50, ttl: 3m, subscriptions: 20}}\n"
	zoneLiteGroups = `  - {name: lite-shared, topics: [m-lite], max_attempts: 1000}
  - {name: lite-exclusive, topics: [m-lite], lite: exclusive, max_attempts: 1000}
  - {name: lite-keeper, topics: [m-lite]}
`
)

var (
	liteReaders = []zone.ConsumerGroup{liteShared, liteExclusive}
	liteNames   = []string{"l0", "l1", "l2", "l3", "l4"}
	liteSeats   = []string{"c0", "c1", "c2"} // clients of each group
)

// liteLife is what the model knows of a lite topic.
type liteLife struct {
	home    int       // broker
	used    time.Time // its newest message
	all     []*sent   // of the present life, in order
	unsure  bool      // its time was over, and whether it was forgotten before its next message is not known
	members map[seat]time.Time
	owner   map[zone.ConsumerGroup]string
}

// seat is a client of a group.
type seat struct {
	g      zone.ConsumerGroup
	client string
}

func (m *zoneModel) startLite() {
	m.lites = map[string]*liteLife{}
	z := m.s[0].view.Load().zone
	for _, name := range liteNames {
		l := &liteLife{members: map[seat]time.Time{}, owner: map[zone.ConsumerGroup]string{}}
		if z.SlotOwner(zone.HashSlot(name)).Name != m.s[0].self {
			l.home = 1
		}
		m.lites[name] = l
	}
}

// slowLog is a log whose appends of progress are slow, and whose records of forgotten
// lite topics are told late: what happens in between is what the model is after.
func slowLog(seed uint64, s *station) *tapLog {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 12)) // guarded by mu
	roll := func(n int, unit time.Duration) {
		mu.Lock()
		d := time.Duration(rng.IntN(n)) * unit
		mu.Unlock()
		time.Sleep(d)
	}
	tap := &tapLog{}
	before := func(b *commitlog.Batch) error {
		// Not of who waits for it: that is the move itself, for which all others wait.
		if !s.hasty.Load() && isProgress(b) && b.Result.(*op).finished != nil {
			roll(300, time.Millisecond)
		}
		return nil
	}
	after := func(b *commitlog.Batch) func() {
		v, err := record.Parse(b.Entries[0].Record)
		if err != nil || v.Type() != record.TypeLite || s.hasty.Load() {
			return nil
		}
		if l, err := parseLite(v.Body()); err != nil || l.group != "" {
			return nil
		}
		return func() { roll(15, time.Second) }
	}
	tap.appending.Store(&before)
	tap.appended.Store(&after)
	return tap
}

// age notes whose time is over: its messages may come or not, from then on.
func (m *zoneModel) age() {
	for _, l := range m.lites {
		if len(l.all) == 0 || time.Since(l.used) <= liteTTL {
			continue
		}
		m.counts["lite over"]++
		for _, x := range l.all {
			x.over = true
		}
		l.all, l.unsure = nil, true
	}
}

// said notes a message of a lite topic. Long after its time was over it was forgotten.
func (m *zoneModel) said(x *sent) {
	m.age()
	l := m.lites[x.message.MessageGroup]
	idle := time.Since(l.used)
	if long := 30 * time.Second; l.unsure && idle > liteTTL+long && time.Since(m.since[l.home]) > long {
		m.counts["lite anew"]++
		l.unsure = false
		for _, id := range m.order {
			if y := m.all[id]; y.topic == kindLite && y.over && y.message.MessageGroup == x.message.MessageGroup {
				y.never = true
			}
		}
	}
	l.used, l.all = time.Now(), append(l.all, x)
}

// quick has the clients of the lite groups be heard.
func (m *zoneModel) quick() {
	for i, s := range m.s {
		if !m.up[i] {
			continue
		}
		for _, h := range s.handsList() {
			if h.lite != nil {
				for _, c := range liteSeats {
					h.lite.heard(c, s.now())
				}
			}
		}
	}
}

// before returns a message of the same lite topic that must be settled first.
func (l *liteLife) before(x *sent, g zone.ConsumerGroup) *sent {
	for _, y := range l.all {
		if y == x {
			return nil
		}
		if r := y.ofGroup[g]; !r.settled && !r.acked && !r.unsure {
			return y
		}
	}
	return nil
}

// choose has a client say what it wants of lite topics, at any broker.
func (m *zoneModel) choose() {
	m.t.Helper()
	who := seat{liteReaders[m.rng.IntN(2)], liteSeats[m.rng.IntN(len(liteSeats))]}
	name := liteNames[m.rng.IntN(len(liteNames))]
	r := LiteRequest{Group: who.g, Topic: kindLite, ClientID: who.client, Names: []string{name}}
	switch m.rng.IntN(8) {
	case 0, 1, 2:
		r.Action = LiteAdd
	case 3:
		r.Action = LiteRemove
	case 4, 5:
		r.Action = LiteReplace
		for _, other := range liteNames {
			if other != name && m.rng.IntN(2) == 0 {
				r.Names = append(r.Names, other)
			}
		}
	default:
		m.move(r, m.lites[name])
		return
	}
	m.sync(r)
}

// sync tells it, and notes what that means.
func (m *zoneModel) sync(r LiteRequest) {
	m.t.Helper()
	if m.mutant != nil && m.mutant.sync != nil {
		r = m.mutant.sync(m, r)
	}
	_, s := m.living()
	err := s.SyncLite(m.t.Context(), r)
	if r.Action != LiteReplace && !m.up[m.lites[r.Names[0]].home] {
		if KindOf(err) != KindUnavailable {
			m.fail("%s says that it wants %v, whose home is away: %v", r.ClientID, r.Names, err)
		}
		return
	}
	if err != nil {
		m.fail("%s says %d of %v: %v", r.ClientID, r.Action, r.Names, err)
	}
	who := seat{r.Group, r.ClientID}
	for name, l := range m.lites {
		since, has := l.members[who]
		named := slices.Contains(r.Names, name)
		switch {
		case !m.up[l.home]:
		case r.Action == LiteRemove && named, r.Action == LiteReplace && !named && has && time.Since(since) >= liteGrace:
			delete(l.members, who)
			if l.owner[who.g] == who.client {
				delete(l.owner, who.g)
			}
		case !named || has || r.Action == LiteRemove:
		case r.Action == LiteReplace && who.g == liteExclusive && l.owner[who.g] != "":
		default:
			if who.g == liteExclusive {
				if was := l.owner[who.g]; was != "" {
					m.counts["lite taken over"]++
					delete(l.members, seat{who.g, was})
				}
				l.owner[who.g] = who.client
			}
			l.members[who] = time.Now()
		}
	}
}

// move has a group go on elsewhere in a lite topic, while progress is on its way.
func (m *zoneModel) move(r LiteRequest, l *liteLife) {
	m.t.Helper()
	time.Sleep(time.Duration(m.rng.IntN(200)) * time.Millisecond)
	m.age()
	if len(l.all) == 0 || l.unsure || !m.up[l.home] || time.Since(l.used) > liteTTL-time.Minute {
		return
	}
	m.counts["lite moved"]++
	at := m.rng.IntN(len(l.all) + 1)
	r.Action = LiteAdd
	switch m.rng.IntN(3) {
	case 0:
		r.From, at = LiteFromMin, 0
	case 1:
		r.From, at = LiteFromMax, len(l.all)
	default:
		r.From, r.N = LiteFromTail, int64(len(l.all)-at)
	}
	for i, x := range l.all {
		*x.ofGroup[r.Group] = reading{settled: i < at}
	}
	m.sync(r)
}

// hear has a client of a lite group receive at a broker.
func (m *zoneModel) hear(i int, who seat, most int, invisible time.Duration) {
	m.t.Helper()
	if !m.up[i] {
		return
	}
	asks := who
	if m.mutant != nil && m.mutant.asks != nil {
		asks = m.mutant.asks(m, who)
	}
	list, err := m.s[i].Receive(m.t.Context(), ReceiveRequest{Group: asks.g, Topic: kindLite, Filter: Filter{All: true},
		Max: most, Invisible: invisible, ClientID: asks.client})
	if err != nil {
		m.fail("receive of %s: %v", who.client, err)
	}
	m.age()
	if m.mutant != nil && m.mutant.delivered != nil {
		list = m.mutant.delivered(m, i, who.g, list)
	}
	for _, d := range list {
		x, l := m.all[string(d.Record.MessageID())], m.lites[string(d.Record.MessageGroup())]
		switch {
		case x == nil || l == nil || x.message.MessageGroup != string(d.Record.MessageGroup()):
			m.fail("%s of %s was delivered: nobody sent that", d.Record.MessageID(), d.Record.MessageGroup())
		case x.never:
			m.fail("message %s of a former life of lite topic %s was delivered", x.id, x.message.MessageGroup)
		case l.members[who].IsZero():
			m.fail("message %s came to %s of %s, which has not named %s", x.id, who.client, who.g, x.message.MessageGroup)
		case x.over: // it may stand before others of its name
			if err := m.s[i].Ack(m.t.Context(), who.g, kindLite, d.Handle); err != nil && KindOf(err) != KindHandle {
				m.fail("acknowledge %s: %v", x.id, err)
			}
		default:
			m.counts["lite received"]++
			m.took(i, who.g, kindLite, d, time.Now().Add(invisible))
		}
	}
}

// endedLite: a broker that ends forgets who wants what.
func (m *zoneModel) endedLite(i int) {
	for _, l := range m.lites {
		if l.home == i {
			clear(l.members)
			clear(l.owner)
		}
	}
}

// finishLite: who names a lite topic gets all of it that is left.
func (m *zoneModel) finishLite() {
	m.t.Helper()
	m.age()
	for _, s := range m.s {
		s.hasty.Store(true)
	}
	time.Sleep(liteGrace)
	for _, name := range slices.Sorted(maps.Keys(m.lites)) {
		if len(m.lites[name].all) > 0 {
			m.say(name)
		}
	}
	m.sync(LiteRequest{Group: liteShared, Topic: kindLite, ClientID: "c0", Action: LiteReplace, Names: liteNames})
	for _, name := range liteNames {
		m.sync(LiteRequest{Group: liteExclusive, Topic: kindLite, ClientID: "c1", Action: LiteAdd, Names: []string{name}})
	}
	for range 80 {
		for i := range m.s {
			m.hear(i, seat{liteShared, "c0"}, 1000, time.Minute)
			m.hear(i, seat{liteExclusive, "c1"}, 1000, time.Minute)
		}
		for _, name := range liteNames {
			for _, x := range m.lites[name].all {
				for _, g := range liteReaders {
					if r := x.ofGroup[g]; r.hands != nil && !r.acked && !r.settled {
						m.ack(x, g, r)
					}
				}
			}
		}
		m.pass(time.Second)
		m.quick()
	}
	for _, name := range liteNames {
		for _, x := range m.lites[name].all {
			for _, g := range liteReaders {
				if !x.ofGroup[g].settled {
					m.fail("message %s of lite topic %s never came to group %s", x.id, name, g)
				}
			}
		}
	}
}

// forgottenLite: when all their time is over, nothing is left of them.
func (m *zoneModel) forgottenLite() {
	m.t.Helper()
	for _, s := range m.s {
		st := s.Status()
		for _, g := range st.Groups {
			if g.Topic == kindLite && g.Lag != 0 && !strings.HasPrefix(string(g.Group), "@") {
				m.fail("every lite topic is over, and the lag of %s at %s is %d", g.Group, s.self, g.Lag)
			}
		}
		for _, t := range st.Topics {
			if t.Topic == kindLite && t.Lite.Topics != 0 {
				m.fail("%d lite topics outlive their time at %s", t.Lite.Topics, s.self)
			}
		}
	}
}

// say publishes a message of a lite topic.
func (m *zoneModel) say(name string) {
	m.t.Helper()
	_, s := m.living()
	m.next++
	x := &sent{id: fmt.Sprint(m.next), topic: kindLite, ofGroup: map[zone.ConsumerGroup]*reading{}}
	for _, g := range liteReaders {
		x.ofGroup[g] = &reading{}
	}
	x.message = s.message(kindLite, x.id)
	x.message.MessageGroup = name
	m.publish(s, x)
}
