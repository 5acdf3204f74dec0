package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/watch"
	"github.com/mqrouter/mqrouter/internal/admin"
)

func newStatus(e *env) *cobra.Command {
	var p watchFlags
	var zeros bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show every node: cities, links, flows, consumer groups, caches",
		Long: `Ask every node of the deployment and show its cities, the links between
routers with their round-trip time, the flows with backlog and age of the oldest
record, half and delayed messages, receipts that are not written yet and what they
wait for, consumer groups with lag (those without are counted; --all lists them), and
caches with their watermarks. A node that does not answer is shown as such, and
the command fails.

With --watch it goes on, and shows rates and changes too, what is wrong first:
on a terminal as a picture that is drawn anew (q ends, s sorts by trouble, name
or rate, tab shows one part alone, space pauses; without colours when NO_COLOR is
set), else one sample below the other, and as a line of JSON each with -o json.`,
		Example: `  mqrouter status
  mqrouter status --watch --interval 2s
  mqrouter status --topology /etc/mqrouter/topology.yaml -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.check(c); err != nil {
				return err
			}
			f, err := e.openFleet(c.Context())
			if err != nil {
				return err
			}
			if p.on {
				return p.run(c.Context(), e, f)
			}
			all := f.statuses(c.Context())
			if err := e.show(all, func(w io.Writer) { printStatus(w, f, all, zeros) }); err != nil {
				return err
			}
			return unanswered(all)
		},
	}
	c.Flags().BoolVar(&zeros, "all", false, "also the consumer groups that have nothing to consume")
	c.Flags().BoolVar(&p.on, "watch", false, "go on, and show rates and changes")
	c.Flags().DurationVar(&p.interval, "interval", time.Second, "with --watch: time between samples")
	c.Flags().IntVar(&p.count, "count", 0, "with --watch: end after so many samples; 0: go on until interrupted")
	e.fleetFlags(c)
	return c
}

// unanswered is an error that names the nodes that did not answer.
func unanswered(all []admin.Status) error {
	var silent []string
	for _, s := range all {
		if s.Error != "" {
			silent = append(silent, s.Node)
		}
	}
	if len(silent) > 0 {
		return fmt.Errorf("%d of %d nodes did not answer: %s", len(silent), len(all), strings.Join(silent, ", "))
	}
	return nil
}

func printStatus(w io.Writer, f *fleet, all []admin.Status, zeros bool) {
	fmt.Fprintf(w, "deployment %s, topology epoch %s: %s\n\n", f.topology.Deployment, f.topology.Epoch, verdict(all))
	printNodes(w, all)
	printLinks(w, all)
	printPaths(w, all)
	printFlows(w, all)
	printTransactions(w, all)
	printReceipts(w, all)
	printTimers(w, all)
	printLimits(w, all)
	printConsumers(w, all, zeros)
	printCaches(w, all)
	printMembers(w, all)
	printCoordinators(w, all)
}

// verdict sums the deployment up in a line.
func verdict(all []admin.Status) string {
	var ready, up, links int
	var backlog, lag uint64
	for _, s := range all {
		if s.Ready && s.Error == "" {
			ready++
		}
		for _, l := range s.Links {
			links++
			if l.State == "up" {
				up++
			}
		}
		for _, f := range s.Flows {
			backlog += f.Backlog
		}
		for _, c := range s.Consumers {
			lag += c.Lag
		}
	}
	return fmt.Sprintf("%d of %d nodes ready, %d of %d link ends up, %s on the way, %s not consumed",
		ready, len(all), up, links, count(int(backlog), "record", "records"), count(int(lag), "message", "messages"))
}

func printNodes(w io.Writer, all []admin.Status) {
	t := newTable("CITY", "ZONE", "NODE", "ROLE", "EPOCH", "MEMBERS", "STATE")
	for _, s := range all {
		members := "-" // cache readers take no part in gossip
		if s.Members > 0 {
			members = fmt.Sprint(s.Members)
		}
		t.row(s.City, s.Zone, s.Node, s.Role, s.Topology.Epoch, members, nodeState(s))
	}
	t.print(w)
}

// nodeState says in one line how a node is, with every reason that it gives.
func nodeState(s admin.Status) string {
	if s.Error != "" {
		return "no answer: " + strings.TrimPrefix(s.Error, "admin: ")
	}
	state := "ready"
	if !s.Ready {
		state = "not ready"
	}
	why := strings.Join(s.Reasons, "; ")
	if s.Topology.Problem != "" {
		if why != "" {
			why += "; "
		}
		why += s.Topology.Problem
	}
	if why != "" {
		state += ": " + strings.Join(strings.Fields(why), " ")
	}
	return state
}

// printLinks shows each link once, as its first end tells it, unless the other
// end sees it otherwise or did not answer.
func printLinks(w io.Writer, all []admin.Status) {
	type end struct{ node, peer, class string }
	state := map[end]string{}
	for _, s := range all {
		for _, l := range s.Links {
			state[end{s.Node, l.Peer, l.Class}] = l.State
		}
	}
	t := newTable("LINK", "CITIES", "CLASS", "RTT", "LOSS", "CORRECTED", "CONNECTIONS", "SESSIONS", "SENT", "RECEIVED", "OUT/S", "IN/S", "BOUND BY", "STATE")
	for _, s := range all {
		for _, l := range s.Links {
			if s.Node > l.Peer && state[end{l.Peer, s.Node, l.Class}] == l.State {
				continue
			}
			state := l.State
			if l.Problem != "" {
				state += ": " + l.Problem
			}
			loss, corrected := lossOf(&l)
			t.row(s.Node+" - "+l.Peer, s.City+" - "+l.City, l.Class, age(l.RTT), loss, corrected, l.Connections, l.Sessions,
				size(l.Sent), size(l.Received), size(uint64(l.Out)), size(uint64(l.In)), boundOf(&l), state)
		}
	}
	section(w, "links between routers", t)
}

// boundOf says what keeps a link from sending more; of windows, how large they are.
func boundOf(l *admin.Link) string {
	if l.Bound == "window" && l.Window > 0 {
		return l.Bound + " " + size(uint64(l.Window))
	}
	return cmp.Or(l.Bound, "-")
}

// lossOf says what a path loses, and what correction makes of that at which price.
func lossOf(l *admin.Link) (loss, corrected string) {
	c := l.Correction
	if c == nil {
		return fmt.Sprintf("%.2f%%", 100*l.Loss), "-"
	}
	corrected = fmt.Sprintf("%.2f%% left, +%.0f%%", 100*l.Loss, 100*c.Redundancy)
	if c.Congested {
		corrected = fmt.Sprintf("held back: queue of %s", age(c.Queue))
	}
	return fmt.Sprintf("%.2f%%", 100*c.Loss), corrected
}

func printFlows(w io.Writer, all []admin.Status) {
	t := newTable("FLOW", "TO", "CLASS", "LANE", "HEAD", "SETTLED", "BACKLOG", "OLDEST", "BUDGET", "LOST", "STATE")
	for _, s := range all {
		for _, fl := range s.Flows {
			target := fl.Group
			if fl.Channel {
				target = fl.Group + " (" + fl.Target + ")"
			}
			state := fl.State
			if fl.Held != "" {
				state += ": " + fl.Held
			}
			from := s.Group
			if fl.Origin != "" {
				from += " (of " + fl.Origin + ")"
			}
			t.row(from, watch.InCity(target, fl.City), fl.Class, fl.Lane, fl.Head, fl.Settled, fl.Backlog, age(fl.OldestAge), budgetUsed(fl), fl.Lost, state)
		}
	}
	section(w, "flows", t)
}

// budgetUsed tells of the topic that is nearest to its budget, and what happens
// at its end.
func budgetUsed(f admin.Flow) string {
	text, most := "-", 0.0
	for _, b := range f.Budgets {
		if used := float64(b.Held) / float64(max(b.Limit, 1)); b.Limit > 0 && used > most {
			text, most = fmt.Sprintf("%.0f%% of %s (%s)", 100*used, b.Topic, b.End), used
		}
	}
	return text
}

// printConsumers shows the consumer groups that have something to consume, and how
// many have not, unless zeros asks for them too.
func printConsumers(w io.Writer, all []admin.Status, zeros bool) {
	t := newTable("CONSUMER GROUP", "TOPIC", "ZONE", "NODE", "LAG", "IN FLIGHT")
	idle := 0
	for _, s := range all {
		for _, c := range s.Consumers {
			if !zeros && c.Lag == 0 && c.InFlight == 0 {
				idle++
				continue
			}
			t.row(c.Group, c.Topic, s.Zone, s.Node, c.Lag, c.InFlight)
		}
	}
	if idle > 0 && len(t.rows) == 0 {
		fmt.Fprintf(w, "\nconsumer groups: all have consumed everything (--all lists them)\n")
		return
	}
	section(w, "consumer groups", t)
	if idle > 0 {
		fmt.Fprintf(w, "and %d more that have consumed everything; --all shows them\n", idle)
	}
}

func printCaches(w io.Writer, all []admin.Status) {
	t := newTable("CACHE", "CITY", "KIND", "LAG", "APPLIED", "SUPERSEDED", "REJECTED", "GAPS", "WATERMARKS", "STATE")
	for _, s := range all {
		c := s.Cache
		if c == nil {
			continue
		}
		var marks []string
		for _, m := range c.Watermarks {
			marks = append(marks, fmt.Sprintf("%s=%d", m.Origin, m.Number))
		}
		state := c.State
		if c.Problem != "" {
			state += ": " + c.Problem
		}
		t.row(s.Node, s.City, c.Kind, c.Lag, c.Applied, c.Superseded, c.Rejected, watch.GapsText(c), strings.Join(marks, " "), state)
	}
	section(w, "caches", t)
}

// sectionOfSome prints what only some deployments have; without rows nothing.
func sectionOfSome(w io.Writer, t *table) {
	if len(t.rows) > 0 {
		section(w, "", t)
	}
}

func section(w io.Writer, title string, t *table) {
	if len(t.rows) == 0 {
		fmt.Fprintf(w, "\nno %s\n", title)
		return
	}
	fmt.Fprintln(w)
	t.print(w)
}
