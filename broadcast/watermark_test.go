package broadcast

import (
	"errors"
	"reflect"
	"testing"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func channelFlow(origin zone.Group, store record.Incarnation) record.FlowID {
	return record.FlowID{Origin: origin, Incarnation: store, Target: "member", Channel: true, Class: zone.ClassUrgent}
}

// TestMarksFollowTheLandings walks a story: each landing, and what it does.
func TestMarksFollowTheLandings(t *testing.T) {
	a, b, a2 := channelFlow("rz01-a", 1), channelFlow("rz02-a", 9), channelFlow("rz01-a", 2)
	m := NewMarks(nil)
	for i, c := range []struct {
		flow    record.FlowID
		lineage record.LineageID
		epoch   uint64
		number  uint64
		moved   bool
		missing Range
		drop    int
	}{
		{a, 100, 1, 5, true, Range{}, 0},        // new to the cache: begins here
		{a, 100, 1, 6, true, Range{}, 0},        // next
		{b, 700, 1, 1, true, Range{}, 0},        // another origin has its own numbers
		{a, 100, 1, 6, false, Range{}, 0},       // again
		{a, 100, 1, 4, false, Range{}, 0},       // a refill
		{a, 100, 1, 9, true, Range{7, 8}, 0},    // a hole
		{a, 200, 2, 8, true, Range{}, 0},        // the origin came back shorter: a new lineage
		{a, 100, 1, 9, false, Range{}, 0},       // a refill of what the old one had
		{a, 200, 2, 9, true, Range{}, 0},        // goes on
		{a, 300, 3, 12, true, Range{10, 11}, 0}, // a hole across lineages
		{a2, 400, 1, 1, true, Range{}, 1},       // the store was made anew
	} {
		s := m.Judge(&record.Envelope{Flow: c.flow, Lineage: c.lineage, LineageEpoch: c.epoch, Number: c.number})
		m.Move(s)
		if s.Moved != c.moved || s.Missing != c.missing || len(s.Drop) != c.drop {
			t.Errorf("landing %d: %+v", i, s)
		}
	}
	want := []Mark{{a2, 400, 1, 1}, {b, 700, 1, 1}}
	if got := m.List(); !reflect.DeepEqual(got, want) {
		t.Errorf("marks %+v, want %+v", got, want)
	}
	if got := NewMarks(m.List()).List(); !reflect.DeepEqual(got, want) {
		t.Errorf("marks %+v after a restart", got)
	}
}

func TestMarkTextIsPinned(t *testing.T) {
	m := Mark{Flow: channelFlow("rz01-a", 0xAB), Lineage: 0xCD, Epoch: 3, Number: 1<<64 - 1}
	if f, v := m.Field(), m.Value(); f != "rz01-a|00000000000000ab|channel|member|2|0" || v != "00000000000000cd|3|18446744073709551615" {
		t.Fatalf("%s = %s", f, v)
	}
	back, err := ParseMark(m.Field(), m.Value())
	if err != nil || back != m {
		t.Fatalf("%+v, %v", back, err)
	}
	for _, bad := range [][2]string{{"", ""}, {m.Field(), "x"}, {"a|b|c|d|e|f", m.Value()}, {m.Field(), "zz|3|1"}, {m.Field() + "|", m.Value()}, {m.Field(), m.Value() + "0"}} {
		_, err := ParseMark(bad[0], bad[1])
		var e *MarkError
		if !errors.As(err, &e) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestBeginTellsWhatTheLogNoLongerHas(t *testing.T) {
	at := Place{Group: "cz-sh-a", Incarnation: 7, Offset: 10}
	for name, c := range map[string]struct {
		place     Place
		found     wire.Found
		exclusive bool
		want      GapKind
		missing   uint64
	}{
		"empty cache":              {Place{}, wire.Found{Incarnation: 7}, true, GapFirstStart, 0},
		"goes on":                  {at, wire.Found{Incarnation: 7, Next: 10}, true, 0, 0},
		"the group fell back":      {at, wire.Found{Incarnation: 7, Next: 8}, true, 0, 0},
		"trimmed":                  {at, wire.Found{Incarnation: 7, First: 14, Next: 14}, true, GapTrimmed, 4},
		"another store, whole":     {at, wire.Found{Incarnation: 8}, true, 0, 0},
		"another store, shared":    {at, wire.Found{Incarnation: 8}, false, GapTrimmed, 0},
		"another store, not whole": {at, wire.Found{Incarnation: 8, First: 3, Next: 3}, true, GapTrimmed, 0},
	} {
		g, ok := begin(c.place, &c.found, c.exclusive)
		if ok != (c.want != 0) || g.Kind != c.want || g.Missing.Len() != c.missing {
			t.Errorf("%s: %+v", name, g)
		}
	}
	if inc, off := wanted(Place{}); inc == 0 || off != 0 {
		t.Error("an empty cache does not ask for everything")
	}
	if inc, off := wanted(at); inc != 7 || off != 10 {
		t.Error("a cache does not ask for what comes next")
	}
}
