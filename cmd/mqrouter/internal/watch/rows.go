package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// Order is how the rows of a section are sorted.
type Order uint8

// The orders.
const (
	ByTrouble Order = iota // what is wrong first, then what has most to do
	ByName
	ByRate // what moves most first
	orders
)

// Next returns the order after o, round and round.
func (o Order) Next() Order { return (o + 1) % orders }

// String returns the order in words.
func (o Order) String() string { return [...]string{"trouble", "name", "rate"}[o%orders] }

// row is a line of a section.
type row struct {
	health Health
	weight uint64  // the more, the higher, among equals in health
	speed  float64 // for ByRate
	name   string  // for ByName, and where all else is equal
	cells  []string
}

// section is a table of the picture.
type section struct {
	title string
	head  []string
	right []bool // columns that stand at the right
	drop  []int  // columns that a narrow screen may do without, in this order
	rows  []row
	empty string // what is said without rows
}

func (s *section) sort(o Order) {
	slices.SortStableFunc(s.rows, func(a, b row) int {
		switch o {
		case ByName:
			return cmp.Compare(a.name, b.name)
		case ByRate:
			return cmp.Or(-cmp.Compare(a.speed, b.speed), cmp.Compare(a.name, b.name))
		}
		return cmp.Or(-cmp.Compare(a.health, b.health), -cmp.Compare(a.weight, b.weight), cmp.Compare(a.name, b.name))
	})
}

// sections returns the tables in the order of the screen.
func (m *Model) sections() []section {
	return []section{m.links(), m.flows(), m.consumers(), m.caches()}
}

// pair is a pair of cities, or of places of a flow.
type pair struct{ from, to, class string }

// linkSum is all links of a pair of cities and a class.
type linkSum struct {
	up, all        int
	rtt            time.Duration // the lowest
	sessions       int
	sent, received rate
	why, via       string
}

func (m *Model) linkSums() map[pair]*linkSum {
	sums := map[pair]*linkSum{}
	of := func(p pair) *linkSum {
		if sums[p] == nil {
			sums[p] = &linkSum{}
		}
		return sums[p]
	}
	for i := range m.nodes {
		s := &m.nodes[i]
		for _, l := range s.Links {
			p := pair{s.City, l.City, l.Class}
			forward := p.from <= p.to
			if !forward {
				p.from, p.to = p.to, p.from
			}
			k := of(p)
			k.all++
			key := "link/" + s.Node + "/" + l.Peer + "/" + l.Class
			sent := m.rate(key + "/sent")
			if forward {
				k.sent = k.sent.plus(sent)
			} else {
				k.received = k.received.plus(sent)
			}
			if l.State != linkUp {
				k.why = cmp.Or(k.why, s.Node+" - "+l.Peer+" "+strings.TrimSuffix(l.State+": "+oneLine(l.Problem), ": "))
				continue
			}
			k.up++
			if forward { // each session has an end at both
				k.sessions += l.Sessions
			}
			if l.RTT > 0 && (k.rtt == 0 || l.RTT < k.rtt) {
				k.rtt = l.RTT
			}
		}
		for _, way := range s.Paths {
			if way.Via != "" {
				k := of(pair{min(s.City, way.City), max(s.City, way.City), way.Class})
				k.via = way.Via
			}
		}
	}
	return sums
}

// crossing returns how many records settle each second from one city in another.
func (m *Model) crossing() map[pair]rate {
	sums := map[pair]rate{}
	for i := range m.nodes {
		s := &m.nodes[i]
		for _, f := range s.Flows {
			if f.City == s.City {
				continue
			}
			p := pair{min(s.City, f.City), max(s.City, f.City), f.Class}
			sums[p] = sums[p].plus(m.rate(flowKey(s, &f)))
		}
	}
	return sums
}

