package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// printReceipts shows the topics with messages that have no receipt yet and what that
// waits for, and how many had one; nothing where no broker ever gave one.
func printReceipts(w io.Writer, all []admin.Status) {
	t := newTable("RECEIPTS OF", "TO", "ZONE", "NODE", "MESSAGES", "STATE")
	for _, s := range all {
		if s.Receipts == nil {
			continue
		}
		for _, r := range s.Receipts.Topics {
			left := r.Open
			for _, x := range r.Waiting {
				left -= min(left, x.Messages)
				t.row(r.Topic, r.To, s.Zone, s.Node, x.Messages, fmt.Sprintf("waits for room in the backlog of %s, since %s", x.Target, x.Since.Local().Format(time.DateTime)))
			}
			switch {
			case left > 0 && r.Slowest != "":
				t.row(r.Topic, r.To, s.Zone, s.Node, left, "waits for consumer groups, "+r.Slowest+" the longest")
			case left > 0:
				t.row(r.Topic, r.To, s.Zone, s.Node, left, "about to be written")
			}
		}
		state := "had one"
		if n := s.Receipts.None; n > 0 {
			state += fmt.Sprintf("; %d more can have none", n)
		}
		t.row("(given)", "-", s.Zone, s.Node, s.Receipts.Given, state)
	}
	if len(t.rows) > 0 {
		section(w, "receipts", t)
	}
}
