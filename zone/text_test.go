package zone

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var rewrite = flag.Bool("rewrite", false, "record the golden files anew")

// topologies is the folder of files that tests of several packages read.
const topologies = "../testdata/topologies"

// golden compares got with a recorded file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join(topologies, name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-rewrite records it anew); got:\n%s", name, got)
	}
}

func referenceTopology(t testing.TB) *Topology {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(topologies, "reference.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return mustParse(t, string(data))
}

func TestShowDrawsTheSample(t *testing.T) { golden(t, "sample.show", Show(sampleTopology(t))) }

func TestShowDrawsEveryKey(t *testing.T) { golden(t, "reference.show", Show(referenceTopology(t))) }

func TestShowFitsIts100Columns(t *testing.T) {
	long := strings.NewReplacer(
		"rz01-a", strings.Repeat("g", 38), "gz01", strings.Repeat("z", 36), "hangzhou", strings.Repeat("c", 40),
		"rt-sh-1", strings.Repeat("r", 40), "127.0.0.1:8085", strings.Repeat("h", 60)+".example:8085",
		"- name: transfer\n", "- name: "+strings.Repeat("t", 127)+"\n", "[transfer]", "["+strings.Repeat("t", 127)+"]",
		"property: userId", "property: "+strings.Repeat("p", 64), "orders-billing", strings.Repeat("b", 120),
		"steps: [1s, 5s, 10s,", "steps: [1s500ms, 5s250ms, 10s125ms, 20s625ms,",
	).Replace(sampleText(t))
	for _, topology := range []*Topology{sampleTopology(t), referenceTopology(t), mustParse(t, long)} {
		for i, line := range strings.Split(Show(topology), "\n") {
			if n := utf8.RuneCountInString(line); n > ShowColumns || line != strings.TrimRight(line, " ") {
				t.Errorf("line %d has %d columns or ends in blanks: %q", i+1, n, line)
			}
		}
	}
	if text := strings.NewReplacer("\n", "", " ", "").Replace(Show(mustParse(t, long))); !strings.Contains(text, strings.Repeat("h", 20)) {
		t.Error("long values are cut")
	}
}

func TestExplainTellsEachStep(t *testing.T) {
	var b strings.Builder
	topology := sampleTopology(t)
	for _, c := range [][3]string{
		{"orders", "rz01", "k"}, {"orders", "", "k"}, {"transfer", "rz01", "u1085"}, {"transfer", "rz02", "10"}, {"transfer", "rz05", "20881199"},
		{"transfer", "rz01", "u10ab"}, {"transfer", "rz01", ""}, {"directed", "rz03", "shenzhen"}, {"directed", "rz03", "rz01"},
		{"directed", "rz03", "atlantis"}, {"directed", "rz03", ""}, {"ledger", "rz05", "k"}, {"member", "rz01", "k"},
		{"audit", "rz03", "k"}, {"audit", "rz05", "k"}, {"nothing", "rz01", "k"},
	} {
		fmt.Fprintf(&b, "## --topic %s --from %q --key %q\n", c[0], c[1], c[2])
		for _, s := range topology.Explain(QueryFor(topology.FindTopic(Topic(c[0])), topology.FindZone(Zone(c[1])), c[2])) {
			fmt.Fprintln(&b, s)
		}
		b.WriteByte('\n')
	}
	topology = referenceTopology(t)
	for _, q := range []Query{
		QueryFor(topology.FindTopic("payments"), topology.FindZone("east-1"), "alice"),
		QueryFor(topology.FindTopic("rules"), topology.FindZone("east-1"), "k"),
		QueryFor(topology.FindTopic("rates"), topology.FindZone("west-1"), "k"),
		{Topic: topology.FindTopic("commands"), From: topology.FindZone("west-1"), Destination: "east-1", MessageID: "01AB"},
	} {
		fmt.Fprintf(&b, "## reference: %s from %s\n", q.Topic.Name, q.From.Name)
		for _, s := range topology.Explain(q) {
			fmt.Fprintln(&b, s)
		}
		b.WriteByte('\n')
	}
	golden(t, "explain.txt", b.String())
}

func TestValidateReportsABrokenFileAsRecorded(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(topologies, "broken.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Parse(data, "broken.yaml")
	if err == nil {
		t.Fatal("the broken file is valid")
	}
	golden(t, "broken.report", err.Error()+"\n")
}

func TestDiffNamesWhatChanges(t *testing.T) {
	text := sampleText(t)
	a := mustParse(t, text)
	for _, c := range []struct{ old, new, want string }{
		{"number: 1}", "number: 2}", "~ epoch: 1.1 -> 1.2"},
		{"unknown_groups: refuse", "unknown_groups: newest", "~ unknown_groups: refuse -> newest"},
		{"by: last-digits", "by: modulo", "~ shards: by: last-digits -> modulo"},
		{"{in_city: rz02, remote: rz03}", "{remote: rz03}", "~ zone rz01: standby.in_city: rz02 -> -"},
		{"client: 127.0.0.1:8091", "client: 127.0.0.1:8092", "~ node cz-sz-a-1: client: 127.0.0.1:8091 -> 127.0.0.1:8092"},
		{"  - name: shenzhen\n", "  - name: shenzhen\n    max_body: 4MiB\n", ""},
		{"retention: 168h", "retention: 168h\n    idempotent: 10m", "~ topic ledger: idempotent: - -> 10m"},
		{"retention: 168h", "retention: 24h", "~ topic ledger: retention: 168h -> 24h"},
		{"  - name: orders\n", "  - name: orders\n    kind: delay\n", "~ topic orders: kind: normal -> delay\n~ topic orders: max_delay: - -> 720h"},
		{"  - name: transfer\n", "  - name: transfer\n    receipts: orders\n", "~ topic transfer: receipts: - -> orders"},
		{"durability: synced", "durability: quorum", "~ topic ledger: durability: all-in-sync -> quorum"},
		{"durability: synced", "durability: all-in-sync", ""},
		{"durability: synced", "min_in_sync: 1", ""},
		{"client: 127.0.0.1:8091", "client: 127.0.0.1:8091\n                room: r1", "~ node cz-sz-a-1: room: - -> r1"},
		{"  - name: shenzhen\n", "  - name: shenzhen\n    coordinator: {driver: consul, lease: 3s}\n", "~ city shenzhen: coordinator: - -> consul under mqrouter/sample/shenzhen, lease 3s"},
		{"  - name: shenzhen\n", "  - name: shenzhen\n    coordinator: {driver: raft, voters: [co-sz], nodes: [{name: co-sz, peer: a:1, gossip: a:2}]}\n",
			"~ city shenzhen: coordinator: - -> raft of co-sz, lease 1.5s\n+ coordinator node co-sz"},
		{"budget: 256MiB", "budget: 128MiB", "~ topic member: budget: 256MiB -> 128MiB"},
		{"[shanghai, hangzhou]", "[shanghai]", "~ topic audit: residency: hangzhou,shanghai -> shanghai"},
		{"30s, 1m, 5m", "30s", "~ consumer group ledger-book: retry: 1s, 5s, 10s, 30s, 1m, 5m -> 1s, 5s, 10s, 30s"},
		{"\nconsumer_groups:\n", "  - {name: extra, route: local}\nconsumer_groups:\n", "+ topic extra"},
		{"  - name: audit-archive\n    topics: [audit]\n", "", "- consumer group audit-archive"},
	} {
		got := strings.Join(changeLines(Diff(a, mustParse(t, replaced(t, text, c.old, c.new)))), "\n")
		if got != c.want {
			t.Errorf("%q for %q:\ngot  %s\nwant %s", c.new, c.old, got, c.want)
		}
	}
	moved := mustParse(t, replaced(t, replaced(t, text, "rz01: 0-19", "rz01: [0-9, 15]"), "rz03: 40-59", "rz03: [40-59, 10-14, 16-19]"))
	if got := strings.Join(changeLines(Diff(a, moved)), "\n"); got != "~ shards 10-14, 16-19: rz01 -> rz03" {
		t.Errorf("moved shards: %s", got)
	}
}

func TestDiffIsEmptyExactlyWhenDigestsAreEqual(t *testing.T) {
	all := []*Topology{sampleTopology(t), sampleTopology(t), referenceTopology(t)}
	for _, c := range append(append([]faultCase{}, placeFaults...), topicFaults...) {
		if len(all) == 20 {
			break
		}
		if topology, err := Parse([]byte(strings.Replace(sampleText(t), c.old, "", 1)), "t"); err == nil {
			all = append(all, topology)
		}
	}
	if len(all) < 10 {
		t.Fatalf("only %d topologies to compare", len(all))
	}
	for i, a := range all {
		for j, b := range all {
			if same := a.Digest == b.Digest; same != (len(Diff(a, b)) == 0) {
				t.Errorf("%d and %d: equal digests %t, changes %v", i, j, same, changeLines(Diff(a, b)))
			}
		}
	}
}

func TestResidencyIsEncodedInOneForm(t *testing.T) {
	topology := sampleTopology(t)
	audit := topology.FindTopic("audit").EncodeResidency()
	if audit != "hangzhou,shanghai" || topology.FindTopic("orders").EncodeResidency() != "" {
		t.Errorf("encoded: %q", audit)
	}
	for _, c := range []struct {
		encoded string
		city    City
		want    bool
	}{
		{"", "shanghai", true}, {audit, "shanghai", true}, {audit, "hangzhou", true}, {audit, "shenzhen", false},
		{audit, "shang", false}, {audit, "", false}, {"shanghai,", "hangzhou", false}, {"shanghai", "shanghai", true}, {",", "x", false},
	} {
		if got := ResidencyAllows(c.encoded, c.city); got != c.want {
			t.Errorf("%q allows %q: %t", c.encoded, c.city, got)
		}
	}
	if n := testing.AllocsPerRun(100, func() { ResidencyAllows(audit, "shenzhen") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestUnitsAreReadAndWrittenAlike(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "17": 17, "512B": 512, "64KiB": 64 << 10, "4MiB": 4 << 20, "4 MiB": 4 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40,
		"": -1, "-1": -1, "MiB": -1, "4MB": -1, "4mb": -1, "1.5GiB": -1, "4XiB": -1, "9999999999TiB": -1, "99999999999999999999": -1,
	} {
		got, err := ParseSize(text)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("size %q: %d, %v", text, got, err)
		}
		if err == nil {
			if again, err := ParseSize(formatSize(got)); err != nil || again != got {
				t.Errorf("size %d is written %s and read %d, %v", got, formatSize(got), again, err)
			}
		}
	}
	for text, want := range map[string]time.Duration{
		"72h": 72 * time.Hour, "7d": 168 * time.Hour, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "15m": 15 * time.Minute,
		"d": -1, "1w": -1, "": -1, "7": -1, "99999999d": -1,
	} {
		got, err := parseDuration(text)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("duration %q: %s, %v", text, got, err)
		}
		if err == nil {
			if again, err := parseDuration(FormatDuration(got)); err != nil || again != got {
				t.Errorf("duration %s is written %s and read %s, %v", got, FormatDuration(got), again, err)
			}
		}
	}
}

func TestDurationsAreWrittenAsPeopleWriteThem(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "720h": 720 * time.Hour, "1h30m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second, "10m": 10 * time.Minute,
		"1m30s": 90 * time.Second, "10s": 10 * time.Second, "1.5s": 1500 * time.Millisecond, "-1h": -time.Hour,
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
}

func TestNearestIsWhatWasMeantOrNothing(t *testing.T) {
	names := []string{"retention", "residency", "route", "budget", "at_budget", "RZone"}
	for typed, want := range map[string]string{
		"retentoin": "retention", "residancy": "residency", "rout": "route", "bugdet": "budget", "rzone": "RZone", "atbudget": "at_budget",
		"colour": "", "": "", "x": "", strings.Repeat("r", 1000): "",
	} {
		if got := nearest(typed, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", typed, got, want)
		}
	}
}

func TestAddressesHaveOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:8081": "127.0.0.1:8081", "[::1]:80": "[::1]:80", "[::ffff:10.0.0.1]:80": "10.0.0.1:80", "Broker-1.East.Example:9": "broker-1.east.example:9",
		"a_b:1": "a_b:1", "[0:0:0:0:0:0:0:1]:080": "[::1]:80",
		"": "", "a": "", ":1": "", "a:": "", "a:0": "", "a:65536": "", "a:-1": "", "a b:1": "", "[a]:1": "", "0.0.0.0:1": "", "[::]:1": "", "a..b:1": "",
		"-a:1": "", "a-:1": "", strings.Repeat("a", 64) + ":1": "", strings.Repeat("a.", 200) + "a:1": "",
	} {
		got, fix := cleanAddress(in)
		if got != want || (fix == "") != (want != "") {
			t.Errorf("%q: %q, %q", in, got, fix)
		}
	}
}

