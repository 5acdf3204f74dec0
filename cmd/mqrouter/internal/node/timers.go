package node

import (
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
)

// timersOf tells of delayed messages, and why some are late; nil when there is
// nothing to tell.
func timersOf(b broker.TimerStatus) (*admin.Timers, []string) {
	if b.Pending == 0 && b.ClockStep == 0 && b.Refused == "" {
		return nil, nil
	}
	t := &admin.Timers{Pending: b.Pending, Limit: b.Limit, Hours: b.Buckets, Next: b.Next, Overdue: b.Overdue, Problem: b.Refused, ClockStep: b.ClockStep}
	if b.Held >= 0 {
		t.Held = &b.Held
	}
	var reasons []string
	if b.Refused != "" {
		reasons = append(reasons, "delayed messages: "+b.Refused)
	}
	if b.ClockStep != 0 {
		reasons = append(reasons, fmt.Sprintf("the wall clock was set by %s; delayed messages follow it when that has lasted", b.ClockStep.Round(time.Millisecond)))
	}
	for _, l := range b.Blocked {
		t.Blocked = append(t.Blocked, admin.BlockedTimers{Topic: string(l.Topic), Count: l.Count, Since: l.Since, Why: l.Why})
		reasons = append(reasons, fmt.Sprintf("due messages of %s are blocked, %d: %s", l.Topic, l.Count, l.Why))
	}
	return t, reasons
}
