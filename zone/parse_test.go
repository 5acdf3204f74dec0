package zone

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// sampleText is the sample deployment's file.
func sampleText(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("sample/sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func mustParse(t testing.TB, text string) *Topology {
	t.Helper()
	topology, err := Parse([]byte(text), "test.yaml")
	if err != nil {
		t.Fatalf("\n%v", err)
	}
	return topology
}

func sampleTopology(t testing.TB) *Topology { return mustParse(t, sampleText(t)) }

// replaced returns text with old replaced once; old has to occur exactly once.
func replaced(t testing.TB, text, old, with string) string {
	t.Helper()
	if n := strings.Count(text, old); n != 1 {
		t.Fatalf("%q occurs %d times", old, n)
	}
	return strings.Replace(text, old, with, 1)
}

// faultCase changes the sample at one place. The mark § in the new text stands
// before the token at which the one expected problem is reported.
type faultCase struct {
	name     string
	old, new string
	what     string // part of what is wrong
	fix      string // part of what would be right
	also     int    // how many problems follow from it elsewhere
}

func (c faultCase) run(t *testing.T) {
	text := replaced(t, sampleText(t), c.old, c.new)
	before, after, marked := strings.Cut(text, "§")
	if !marked {
		t.Fatal("the case has no mark")
	}
	line := strings.Count(before, "\n") + 1
	column := len(before) - strings.LastIndexByte(before, '\n')
	_, err := Parse([]byte(before+after), "topology.yaml")
	var e *ProblemsError
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *ProblemsError", err)
	}
	if len(e.Problems) != 1+c.also {
		t.Fatalf("%d problems, want %d:\n%v", len(e.Problems), 1+c.also, err)
	}
	p := e.Problems[0]
	for _, other := range e.Problems {
		if other.Line == line && other.Column == column {
			p = other
		}
	}
	if p.Line != line || p.Column != column {
		t.Errorf("not reported at %d:%d:\n%v", line, column, err)
	}
	if !strings.Contains(p.What, c.what) || !strings.Contains(p.Fix, c.fix) {
		t.Errorf("got %q; %q\nwant %q; %q", p.What, p.Fix, c.what, c.fix)
	}
	if p.What == "" || p.Fix == "" {
		t.Errorf("a problem says what is wrong and what would be right: %+v", p)
	}
}

func TestEachFaultIsReportedAtItsPlaceWithARemedy(t *testing.T) {
	for _, c := range placeFaults {
		t.Run(c.name, c.run)
	}
	for _, c := range topicFaults {
		t.Run(c.name, c.run)
	}
	for _, c := range syntaxFaults {
		t.Run(c.name, c.run)
	}
}

func TestAllFaultsAreReportedAtOnceInTheOrderOfTheFile(t *testing.T) {
	text := sampleText(t)
	for _, r := range [][2]string{
		{"deployment: sample", "deployment: bad name"},
		{"term: 1", "term: 0"},
		{"rz02: 20-39", "rz02: 19-38"},
		{"active: false", "active: true"},
		{"kind: CZone\n        groups:\n          - name: cz-sz-a", "kind: RZone\n        groups:\n          - name: cz-sz-a"},
		{"standby: {in_city: rz04, remote: rz01}", "standby: {in_city: rz01, remote: rz04}"},
		{"route: local", "route: lokal"},
		{"- name: orders-billing", "- name: \"%DLQ%billing\""},
	} {
		text = replaced(t, text, r[0], r[1])
	}
	_, err := Parse([]byte(text), "topology.yaml")
	var e *ProblemsError
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		"'  ' is not allowed", "epoch's term is \"0\"", "shards 19 are owned by rz01 and by rz02", "shards 39 are owned by no zone",
		"second active GZone", "city shenzhen has no CZone", "rz01, which is in city shanghai", "rz04, which is in the same city",
		"route is \"lokal\"", "begin with %DLQ%",
	} {
		want = strings.Replace(want, "'  '", "' '", 1)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing: %s\n%v", want, err)
		}
	}
	for i := 1; i < len(e.Problems); i++ {
		a, b := e.Problems[i-1], e.Problems[i]
		if a.Line > b.Line || a.Line == b.Line && a.Column > b.Column {
			t.Errorf("problems are out of order: %+v before %+v", a, b)
		}
	}
	if line, _, _ := strings.Cut(err.Error(), "\n"); !strings.HasPrefix(line, "topology.yaml:") {
		t.Errorf("a line begins with file, line and column: %s", line)
	}
}

