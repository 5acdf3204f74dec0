package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// TestStatusCountsGroupsThatHaveNothingToConsume: with many zones, most rows would
// say that there is nothing to see.
func TestStatusCountsGroupsThatHaveNothingToConsume(t *testing.T) {
	idle := admin.Consumer{Group: "audit", Topic: "orders"}
	busy := []admin.Consumer{{Group: "credit", Topic: "transfer", Lag: 3}, {Group: "debit", Topic: "transfer", InFlight: 1}}
	for _, c := range []struct {
		consumers  []admin.Consumer
		zeros      bool
		with, less []string
	}{
		{append(busy, idle, idle), false, []string{"credit", "debit", "and 2 more that have consumed everything"}, []string{"audit"}},
		{append(busy, idle, idle), true, []string{"credit", "debit", "audit"}, []string{"more that"}},
		{busy, false, []string{"credit"}, []string{"more that"}},
		{[]admin.Consumer{idle}, false, []string{"all have consumed everything"}, []string{"audit", "no consumer groups"}},
		{nil, false, []string{"no consumer groups"}, []string{"consumed"}},
	} {
		var out bytes.Buffer
		printConsumers(&out, []admin.Status{{Node: "rz01-a", Zone: "rz01", Consumers: c.consumers}}, c.zeros)
		for _, want := range c.with {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%+v, all=%v: no %q in\n%s", c.consumers, c.zeros, want, out.String())
			}
		}
		for _, not := range c.less {
			if strings.Contains(out.String(), not) {
				t.Errorf("%+v, all=%v: %q in\n%s", c.consumers, c.zeros, not, out.String())
			}
		}
	}
}

// TestLatencyTellsOfMessagesThatItDidNotMeasure: a table of dashes says nothing.
func TestLatencyTellsOfMessagesThatItDidNotMeasure(t *testing.T) {
	if text := (&latencyResult{Sent: 10, Received: 10}).notes("g"); text != "" {
		t.Errorf("notes of a run without anything missing: %q", text)
	}
	text := (&latencyResult{Sent: 10, Received: 7, Older: 90}).notes("g")
	for _, want := range []string{"90 messages of a backlog of g came first", "3 messages did not arrive"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
}
