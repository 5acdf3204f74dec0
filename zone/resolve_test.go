package zone

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestResolveSaysWhyThereIsNoDestination(t *testing.T) {
	topology := sampleTopology(t)
	for _, c := range []struct {
		topic Topic
		from  Zone
		key   string
		want  *ResolveError
		text  string
	}{
		{"nothing", "rz01", "k", ErrUnknownTopic, "does not declare the topic"},
		{"orders", "nowhere", "k", ErrUnknownOrigin, "zone of origin"},
		{"transfer", "rz01", "", ErrMissingUser, "no user id (read from property userId)"},
		{"transfer", "rz01", "u12b", ErrBadUser, "digits"},
		{"directed", "rz01", "", ErrMissingDestination, "read from property destination"},
		{"directed", "rz01", "atlantis", ErrUnknownDestination, "neither a zone nor a city"},
		{"audit", "rz05", "k", ErrOriginForbidden, "where the message was published"},
	} {
		_, err := topology.Resolve(QueryFor(topology.FindTopic(c.topic), topology.FindZone(c.from), c.key))
		var e *ResolveError
		if !errors.Is(err, c.want) || !errors.As(err, &e) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s %q: got %v, want %v", c.topic, c.key, err, c.want)
			continue
		}
		if c.want != ErrUnknownTopic && (e.Topic != c.topic || !strings.HasPrefix(e.Error(), "topic "+string(c.topic)+": ")) {
			t.Errorf("%s: the error names topic %q: %v", c.topic, e.Topic, e)
		}
	}
}

func TestResolveRefusesADestinationThatResidencyForbids(t *testing.T) {
	text := replaced(t, sampleText(t), "route: {explicit: {property: destination}}", "route: {explicit: {property: destination}}\n    residency: [shanghai, hangzhou]")
	topology := mustParse(t, text)
	directed, from := topology.FindTopic("directed"), topology.FindZone("rz01")
	for destination, want := range map[string]error{
		"rz03": nil, "hangzhou": nil, "rz05": ErrDestinationForbidden, "shenzhen": ErrDestinationForbidden,
	} {
		if _, err := topology.Resolve(QueryFor(directed, from, destination)); !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("%s: got %v, want %v", destination, err, want)
		}
	}
}

func TestResolveTakesValuesOfAnotherEpochByName(t *testing.T) {
	old := sampleTopology(t)
	text := sampleText(t)
	text = text[:strings.Index(text, "  # Services that want")] // no member-watch and member-cache
	text = replaced(t, text, "rz05: 80-99", "rz01: 80-99")
	text = strings.Replace(text, "    rz01: 0-19\n", "", 1)
	text = replaced(t, text, "rz02: 20-39", "rz02: 0-39")
	text = replaced(t, text, "  - name: orders\n", "  - name: orders2\n")
	text = replaced(t, text, "topics: [orders]", "topics: [orders2]")
	text = replaced(t, text, "route: {shard: {property: userId}}", "route: {shard: {property: userId}}\n    residency: [shanghai, hangzhou, shenzhen]")
	text = replaced(t, text, "  - name: shanghai\n", "  - name: first\n    routers: [{name: x, quic: a:1, peer: a:1, gossip: a:2, wan: a:3}]\n"+
		"    zones: [{name: cz-first, kind: CZone, groups: [{name: cz-first-a, nodes: [{name: cz-first-a-1, client: b:1, peer: b:2, gossip: b:3}]}]}]\n  - name: shanghai\n")
	now := mustParse(t, text)
	for _, pair := range [][2]*Topology{{old, now}, {now, old}} {
		values, topology := pair[0], pair[1]
		q := Query{Topic: values.FindTopic("transfer"), From: values.FindZone("rz01"), User: "85", MessageID: "id"}
		own := Query{Topic: topology.FindTopic("transfer"), From: topology.FindZone("rz01"), User: "85", MessageID: "id"}
		got, err := topology.Resolve(q)
		want, _ := topology.Resolve(own)
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := now.Resolve(Query{Topic: old.FindTopic("orders"), From: old.FindZone("cz-sz")}); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("a topic that is no more: %v", err)
	}
	if _, err := old.Resolve(Query{Topic: old.FindTopic("ledger"), From: now.FindZone("cz-first")}); !errors.Is(err, ErrUnknownOrigin) {
		t.Errorf("a zone that is not yet: %v", err)
	}
}