func TestLimitsThatDifferAlongARouteAreReported(t *testing.T) {
	text := sampleText(t)
	text = replaced(t, text, "  - name: hangzhou\n", "  - name: hangzhou\n    max_body: 512KiB\n")
	text = replaced(t, text, "      - name: rz05\n", "      - name: rz05\n        max_body: 2MiB\n")
	text = replaced(t, text, "      - name: rz03\n", "      - name: rz03\n        max_body: 1MiB\n")
	_, err := Parse([]byte(text), "t.yaml")
	for _, want := range []string{
		"zone rz03 stores bodies of 1MiB, and the routers of hangzhou pass on at most 512KiB",
		"topic member allows bodies of 1MiB, and the routers of city hangzhou pass on at most 512KiB; lower the topic's max_body to 512KiB",
		"topic transfer allows bodies of 4MiB, and the routers of city hangzhou",
		"topic orders allows bodies of 4MiB, and zone rz03, where it can land, stores at most 1MiB; lower",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("missing: %s\n%v", want, err)
		}
	}
}

func TestAnEmptyFileIsRefused(t *testing.T) {
	for _, text := range []string{"", "\n\n", "# nothing\n", "---\n", "null\n"} {
		if _, err := Parse([]byte(text), "t.yaml"); err == nil || !strings.Contains(err.Error(), "t.yaml:1:1: the file holds no topology; ") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestProblemsOfAForeignFileAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5 * maxProblems {
		fmt.Fprintf(&b, "key%d: value\n", i)
	}
	_, err := Parse([]byte(b.String()), "t.yaml")
	var e *ProblemsError
	if !errors.As(err, &e) || len(e.Problems) > maxProblems || e.Omitted == 0 {
		t.Fatalf("got %d problems and %d omitted", len(e.Problems), e.Omitted)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("and %d more", e.Omitted)) {
		t.Error("the report does not tell that it was cut")
	}
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	topology := sampleTopology(t)
	orders := topology.FindTopic("orders")
	if orders.Queues != 4 || orders.Kind != KindNormal || orders.Durability != DurabilityAllInSync || orders.Retention != 72*time.Hour ||
		orders.Class != ClassBulk || orders.Budget != 1<<30 || orders.AtBudget != BudgetRefuse || orders.MaxBody != 4<<20 {
		t.Errorf("defaults of a topic: %+v", orders)
	}
	g := topology.FindConsumerGroup("transfer-credit")
	if g.MaxAttempts != 16 || g.FIFO || g.Cache || g.Backoff.Initial != time.Second || g.Backoff.Max != 10*time.Minute || g.Backoff.Multiplier != 2 {
		t.Errorf("defaults of a consumer group: %+v", g)
	}
	text := replaced(t, sampleText(t), "    class: urgent\n", "")
	if c := mustParse(t, text).FindTopic("member").Class; c != ClassUrgent {
		t.Errorf("a broadcast topic is of class %s by default", c)
	}
	text = replaced(t, sampleText(t), "        active: true # receives what is routed global\n", "")
	text = replaced(t, text, "        kind: GZone\n        active: false\n        standby: {remote: gz01}\n", "        kind: RZone\n")
	text = replaced(t, text, "{remote: gz02}", "none")
	text = replaced(t, text, "zones: [gz01, gz02]", "zones: [gz01]")
	if z := mustParse(t, text).ActiveGZone(); z == nil || z.Name != "gz01" {
		t.Errorf("the only GZone is not active by default: %v", z)
	}
}

func TestNamesOfTheSampleAreFound(t *testing.T) {
	topology := sampleTopology(t)
	if c := topology.FindCity("hangzhou"); c == nil || c.CZone.Name != "cz-hz" || len(c.Routers) != 2 || topology.Cities[c.Index] != c {
		t.Errorf("city: %+v", c)
	}
	z := topology.FindZone("rz01")
	if z == nil || z.City.Name != "shanghai" || z.Kind != RZone || z.Shards != 20 || z.InCityStandby.Name != "rz02" ||
		z.RemoteStandby.Name != "rz03" || topology.Zones()[z.Index] != z {
		t.Fatalf("zone: %+v", z)
	}
	if z.SlotOwner(511).Name != "rz01-a" || z.SlotOwner(512).Name != "rz01-b" || z.SlotOwner(Slots).Name != "rz01-a" {
		t.Error("slots of rz01 have other owners")
	}
	if g := topology.FindGroup("rz01-b"); g == nil || g.Zone != z || len(g.Nodes) != 1 {
		t.Errorf("group: %+v", g)
	}
	if n := topology.FindNode("rz01-a-1"); n == nil || n.Zone != z || n.City != z.City || n.Group.Name != "rz01-a" || n.Role != RoleBroker ||
		n.Client != "127.0.0.1:8081" || n.Peer == "" || n.Gossip == "" || n.Admin == "" {
		t.Errorf("broker: %+v", n)
	}
	if n := topology.FindNode("rt-sz-2"); n == nil || n.Zone != nil || n.Role != RoleRouter || n.QUIC != "127.0.0.1:7006" || n.WAN == "" {
		t.Errorf("router: %+v", n)
	}
	if n := topology.FindNode("cache-hz"); n == nil || n.Role != RoleCacheSync || n.City.Name != "hangzhou" || n.City.Caches[0] != n || n.Zone != nil || n.Admin == "" {
		t.Errorf("cache: %+v", n)
	}
	member := topology.FindTopic("member")
	if ch := topology.FindChannel("member"); ch == nil || member.Channel != ch || ch.Topics[0] != member || ch.Class != ClassUrgent {
		t.Errorf("channel: %+v", ch)
	}
	if g := topology.FindConsumerGroup("member-cache"); g == nil || !g.Cache || g.Topics[0] != member || len(member.Groups) != 2 {
		t.Errorf("consumer group: %+v", g)
	}
	if topology.FindCity("x") != nil || topology.FindZone("x") != nil || topology.FindGroup("x") != nil || topology.FindNode("x") != nil ||
		topology.FindTopic("x") != nil || topology.FindConsumerGroup("x") != nil || topology.FindChannel("x") != nil ||
		topology.FindDestination("x") != nil {
		t.Error("an unknown name was found")
	}
}

func TestSampleAddressesStayOutOfEphemeralPorts(t *testing.T) {
	topology := sampleTopology(t)
	for _, nodes := range [][]*NodeInfo{routers(topology), brokers(topology), caches(topology)} {
		for _, n := range nodes {
			for _, a := range []string{n.Client, n.Peer, n.QUIC, n.Gossip, n.WAN, n.Admin} {
				var port int
				if _, err := fmt.Sscanf(a, "127.0.0.1:%d", &port); a != "" && (err != nil || port < 1024 || port >= 32768) {
					t.Errorf("%s: %s", n.Name, a)
				}
			}
		}
	}
}

func TestEpochHasTwoForms(t *testing.T) {
	for _, form := range []string{"{term: 3, number: 10}", "3.10", "\"3.10\""} {
		text := replaced(t, sampleText(t), "{term: 1, number: 1}", form)
		if e := mustParse(t, text).Epoch; e != (Epoch{3, 10}) {
			t.Errorf("%s: %s", form, e)
		}
	}
	if e, err := ParseEpoch(Epoch{3, 10}.String()); err != nil || e != (Epoch{3, 10}) {
		t.Errorf("round trip: %s, %v", e, err)
	}
	if (Epoch{}).Compare(Epoch{1, 1}) != -1 || (Epoch{2, 1}).Compare(Epoch{1, 9}) != 1 || (Epoch{2, 1}).Compare(Epoch{2, 1}) != 0 ||
		(Epoch{2, 1}).Compare(Epoch{2, 2}) != -1 {
		t.Error("epochs are ordered by term, then number")
	}
}

func TestDigestFollowsMeaningAndNotForm(t *testing.T) {
	text := sampleText(t)
	base := mustParse(t, text)
	for name, same := range map[string]string{
		"comments":         text + "\n# a comment\n",
		"Windows":          strings.ReplaceAll(text, "\n", "\r\n"),
		"spelled default":  replaced(t, text, "  - name: orders\n", "  - name: orders\n    queues: 4\n    retention: 3d\n"),
		"another unit":     replaced(t, text, "256MiB", "262144KiB"),
		"order of keys":    replaced(t, text, "{term: 1, number: 1}", "{number: 1, term: 1}"),
		"order of a list":  replaced(t, text, "[shanghai, hangzhou]", "[hangzhou, shanghai]"),
		"list of ranges":   replaced(t, text, "rz01: 0-19", "rz01: [10-19, \"0-3, 4\", 5-9]"),
		"case of the host": strings.ReplaceAll(text, "127.0.0.1:8081", "\"[::ffff:127.0.0.1]:8081\""),
	} {
		if got := mustParse(t, same); got.Digest != base.Digest {
			t.Errorf("%s changed the digest:\n%s", name, strings.Join(changeLines(Diff(base, got)), "\n"))
		}
	}
	for name, other := range map[string]string{
		"epoch":     replaced(t, text, "number: 1}", "number: 2}"),
		"a port":    replaced(t, text, "127.0.0.1:8081", "127.0.0.1:8099"),
		"a step":    replaced(t, text, "30s, 1m", "30s, 2m"),
		"a shard":   replaced(t, replaced(t, text, "rz01: 0-19", "rz01: 0-18"), "rz02: 20-39", "rz02: 19-39"),
		"a slot":    replaced(t, replaced(t, text, "0-511", "0-510"), "512-1023", "511-1023"),
		"residency": replaced(t, text, "[shanghai, hangzhou]", "[shanghai]"),
	} {
		if mustParse(t, other).Digest == base.Digest {
			t.Errorf("%s did not change the digest", name)
		}
	}
}

func changeLines(changes []Change) []string {
	out := make([]string, len(changes))
	for i, c := range changes {
		out[i] = c.String()
	}
	return out
}
