package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

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

// TestStatusShowsDelayedMessages: how many wait, how late they are, and why.
func TestStatusShowsDelayedMessages(t *testing.T) {
	var out bytes.Buffer
	printTimers(&out, []admin.Status{{Node: "rz01-a-1", Zone: "rz01"}})
	if out.Len() != 0 {
		t.Errorf("without any: %s", out.String())
	}
	held := int64(3 << 20)
	printTimers(&out, []admin.Status{{Node: "rz01-a-1", Zone: "rz01", Timers: &admin.Timers{
		Pending: 95, Limit: 100, Overdue: 3 * time.Second, Held: &held,
		Blocked: []admin.BlockedTimers{{Topic: "transfer", Count: 7, Why: "no destination"}, {Topic: "orders", Count: 2, Why: "full"}},
	}}})
	for _, want := range []string{"rz01-a-1", "95 (limit 100)", "3s", "3.0 MiB", " 9", "transfer", "no destination", "full"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestStatusShowsTheUseOfLimits(t *testing.T) {
	var out bytes.Buffer
	printLimits(&out, []admin.Status{{Node: "rz01-a-1"}})
	if out.Len() > 0 {
		t.Errorf("nothing in use is shown as\n%s", out.String())
	}
	printLimits(&out, []admin.Status{{Node: "rz01-a-1", Zone: "rz01", Limits: []admin.Limit{
		{What: "delayed messages", Used: 900, Limit: 1000, Refused: 3}, {What: "message ids", Topic: "pay", Used: 1, Limit: 1000},
	}}})
	for _, line := range []string{`rz01-a-1 +rz01 +delayed messages +\(all\) +900 \(90%\) +1000 +3`, `rz01-a-1 +rz01 +message ids +pay +1 \(0%\) +1000 +0`} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("no line is like %s:\n%s", line, out.String())
		}
	}
}

// TestStatusShowsReceipts: how many are to come, and what they wait for.
func TestStatusShowsReceipts(t *testing.T) {
	var out bytes.Buffer
	printReceipts(&out, []admin.Status{{Node: "rz01-a-1", Zone: "rz01"}})
	if out.Len() > 0 {
		t.Errorf("without any: %s", out.String())
	}
	since := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	printReceipts(&out, []admin.Status{
		{Node: "rz04-a-1", Zone: "rz04", Receipts: &admin.Receipts{Given: 12, None: 3, Topics: []admin.ReceiptTopic{
			{Topic: "transfer", To: "told", Open: 100, Slowest: "credit", Waiting: []admin.ReceiptsWaiting{{Target: "rz02-a", Messages: 60, Since: since}}},
			{Topic: "orders", To: "told", Open: 7},
		}}},
		{Node: "rz02-a-1", Zone: "rz02", Receipts: &admin.Receipts{Given: 5}},
	})
	for _, line := range []string{`transfer +told +rz04 +rz04-a-1 +60 +waits for room in the backlog of rz02-a, since 2026-01-02 15:04:05`,
		`transfer +told +rz04 +rz04-a-1 +40 +waits for consumer groups, credit the longest`, `orders +told +rz04 +rz04-a-1 +7 +about to be written`,
		`\(given\) +- +rz04 +rz04-a-1 +12 +had one; 3 more can have none`, `\(given\) +- +rz02 +rz02-a-1 +5 +had one`} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("no line is like %s:\n%s", line, out.String())
		}
	}
}

// TestStatusHasNoTablesOfWhatIsNotThere: replicas and voters, which most deployments try
// out later, have no heads above nothing, and a line above them when they are there.
func TestStatusHasNoTablesOfWhatIsNotThere(t *testing.T) {
	show := func(s ...admin.Status) string {
		var b strings.Builder
		printMembers(&b, s)
		printCoordinators(&b, s)
		return b.String()
	}
	if got := show(admin.Status{}); got != "" {
		t.Errorf("without replicas: %q", got)
	}
	got := show(admin.Status{Member: &admin.Member{Role: "master"}, Coordinator: &admin.Coordinator{State: "leader"}})
	if !strings.HasPrefix(got, "\nGROUP") || !strings.Contains(got, "\n\nCITY  VOTER") || strings.Contains(got, "COORDINATED GROUP") {
		t.Errorf("with one voter that has no group: %q", got)
	}
}