func TestResolveErrorsMatchByKindAndTopic(t *testing.T) {
	topology := sampleTopology(t)
	_, err := topology.Resolve(QueryFor(topology.FindTopic("transfer"), topology.FindZone("rz01"), ""))
	if errors.Is(err, ErrBadUser) || !errors.Is(err, &ResolveError{Kind: MissingUser, Topic: "transfer"}) ||
		errors.Is(err, &ResolveError{Kind: MissingUser, Topic: "orders"}) {
		t.Errorf("%v matches wrongly", err)
	}
	for k := range resolveKinds {
		if k == 0 {
			continue
		}
		if e := generic(k); e.Kind != k || strings.Contains(k.String(), "reason ") {
			t.Errorf("kind %d has no error or no words: %v", k, e)
		}
	}
	if _, err := (&Topology{}).Resolve(Query{Topic: &TopicInfo{Route: Route{Kind: RouteGlobal}}}); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("values made by hand: %v", err)
	}
	if _, err := (&Topology{}).ShardOf("1"); !errors.Is(err, ErrShardUnowned) {
		t.Errorf("without shards: %v", err)
	}
}

func TestShardIsTakenAsDocumented(t *testing.T) {
	for _, c := range []struct {
		by    ShardBy
		count uint32
		user  string
		want  Shard
		err   error
	}{
		{ShardByLastDigits, 100, "208812345678", 78, nil},
		{ShardByLastDigits, 100, "uid-42", 42, nil},
		{ShardByLastDigits, 100, "7", 7, nil},
		{ShardByLastDigits, 100, "a7", 0, ErrBadUser},
		{ShardByLastDigits, 1, "abc", 0, nil},
		{ShardByLastDigits, 1000, "12x45", 0, ErrBadUser},
		{ShardByLastDigits, 100, "", 0, ErrMissingUser},
		{ShardByModulo, 7, "100", 2, nil},
		{ShardByModulo, 1 << 20, "340282366920938463463374607431768211457", 1, nil}, // 2^128 + 1
		{ShardByModulo, 97, "1" + strings.Repeat("0", 62), 44, nil},
		{ShardByModulo, 7, "12x", 0, ErrBadUser},
		{ShardByModulo, 7, "-1", 0, ErrBadUser},
		{ShardByXXHash, 1 << 20, "", 0, ErrMissingUser},
		{ShardByXXHash, 100, "a", 0xd24ec4f1a98c6e5b % 100, nil}, // the published XXH64 of "a"
	} {
		topology := &Topology{ShardCount: c.count, ShardBy: c.by}
		got, err := topology.ShardOf(c.user)
		if got != c.want || !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
			t.Errorf("%s of %q among %d: got %d, %v; want %d, %v", c.by, c.user, c.count, got, err, c.want, c.err)
		}
	}
}

// TestSlotsNeverChange holds the slots of a few keys: origin and destination
// compute them apart, and stored records depend on them.
func TestSlotsNeverChange(t *testing.T) {
	goldenSlots := map[string]Slot{"": 409, "a": 603, "order-4711": 713, "01AABBCCDDEEFF0011223344556677889900": 1013, "会员": 362}
	goldenShardSlots := map[Shard]Slot{0: 692, 1: 405, 85: 766, 99999: 826}
	for key, want := range goldenSlots {
		if got := HashSlot(key); got != want {
			t.Errorf("HashSlot(%q) = %d, want %d", key, got, want)
		}
	}
	for shard, want := range goldenShardSlots {
		if got := ShardSlot(shard); got != want {
			t.Errorf("ShardSlot(%d) = %d, want %d", shard, got, want)
		}
	}
}

func TestSlotIsChosenByMessageGroupThenShardThenMessageID(t *testing.T) {
	topology := sampleTopology(t)
	q := Query{Topic: topology.FindTopic("transfer"), From: topology.FindZone("rz01"), User: "85", MessageID: "id"}
	if got := topology.SlotOf(q); got != ShardSlot(85) {
		t.Errorf("by shard: %d", got)
	}
	q.MessageGroup = "g"
	if got := topology.SlotOf(q); got != HashSlot("g") {
		t.Errorf("by message group: %d", got)
	}
	q = Query{Topic: topology.FindTopic("orders"), MessageID: "id"}
	if got := topology.SlotOf(q); got != HashSlot("id") {
		t.Errorf("by message id: %d", got)
	}
	if got := topology.SlotOf(Query{Topic: topology.FindTopic("member"), MessageID: "id"}); got != HashSlot("member") {
		t.Errorf("by channel: %d", got)
	}
	if got := topology.SlotOf(Query{MessageID: "id"}); got != HashSlot("id") {
		t.Errorf("without a topic: %d", got)
	}
}

