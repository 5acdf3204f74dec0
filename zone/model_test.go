package zone

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"
)

var seedFlag = flag.Uint64("seed", 1, "seed of the random topologies and queries")

// model is a deployment in the plainest form, from which both a file and the
// expected answers are made.
type model struct {
	cities []modelCity
	zones  []modelZone
	shards int
	by     string
	owner  []int // zone by shard
	gzone  int   // index of the active GZone; -1 without one
}

type modelCity struct {
	name  string
	czone int
}

type modelZone struct {
	name, kind string
	city       int
	splits     []int // first slot of each group; the first is 0
}

// randomModel makes a deployment of 1 to 5 cities.
func randomModel(r *rand.Rand) *model {
	m := &model{gzone: -1, by: []string{"last-digits", "modulo", "xxhash"}[r.IntN(3)]}
	m.shards = []int{1, 10, 100, 1000}[r.IntN(4)]
	if m.by != "last-digits" {
		m.shards = 1 + r.IntN(500)
	}
	gcity := r.IntN(5)
	var rzones []int
	for c := range 1 + r.IntN(5) {
		city := modelCity{name: fmt.Sprintf("city%d", c)}
		add := func(kind string) int {
			z := modelZone{name: fmt.Sprintf("zone%d", len(m.zones)), kind: kind, city: c, splits: []int{0}}
			for at := 1 + r.IntN(600); at < Slots && len(z.splits) < 4; at += 1 + r.IntN(600) {
				z.splits = append(z.splits, at)
			}
			m.zones = append(m.zones, z)
			return len(m.zones) - 1
		}
		for range r.IntN(4) {
			rzones = append(rzones, add("RZone"))
		}
		if c == gcity {
			m.gzone = add("GZone")
		}
		city.czone = add("CZone")
		m.cities = append(m.cities, city)
	}
	if len(rzones) == 0 {
		m.shards = 0
	}
	for range m.shards {
		m.owner = append(m.owner, rzones[r.IntN(len(rzones))])
	}
	return m
}

// yaml writes the model as a topology file with one topic for each route, and
// a second one of each that may stay in city0 only, where that is valid.
func (m *model) yaml() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	port := 0
	addr := func() string { port++; return fmt.Sprintf("10.%d.%d.1:7000", port/250, port%250+1) }
	p("deployment: model\nepoch: 1.1")
	if m.shards > 0 {
		p("shards:\n  count: %d\n  by: %s\n  owners:", m.shards, m.by)
		owned := make([][]uint32, len(m.zones))
		for s, z := range m.owner {
			owned[z] = append(owned[z], uint32(s))
		}
		for z, list := range owned {
			if len(list) > 0 {
				p("    %s: \"%s\"", m.zones[z].name, everyRange(list))
			}
		}
	}
	p("cities:")
	for c, city := range m.cities {
		p("  - name: %s\n    routers: [{name: r%d, quic: %s, peer: %s, gossip: %s, wan: %s}]\n    zones:", city.name, c, addr(), addr(), addr(), addr())
		for i, z := range m.zones {
			if z.city != c {
				continue
			}
			p("      - name: %s\n        kind: %s\n        standby: none\n        groups:", z.name, z.kind)
			for g, first := range z.splits {
				last := Slots - 1
				if g+1 < len(z.splits) {
					last = z.splits[g+1] - 1
				}
				p("          - {name: g%d-%d, slots: %d-%d, nodes: [{name: n%d-%d, client: %s, peer: %s, gossip: %s}]}",
					i, g, first, last, i, g, addr(), addr(), addr())
			}
		}
	}
	p("topics:\n  - {name: local, route: local}\n  - {name: local0, route: local, residency: [city0]}")
	p("  - {name: explicit, route: {explicit: key}}\n  - {name: explicit0, route: {explicit: key}, residency: [city0]}")
	p("  - {name: all, route: {broadcast: city}}\n  - {name: everywhere, route: {broadcast: zone}}")
	if m.shards > 0 {
		p("  - {name: shard, route: {shard: key}}\n  - {name: fifo, kind: fifo, route: {shard: message_group}}")
	}
	if m.gzone >= 0 {
		p("  - {name: global, route: global}")
	}
	return b.String()
}

func everyRange(list []uint32) string {
	parts := make([]string, len(list))
	for i, n := range list {
		parts[i] = fmt.Sprint(n)
	}
	return strings.Join(parts, ",")
}

// destination returns the index of the zone where the query lands, or -1.
func (m *model) destination(topology *Topology, q Query) int {
	zone := -1
	switch strings.TrimSuffix(string(q.Topic.Name), "0") {
	case "local":
		zone = q.From.Index
	case "global":
		zone = m.gzone
	case "shard", "fifo":
		if s, err := topology.ShardOf(q.User); err == nil {
			zone = m.owner[s]
		}
	case "explicit":
		for i, z := range m.zones {
			if z.name == q.Destination {
				zone = i
			}
		}
		for _, c := range m.cities {
			if c.name == q.Destination {
				zone = c.czone
			}
		}
	}
	if zone >= 0 && strings.HasSuffix(string(q.Topic.Name), "0") && (m.zones[zone].city != 0 || q.From.City.Index != 0) {
		return -1
	}
	return zone
}