func (m *Model) links() section {
	sec := section{title: "LINKS", head: []string{"LINKS", "CLASS", "UP", "RTT", "SESSIONS", "OUT/S", "IN/S", "REC/S", "STATE"},
		drop:  []int{4},
		right: []bool{false, false, true, true, true, true, true, true, false}, empty: "no links between routers"}
	records := m.crossing()
	for p, k := range m.linkSums() {
		r := row{name: p.from + " - " + p.to + " " + p.class, speed: k.sent.perSecond + k.received.perSecond}
		state := "up"
		switch {
		case k.up == 0:
			r.health, state = Ill, "down: "+k.why
		case k.via != "":
			r.health, state = Odd, "round over "+k.via
		case k.up < k.all:
			r.health, state = Odd, k.why
		}
		r.weight = uint64(k.all - k.up)
		r.cells = []string{p.from + " - " + p.to, p.class, fmt.Sprintf("%d/%d", k.up, k.all), lapse(k.rtt), number(uint64(k.sessions)),
			k.sent.bytes(), k.received.bytes(), records[p].text(), state}
		sec.rows = append(sec.rows, r)
	}
	return sec
}

// flowSum is all lanes of a flow to one destination.
type flowSum struct {
	backlog uint64
	change  change
	settled rate
	oldest  time.Duration
	lost    uint64
	states  []string
	health  Health
}

// Ages of the oldest record at which a flow is odd, and ill.
const (
	oddAge = 10 * time.Second
	illAge = time.Minute
)

// health judges a lane by what it does with its backlog.
func flowHealth(f *admin.Flow) Health {
	switch {
	case f.Removed, f.State == "diverged", f.State == "sealed":
		return Ill
	case f.Backlog == 0:
		return Well
	case f.OldestAge >= illAge:
		return Ill
	case f.OldestAge >= oddAge, f.Held != "", f.State == "waiting", f.State == "held":
		return Odd
	}
	return Well
}

func (m *Model) flows() section {
	sec := section{title: "FLOWS", head: []string{"FLOWS", "TO", "CLASS", "BACKLOG", "CHANGE", "REC/S", "OLDEST", "LOST", "STATE"},
		drop:  []int{7, 2},
		right: []bool{false, false, false, true, true, true, true, true, false}, empty: "no flows"}
	sums := map[pair]*flowSum{}
	for i := range m.nodes {
		s := &m.nodes[i]
		for _, f := range s.Flows {
			from, to := s.Group, f.Group
			if f.Origin != "" {
				from += " (of " + f.Origin + ")"
			}
			if f.Channel {
				to += " (" + f.Target + ")"
			}
			p := pair{from, InCity(to, f.City), f.Class}
			k := sums[p]
			if k == nil {
				k = &flowSum{}
				sums[p] = k
			}
			k.backlog += f.Backlog
			k.lost += f.Lost
			k.settled = k.settled.plus(m.rate(flowKey(s, &f)))
			k.change = k.change.plus(m.change(flowKey(s, &f) + "/backlog"))
			k.oldest = max(k.oldest, f.OldestAge)
			state := strings.TrimSuffix(f.State+": "+oneLine(f.Held), ": ")
			switch h := flowHealth(&f); {
			case h > k.health:
				k.health, k.states = h, []string{state}
			case h == k.health && !slices.Contains(k.states, state):
				k.states = append(k.states, state)
			}
		}
	}
	for p, k := range sums {
		lost := ""
		if k.lost > 0 {
			lost = number(k.lost)
		}
		slices.Sort(k.states)
		sec.rows = append(sec.rows, row{health: k.health, weight: k.backlog, speed: k.settled.perSecond, name: p.from + " " + p.to + " " + p.class,
			cells: []string{p.from, p.to, p.class, number(k.backlog), k.change.text(), k.settled.text(), lapse(k.oldest), lost, firstOf(k.states)}})
	}
	return sec
}

// InCity names a destination and its city, which a destination that left the
// topology does not have.
func InCity(to, city string) string {
	if city == "" {
		return to
	}
	return to + " in " + city
}

// firstOf keeps a line readable: lanes that wait for one broker over two routers
// give two long reasons that say the same.
func firstOf(states []string) string {
	if len(states) > 1 && len(states[0]) > longState {
		return fmt.Sprintf("%s (and %d more like it: mqrouter status)", states[0], len(states)-1)
	}
	return strings.Join(states, ", ")
}