// largeText is a deployment of 10,000 zones in 20 cities with 100,000 shards.
var largeText = sync.OnceValue(func() []byte {
	const cities, zonesPerCity, shards = 20, 500, 100_000
	const rzones = cities * (zonesPerCity - 1)
	var b strings.Builder
	fmt.Fprintf(&b, "deployment: large\nepoch: 1.1\nshards:\n  count: %d\n  by: last-digits\n  owners:\n", shards)
	for i := range rzones {
		fmt.Fprintf(&b, "    rz%05d: %d-%d\n", i, i*shards/rzones, (i+1)*shards/rzones-1)
	}
	b.WriteString("cities:\n")
	rz, node := 0, 0
	group := func(zone string) {
		node++
		fmt.Fprintf(&b, "        groups:\n          - {name: %s-a, slots: 0-511, nodes: [{name: n%d, client: \"a%d:1\", peer: \"a%d:2\", gossip: \"a%d:3\"}]}\n", zone, node, node, node, node)
		node++
		fmt.Fprintf(&b, "          - {name: %s-b, slots: 512-1023, nodes: [{name: n%d, client: \"a%d:1\", peer: \"a%d:2\", gossip: \"a%d:3\"}]}\n", zone, node, node, node, node)
	}
	for c := range cities {
		fmt.Fprintf(&b, "  - name: city%d\n    routers: [{name: r%d, quic: \"r%d:1\", peer: \"r%d:2\", gossip: \"r%d:3\", wan: \"r%d:4\"}]\n    zones:\n", c, c, c, c, c, c)
		fmt.Fprintf(&b, "      - name: cz%d\n        kind: CZone\n", c)
		group(fmt.Sprintf("cz%d", c))
		for range zonesPerCity - 1 {
			fmt.Fprintf(&b, "      - name: rz%05d\n        kind: RZone\n        standby: none\n", rz)
			group(fmt.Sprintf("rz%05d", rz))
			rz++
		}
	}
	b.WriteString("topics:\n  - {name: transfer, route: {shard: {property: userId}}}\n  - {name: directed, route: {explicit: {property: destination}}}\n")
	return []byte(b.String())
})

func TestResolveDoesNotAllocate(t *testing.T) {
	topology := sampleTopology(t)
	for _, q := range []Query{
		{Topic: topology.FindTopic("transfer"), From: topology.FindZone("rz01"), User: "u-4711", MessageID: "id"},
		{Topic: topology.FindTopic("transfer"), From: topology.FindZone("rz01"), User: "u-4711", MessageGroup: "g"},
		{Topic: topology.FindTopic("directed"), From: topology.FindZone("rz01"), Destination: "hangzhou", MessageID: "id"},
		{Topic: topology.FindTopic("orders"), From: topology.FindZone("rz01"), MessageID: "id"},
		{Topic: topology.FindTopic("ledger"), From: topology.FindZone("rz01"), MessageID: "id"},
		{Topic: topology.FindTopic("member"), From: topology.FindZone("rz01"), MessageID: "id"},
		{Topic: topology.FindTopic("audit"), From: topology.FindZone("rz05"), MessageID: "id"},
		{Topic: topology.FindTopic("transfer"), From: topology.FindZone("rz01")},
		{Topic: topology.FindTopic("directed"), From: topology.FindZone("rz01"), Destination: "atlantis"},
		{},
	} {
		var err error
		if n := testing.AllocsPerRun(100, func() { _, err = topology.Resolve(q); topology.SlotOf(q) }); n != 0 {
			t.Errorf("%+v: %v allocations (%v)", q.Topic, n, err)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	topology, err := Parse(largeText(), "large.yaml")
	if err != nil {
		b.Fatal(err)
	}
	const queries = 1 << 12 // many, so that the processor's caches do not hold one answer
	for _, topic := range []Topic{"transfer", "directed"} {
		b.Run(string(topic), func(b *testing.B) {
			qs := make([]Query, queries)
			for i := range qs {
				n := i * 2654435761 % 1_000_000_007
				qs[i] = Query{Topic: topology.FindTopic(topic), From: topology.Zones()[77], User: fmt.Sprintf("2088%012d", n),
					Destination: fmt.Sprintf("rz%05d", n%9980), MessageID: "01AABBCCDDEEFF0011223344556677889900"}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := topology.Resolve(qs[i%queries]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseLarge(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(largeText())))
	for b.Loop() {
		if _, err := Parse(largeText(), "large.yaml"); err != nil {
			b.Fatal(err)
		}
	}
}
