package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// printTimers shows the brokers at which delayed messages wait, and what blocks
// those that are due.
func printTimers(w io.Writer, all []admin.Status) {
	t := newTable("DELAYED AT", "ZONE", "PENDING", "NEXT DUE", "OVERDUE", "HOLDS", "BLOCKED")
	why := newTable("BLOCKED AT", "TOPIC", "MESSAGES", "SINCE", "WHY")
	for _, s := range all {
		d := s.Timers
		if d == nil {
			continue
		}
		next, held, blocked := "-", "-", 0
		if !d.Next.IsZero() {
			next = d.Next.Local().Format(time.DateTime)
		}
		if d.Held != nil {
			held = size(uint64(*d.Held))
		}
		for _, b := range d.Blocked {
			blocked += b.Count
			why.row(s.Node, b.Topic, b.Count, b.Since.Local().Format(time.DateTime), b.Why)
		}
		pending := fmt.Sprint(d.Pending)
		if d.Limit > 0 && d.Pending*10 >= uint64(d.Limit)*9 {
			pending += fmt.Sprintf(" (limit %d)", d.Limit)
		}
		t.row(s.Node, s.Zone, pending, next, age(d.Overdue), held, blocked)
	}
	if len(t.rows) == 0 {
		return
	}
	section(w, "delayed messages", t)
	if len(why.rows) > 0 {
		section(w, "blocked messages", why)
	}
}

// printLimits shows how much of the limits that brokers are configured with is in use.
func printLimits(w io.Writer, all []admin.Status) {
	t := newTable("LIMIT OF", "ZONE", "WHAT", "TOPIC", "USED", "LIMIT", "REFUSED")
	for _, s := range all {
		for _, l := range s.Limits {
			topic := l.Topic
			if topic == "" {
				topic = "(all)"
			}
			t.row(s.Node, s.Zone, l.What, topic, fmt.Sprintf("%d (%d%%)", l.Used, 100*int64(l.Used)/int64(max(l.Limit, 1))), l.Limit, l.Refused)
		}
	}
	if len(t.rows) > 0 {
		section(w, "limits", t)
	}
}