// longState is the length of a state from which on one is enough for a line.
const longState = 40

// consumerSum is a consumer group's use of a topic in a zone.
type consumerSum struct {
	lag      uint64
	inFlight int
	waiting  int
	consumed rate
	change   change
	starved  bool // a broker has messages and nobody took any
}

func (m *Model) consumers() section {
	sec := section{title: "CONSUMERS", head: []string{"CONSUMERS", "TOPIC", "ZONE", "LAG", "CHANGE", "TAKEN/S", "IN FLIGHT", "STATE"},
		drop:  []int{6},
		right: []bool{false, false, false, true, true, true, true, false}, empty: "no consumer groups"}
	sums := map[pair]*consumerSum{}
	for i := range m.nodes {
		s := &m.nodes[i]
		for _, c := range s.Consumers {
			if c.Cache {
				continue // below, as a cache
			}
			p := pair{c.Group, c.Topic, s.Zone}
			k := sums[p]
			if k == nil {
				k = &consumerSum{}
				sums[p] = k
			}
			lag, published := m.change("lag/"+s.Node+"/"+c.Group+"/"+c.Topic), m.rate("topic/"+s.Node+"/"+c.Topic)
			k.lag += c.Lag
			k.inFlight += c.InFlight
			k.waiting += c.Waiting
			k.change = k.change.plus(lag)
			if took := m.at.Sub(m.before).Seconds(); lag.known && published.known && took > 0 {
				done := max(published.perSecond-float64(lag.by)/took, 0)
				k.consumed = k.consumed.plus(rate{done, true})
				k.starved = k.starved || (c.Lag > 0 && done == 0 && c.InFlight == 0)
			}
		}
	}
	for p, k := range sums {
		r := row{weight: k.lag, speed: k.consumed.perSecond, name: p.from + " " + p.to + " " + p.class}
		state := ""
		switch {
		case k.lag > 0 && k.starved:
			r.health, state = Odd, "nobody consumes"
		case k.lag > 0 && k.change.by > 0:
			r.health, state = Odd, "falls behind"
		case k.lag > 0 && k.change.known:
			state = "catches up"
		case k.waiting > 0:
			state = "waits for messages"
		}
		r.cells = []string{p.from, p.to, p.class, number(k.lag), k.change.text(), k.consumed.text(), number(uint64(k.inFlight)), state}
		sec.rows = append(sec.rows, r)
	}
	return sec
}

func (m *Model) caches() section {
	sec := section{title: "CACHES", head: []string{"CACHES", "CITY", "LAG", "APPLIED/S", "GAPS", "STATE", "WATERMARKS"},
		right: []bool{false, false, true, true, true, false, false}, empty: "no caches"}
	for i := range m.nodes {
		s := &m.nodes[i]
		c := s.Cache
		if c == nil {
			continue
		}
		applied := m.rate("cache/" + s.Node)
		r := row{weight: c.Lag, speed: applied.perSecond, name: s.Node}
		state := c.State
		if c.Problem != "" {
			state += ": " + oneLine(c.Problem)
		}
		switch {
		case c.State != "following":
			r.health = Ill
		case c.Problem != "" || c.Gaps > c.Fills:
			r.health = Odd
		}
		var marks []string
		for _, w := range c.Watermarks {
			marks = append(marks, fmt.Sprintf("%s=%d", w.Origin, w.Number))
		}
		r.cells = []string{s.Node, s.City, number(c.Lag), applied.text(), GapsText(c), state, strings.Join(marks, " ")}
		sec.rows = append(sec.rows, r)
	}
	return sec
}

// GapsText tells the gaps of a cache after which it may be out of date apart
// from those of its first fill, when it had nothing that could be.
func GapsText(c *admin.Cache) string {
	text := number(c.Gaps - min(c.Fills, c.Gaps))
	if c.Fills > 0 {
		text += fmt.Sprintf(" (+%d fill)", c.Fills)
	}
	return text
}