func TestEveryWordIsReadAsItIsWritten(t *testing.T) {
	for _, s := range []fmt.Stringer{RZone, GZone, CZone, ClassControl, ClassUrgent, ClassBulk, KindNormal, KindLite, DurabilityAllInSync, DurabilityBuffered,
		DurabilityMaster, DurabilityQuorum, CoordinatorRaft, CoordinatorConsul, RoleCoordinator,
		BudgetRefuse, BudgetGap, BudgetCompact, ShardByLastDigits, ShardByModulo, ShardByXXHash, RouteLocal, RouteBroadcastZone, FromNone, FromKey,
		RoleBroker, RoleRouter, RoleCacheSync, RoleAdmin, ReachZone, ReachCity, ReachFar, ReachBroadcast} {
		if strings.Contains(s.String(), "unknown") || s.String() == "" {
			t.Errorf("%T has a value without a word", s)
		}
	}
	if Kind(99).String() != "unknown(99)" {
		t.Error("an unknown value is not told by its number")
	}
}

// FuzzParse holds that no file makes Parse panic, that what it refuses has a
// place in the file and words, and that what it accepts can be used.
func FuzzParse(f *testing.F) {
	sample := sampleText(f)
	f.Add([]byte(sample))
	for _, c := range syntaxFaults {
		f.Add([]byte(strings.Replace(sample, c.old, strings.Replace(c.new, "§", "", 1), 1)))
	}
	for _, name := range []string{"reference.yaml", "broken.yaml"} {
		data, err := os.ReadFile(filepath.Join(topologies, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("{deployment: d, epoch: 1.1, cities: [{name: c, zones: [{name: z, kind: CZone, groups: [{name: g, nodes: [{name: n, client: a:1, peer: a:2, gossip: a:3}]}]}]}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		topology, err := Parse(data, "fuzz.yaml")
		if err != nil {
			var e *ProblemsError
			if !errors.As(err, &e) {
				t.Fatalf("not a *ProblemsError: %v", err)
			}
			lines := strings.Count(string(data), "\n") + 1
			for _, p := range e.Problems {
				if p.What == "" || p.Line > lines {
					t.Errorf("a problem without words or place: %+v", p)
				}
			}
			return
		}
		Show(topology)
		for _, topic := range topology.Topics {
			for _, z := range topology.Zones() {
				for _, key := range []string{"", "1", string(z.Name), string(z.City.Name)} {
					topology.Explain(QueryFor(topic, z, key))
				}
			}
		}
		if again, err := Parse(data, "fuzz.yaml"); err != nil || again.Digest != topology.Digest || len(Diff(topology, again)) != 0 {
			t.Error("the same file has two meanings")
		}
	})
}