func randomQuery(r *rand.Rand, m *model, topology *Topology) Query {
	q := Query{
		Topic: topology.Topics[r.IntN(len(topology.Topics))], From: topology.Zones()[r.IntN(len(topology.Zones()))],
		MessageID: fmt.Sprintf("%X", r.Uint64()),
	}
	switch r.IntN(4) {
	case 0:
		q.User = fmt.Sprint(r.Uint64())
	case 1:
		q.User = fmt.Sprint(r.IntN(20000))
	case 2:
		q.User = []string{"", "abc", "12x", "user-77"}[r.IntN(4)]
	case 3:
		q.User = "u" + fmt.Sprint(r.Uint32())
	}
	switch r.IntN(3) {
	case 0:
		q.Destination = m.zones[r.IntN(len(m.zones))].name
	case 1:
		q.Destination = m.cities[r.IntN(len(m.cities))].name
	case 2:
		q.Destination = []string{"", "nowhere", "zone"}[r.IntN(3)]
	}
	if r.IntN(3) == 0 {
		q.MessageGroup = fmt.Sprintf("group%d", r.IntN(100))
	}
	return q
}

func TestResolveAgreesWithAPlainModel(t *testing.T) {
	for round := range uint64(25) {
		h := fnv.New64a()
		fmt.Fprintf(h, "resolve %d", round)
		r := rand.New(rand.NewPCG(*seedFlag, h.Sum64()))
		m := randomModel(r)
		topology := mustParse(t, m.yaml())
		for range 200 {
			q := randomQuery(r, m, topology)
			d, err := topology.Resolve(q)
			if problem := m.check(topology, q, d, err); problem != "" {
				t.Fatalf("-seed %d, round %d: %s\ntopic %s from %s user %q destination %q group %q: %+v, %v", *seedFlag, round, problem,
					q.Topic.Name, q.From.Name, q.User, q.Destination, q.MessageGroup, d, err)
			}
			steps := topology.Explain(q)
			if last := steps[len(steps)-1].Title; (last == "refused") != (err != nil) {
				t.Fatalf("-seed %d, round %d: the explanation ends with %q, and the answer is %v", *seedFlag, round, last, err)
			}
		}
	}
}

// check says in which way an answer differs from the model's, or "".
func (m *model) check(topology *Topology, q Query, d Destination, err error) string {
	if q.Topic.Channel != nil {
		if err != nil || d.Reach != ReachBroadcast || d.Channel != q.Topic.Channel || d.Slot != HashSlot(string(q.Topic.Name)) || d.Zone != nil {
			return "a broadcast goes to its channel"
		}
		return ""
	}
	want := m.destination(topology, q)
	if want < 0 || err != nil {
		if want < 0 && err != nil {
			return ""
		}
		return fmt.Sprintf("want zone %d", want)
	}
	z := m.zones[want]
	group := 0
	for g, first := range z.splits {
		if int(d.Slot) >= first {
			group = g
		}
	}
	reach := ReachFar
	switch {
	case q.From.Index == want:
		reach = ReachZone
	case q.From.City.Index == z.city:
		reach = ReachCity
	}
	slot := HashSlot(q.MessageID)
	switch {
	case q.MessageGroup != "":
		slot = HashSlot(q.MessageGroup)
	case d.HasShard:
		slot = ShardSlot(d.Shard)
	}
	switch {
	case string(d.Zone.Name) != z.name:
		return "want zone " + z.name
	case d.Slot != slot || topology.SlotOf(q) != slot:
		return fmt.Sprintf("want slot %d", slot)
	case string(d.Group.Name) != fmt.Sprintf("g%d-%d", want, group):
		return fmt.Sprintf("want group g%d-%d", want, group)
	case d.Reach != reach:
		return fmt.Sprintf("want reach %s", reach)
	case !topology.LandsIn(q.Topic, d.Zone):
		return "lands where LandsIn says that it cannot"
	case d.HasShard != (q.Topic.Route.Kind == RouteShard):
		return "a shard stands in the answer of shard routes"
	}
	return ""
}

func TestLandingsAreWhereResolveSends(t *testing.T) {
	topology := sampleTopology(t)
	for topic, want := range map[Topic]string{
		"orders":   "rz01 rz02 gz01 cz-sh rz03 rz04 gz02 cz-hz rz05 cz-sz",
		"transfer": "rz01 rz02 rz03 rz04 rz05",
		"directed": "rz01 rz02 gz01 cz-sh rz03 rz04 gz02 cz-hz rz05 cz-sz",
		"ledger":   "gz01", "audit": "gz01", "member": "cz-sh cz-hz cz-sz",
	} {
		var got []string
		for _, z := range topology.Landings(topology.FindTopic(topic)) {
			got = append(got, string(z.Name))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s lands in %v, want %s", topic, got, want)
		}
	}
	for _, c := range []struct {
		group ConsumerGroup
		zone  Zone
		want  bool
	}{
		{"orders-billing", "rz05", true}, {"transfer-credit", "rz01", true}, {"transfer-credit", "gz01", false},
		{"ledger-book", "gz02", true}, {"ledger-book", "rz01", false}, {"member-cache", "cz-hz", true}, {"member-cache", "rz03", false},
	} {
		if got := topology.ConsumedIn(topology.FindConsumerGroup(c.group), topology.FindZone(c.zone)); got != c.want {
			t.Errorf("%s consumes in %s: %t", c.group, c.zone, got)
		}
	}
	if topology.ConsumedIn(nil, topology.FindZone("rz01")) || topology.ConsumedIn(topology.FindConsumerGroup("ledger-book"), nil) ||
		topology.LandsIn(nil, nil) {
		t.Error("nothing lands in no zone")
	}
}
