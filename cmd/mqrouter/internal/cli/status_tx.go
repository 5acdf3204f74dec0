package cli

import (
	"fmt"
	"io"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// printTransactions shows the topics with half messages that wait, and what became
// of the others; nothing where no broker ever had one.
func printTransactions(w io.Writer, all []admin.Status) {
	t := newTable("TRANSACTIONS OF", "ZONE", "NODE", "UNDECIDED", "OLDEST", "ASKED ABOUT", "STATE")
	for _, s := range all {
		for _, x := range s.Transactions {
			state := "waits for its producers"
			if x.Alone {
				state = "no producer is connected"
			}
			t.row(x.Topic, s.Zone, s.Node, x.Pending, age(x.Oldest), x.Checked, state)
		}
		if d := s.Decided; d != (admin.Decided{}) {
			t.row("(decided)", s.Zone, s.Node, "-", "-", "-", fmt.Sprintf("%d committed, %d rolled back, %d parked", d.Committed, d.RolledBack, d.Parked))
		}
	}
	if len(t.rows) > 0 {
		section(w, "transactions", t)
	}
}
