package watch

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mqrouter/mqrouter/internal/admin"
)

var rewrite = flag.Bool("rewrite", false, "record the frames anew")

// noon is when the recorded fleet was asked.
var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// fleet returns the recorded status of a deployment of 20 nodes, a new copy each
// time.
func fleet(t testing.TB) []admin.Status {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "fleet.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []admin.Status
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func node(t testing.TB, all []admin.Status, name string) *admin.Status {
	t.Helper()
	for i := range all {
		if all[i].Node == name {
			return &all[i]
		}
	}
	t.Fatalf("the fleet has no node %s", name)
	return nil
}

func silence(s *admin.Status, why string) {
	*s = admin.Status{Node: s.Node, Role: s.Role, City: s.City, Zone: s.Zone, Error: "admin: " + why}
}

// trouble is the fleet after a while: a flow is held, a router's links are down,
// a consumer group falls behind, a cache is away, and a node is silent.
func trouble(t testing.TB) []admin.Status {
	t.Helper()
	all := fleet(t)
	s := node(t, all, "rz01-a-1")
	s.Flows = append(s.Flows, admin.Flow{Target: "rz04-a", City: "hangzhou", Group: "rz04-a", Class: "bulk", Lane: 1, Head: 90_000, Settled: 1_500,
		Backlog: 88_500, OldestAge: 3 * time.Minute, State: "held", Held: "disk full"})
	s.Reasons = []string{"something\nto look at"}
	for _, name := range []string{"rt-hz-1", "rt-hz-2"} {
		for i := range node(t, all, name).Links {
			if l := &node(t, all, name).Links[i]; l.City == "shenzhen" {
				l.State, l.Problem = "red", "dial timeout"
			}
		}
	}
	for _, name := range []string{"rt-sz-1", "rt-sz-2"} {
		for i := range node(t, all, name).Links {
			if l := &node(t, all, name).Links[i]; l.City == "hangzhou" {
				l.State = "red"
			}
		}
	}
	for i := range node(t, all, "rz02-a-1").Consumers {
		if c := &node(t, all, "rz02-a-1").Consumers[i]; c.Group == "orders-billing" {
			c.Lag = 1_234_567
		}
	}
	c := node(t, all, "cache-sh").Cache
	c.State, c.Problem, c.Lag = "held", "redis: connection refused", 12
	for i := range node(t, all, "rt-sh-1").Links {
		l := &node(t, all, "rt-sh-1").Links[i]
		l.Sent += 5 << 20
		l.Received += 3000
	}
	silence(node(t, all, "rz03-a-1"), "dial tcp 127.0.0.1:5110: connect: connection refused")
	return all
}

func model(t testing.TB) *Model {
	t.Helper()
	m := &Model{Deployment: "sample", Epoch: "1.1"}
	m.Add(noon, fleet(t))
	before := trouble(t)
	flow := &node(t, before, "rz01-a-1").Flows[len(node(t, before, "rz01-a-1").Flows)-1]
	flow.Settled, flow.Backlog = 500, 80_000
	m.Add(noon.Add(time.Second), before)
	m.Add(noon.Add(3*time.Second), trouble(t))
	return m
}

// TestFramesAreAsRecorded keeps what screens of several sizes show.
func TestFramesAreAsRecorded(t *testing.T) {
	well := &Model{Deployment: "sample", Epoch: "1.1"}
	well.Add(noon, fleet(t))
	well.Add(noon.Add(time.Second), fleet(t))
	bad := model(t)
	for _, c := range []struct {
		file string
		m    *Model
		st   Style
	}{
		{"well-80x24", well, Style{Width: 80, Height: 24, Keys: true}},
		{"trouble-80x24", bad, Style{Width: 80, Height: 24, Keys: true}},
		{"trouble-160x60", bad, Style{Width: 160, Height: 60, Keys: true, Order: ByName}},
		{"trouble-flows-colour", bad, Style{Width: 100, Height: 20, Colour: true, Only: "FLOWS", Order: ByRate, Paused: true, Keys: true}},
		{"trouble-log", bad, Style{}},
	} {
		got := strings.Join(c.m.Frame(c.st), "\n") + "\n"
		path := filepath.Join("testdata", c.file+".txt")
		if *rewrite {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is\n%s\nand was recorded as\n%s", c.file, got, want)
		}
	}
}

var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestFramesFitTheScreen tries every size that a terminal may have.
func TestFramesFitTheScreen(t *testing.T) {
	m := model(t)
	for width := 20; width <= 220; width += 7 {
		for height := 5; height <= 70; height += 5 {
			for _, only := range append(Sections[:], "") {
				frame := m.Frame(Style{Width: width, Height: height, Colour: true, Only: only, Keys: true})
				if len(frame) > height {
					t.Fatalf("%dx%d: %d lines", width, height, len(frame))
				}
				for _, l := range frame {
					if n := utf8.RuneCountInString(ansi.ReplaceAllString(l, "")); n > width {
						t.Fatalf("%dx%d: a line of %d: %q", width, height, n, l)
					}
				}
			}
		}
	}
}

// TestTroubleIsOnTheSmallestScreen: whatever does not fit, what is wrong does.
func TestTroubleIsOnTheSmallestScreen(t *testing.T) {
	frame := strings.Join(model(t).Frame(Style{Width: 80, Height: 24, Keys: true}), "\n")
	for _, want := range []string{"rz03-a-1  no answer since 12:00:01 (2s)", "nodes 19/20", "88,500", "+8,500", "1,234,567", "cache-sh"} {
		if !strings.Contains(frame, want) {
			t.Errorf("no %q in\n%s", want, frame)
		}
	}
}

func TestSilentNodesAreShownSinceWhen(t *testing.T) {
	m := &Model{}
	gone := fleet(t)
	silence(&gone[0], "refused")
	m.Add(noon, gone)
	if p := m.problems(); len(p) != 1 || p[0].what != "no answer: refused" {
		t.Errorf("silent in the first sample: %+v", p)
	}
	m.Add(noon.Add(90*time.Second), gone)
	if p := m.problems(); len(p) != 1 || p[0].health != Ill || p[0].what != "no answer, not once in 1m30s: refused" {
		t.Errorf("silent from the beginning: %+v", p)
	}
	m.Add(noon.Add(91*time.Second), fleet(t))
	if p := m.problems(); len(p) != 0 {
		t.Errorf("after it answered: %+v", p)
	}
	m.Add(noon.Add(92*time.Second), gone)
	m.Add(noon.Add(99*time.Second), gone)
	if p := m.problems(); len(p) != 1 || !strings.HasPrefix(p[0].what, "no answer since 12:01:32 (7s)") {
		t.Errorf("silent again: %+v", p)
	}
}

// TestALineStaysReadable: a destination that left has no city, lanes that wait give
// one long reason, and a first sample cannot tell whether a lag shrinks.
func TestALineStaysReadable(t *testing.T) {
	long := "flow: session refused by peer: no-route: group x, over "
	m := &Model{}
	m.Add(noon, []admin.Status{{Node: "n", Group: "g", City: "a", Zone: "z", Ready: true,
		Flows: []admin.Flow{
			{Target: "x", Group: "x", Class: "bulk", Backlog: 1, State: "waiting", Held: long + "rt-1"},
			{Target: "x", Group: "x", Class: "bulk", Lane: 1, Backlog: 1, State: "waiting", Held: long + "rt-2"}},
		Consumers: []admin.Consumer{{Group: "c", Topic: "t", Lag: 3}}}})
	flows, consumers := m.flows().rows, m.consumers().rows
	if len(flows) != 1 || len(consumers) != 1 {
		t.Fatalf("rows %+v and %+v", flows, consumers)
	}
	cells := flows[0].cells
	if to, state := cells[1], cells[len(cells)-1]; to != "x" || state != "waiting: "+long+"rt-1 (and 1 more like it: mqrouter status)" {
		t.Errorf("to %q, state %q", to, state)
	}
	if state := consumers[0].cells[len(consumers[0].cells)-1]; state != "" {
		t.Errorf("the first sample says of a lag: %q", state)
	}
}

// TestRatesAreOfTheLastTwoSamples, and unknown where a counter began anew.
func TestRatesAreOfTheLastTwoSamples(t *testing.T) {
	m := &Model{}
	at := func(sec int, settled, backlog uint64) {
		m.Add(noon.Add(time.Duration(sec)*time.Second), []admin.Status{{Node: "n", Group: "g", City: "a", Ready: true,
			Flows: []admin.Flow{{Target: "x", City: "b", Group: "x", Class: "bulk", Settled: settled, Backlog: backlog, State: "streaming"}}}})
	}
	cells := func() string {
		s := m.flows()
		if len(s.rows) != 1 {
			t.Fatalf("%d rows", len(s.rows))
		}
		return strings.Join(s.rows[0].cells[3:6], "|")
	}
	for _, c := range []struct {
		sec              int
		settled, backlog uint64
		want             string
	}{
		{0, 100, 50, "50||"}, {2, 300, 40, "40|-10|100"}, {3, 301, 1040, "1,040|+1,000|1.0"}, {4, 5, 1040, "1,040||"}, {5, 5, 1040, "1,040||0"},
	} {
		at(c.sec, c.settled, c.backlog)
		if got := cells(); got != c.want {
			t.Errorf("after %d s: %s, want %s", c.sec, got, c.want)
		}
	}
}

func TestOrdersSortRows(t *testing.T) {
	s := section{rows: []row{{name: "b", weight: 5, speed: 1}, {name: "c", health: Ill}, {name: "a", speed: 9}, {name: "d", health: Odd, weight: 1}}}
	for o, want := range map[Order]string{ByTrouble: "cdba", ByName: "abcd", ByRate: "abcd"} {
		s.sort(o)
		got := ""
		for _, r := range s.rows {
			got += r.name
		}
		if got != want {
			t.Errorf("by %s: %s, want %s", o, got, want)
		}
	}
	if ByRate.Next() != ByTrouble {
		t.Error("the orders do not go round")
	}
}

// TestTextsOfNodesCannotWriteToTheTerminal: an error text may hold what a
// stranger sent.
func TestTextsOfNodesCannotWriteToTheTerminal(t *testing.T) {
	all := fleet(t)
	all[0].Reasons = []string{"\x1b[2J\x07\u009b31m evil \u202e"}
	all[1].Error = "\x1b]0;title\x07"
	m := &Model{}
	m.Add(noon, all)
	for _, l := range m.Frame(Style{Width: 100, Height: 40}) {
		if strings.ContainsAny(l, "\x1b\x07\u009b\u202e") {
			t.Errorf("%q", l)
		}
	}
}

func TestFirstFillsAreNoGaps(t *testing.T) {
	for _, c := range []struct {
		gaps, fills uint64
		want        string
	}{{0, 0, "0"}, {1, 1, "0 (+1 fill)"}, {3, 1, "2 (+1 fill)"}, {2, 0, "2"}} {
		if got := GapsText(&admin.Cache{Gaps: c.gaps, Fills: c.fills}); got != c.want {
			t.Errorf("%d gaps, %d fills: %q, want %q", c.gaps, c.fills, got, c.want)
		}
	}
}

func TestEmptyFleetHasAFrame(t *testing.T) {
	m := &Model{Deployment: "d"}
	m.Add(noon, nil)
	frame := m.Frame(Style{})
	if !slices.ContainsFunc(frame, func(l string) bool { return strings.Contains(l, "no flows") }) {
		t.Errorf("%q", frame)
	}
}

func TestNumbersAreWrittenForPeople(t *testing.T) {
	for _, c := range [][2]string{
		{number(0), "0"}, {number(999), "999"}, {number(1000), "1,000"}, {number(1234567), "1,234,567"},
		{rate{}.text(), ""}, {rate{0, true}.text(), "0"}, {rate{0.04, true}.text(), "0.0"}, {rate{12345.6, true}.text(), "12,346"},
		{rate{100, true}.bytes(), "100 B"}, {rate{1536, true}.bytes(), "1.5 KiB"}, {rate{3 << 30, true}.bytes(), "3.0 GiB"},
		{lapse(0), ""}, {lapse(1500 * time.Microsecond), "1.5ms"}, {lapse(250 * time.Millisecond), "250ms"}, {lapse(90 * time.Second), "1m30s"},
		{span(3 * time.Hour), "3h00m"}, {span(72 * time.Hour), "3d"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}

func FuzzFrame(f *testing.F) {
	f.Add("disk full\x1b[2J", uint16(80), uint16(24))
	f.Add("", uint16(0), uint16(0))
	f.Add(strings.Repeat("漢", 300), uint16(20), uint16(5))
	f.Fuzz(func(t *testing.T, text string, width, height uint16) {
		all := fleet(t)
		all[0].Error, all[1].Reasons, all[2].City = text, []string{text}, text
		for i := range all {
			for k := range all[i].Flows {
				all[i].Flows[k].Held = text
			}
		}
		m := &Model{Deployment: text}
		m.Add(noon, all)
		m.Add(noon.Add(time.Second), all)
		for _, l := range m.Frame(Style{Width: int(width), Height: int(height), Colour: true, Keys: true}) {
			plain := ansi.ReplaceAllString(l, "")
			if strings.ContainsRune(plain, '\x1b') || (width > 0 && utf8.RuneCountInString(plain) > int(width)) {
				t.Errorf("%dx%d: %q", width, height, l)
			}
		}
	})
}
