package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func newBrokerGroup(e *env) *cobra.Command {
	c := &cobra.Command{Use: "brokergroup", Short: "Show broker groups with replicas, and order who is master"}
	c.AddCommand(newBrokerGroupStatus(e), newBrokerGroupCheck(e), newBrokerGroupSwitch(e), newBrokerGroupFailover(e))
	return c
}

func newBrokerGroupStatus(e *env) *cobra.Command {
	var records bool
	c := e.asks(&cobra.Command{
		Use:     "status [GROUP]",
		Aliases: []string{"list"},
		Short:   "Show masters, replicas, and what they lack",
		Long: `Show the broker groups that have several nodes: who is master in which epoch, which
nodes are in sync, how many bytes each is behind, how long the master may still answer,
which topics are refused for want of copies, whose log has diverged, and which logs were
set aside. It costs the nodes nothing, so that a monitor may ask often.

--records tells how many records each is behind, too. The master reads them for that, at
most 64 MiB for each replica: a + behind their number says that there are more.

All nodes of the deployment are asked; any of them may be given with --admin.`,
		Args: optionalArg("a broker group"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		var groups []*brokerGroup
		if len(args) == 1 {
			v, err := f.brokerGroup(ctx, args[0])
			if err != nil {
				return err
			}
			groups = []*brokerGroup{v}
		} else {
			groups = brokerGroups(f.topology, f.statuses(ctx))
		}
		for _, v := range groups {
			if records {
				f.countLag(ctx, v)
			}
		}
		return e.show(groups, func(w io.Writer) { printBrokerGroups(w, groups) })
	})
	c.Flags().BoolVar(&records, "records", false, "have the master count the records that each replica is behind")
	return c
}

func printBrokerGroups(w io.Writer, groups []*brokerGroup) {
	if len(groups) == 0 {
		fmt.Fprintln(w, "no broker group has several nodes")
		return
	}
	terms := newTable("BROKER GROUP", "ZONE", "EPOCH", "MASTER", "LEASE LEFT", "IN SYNC", "NOTE")
	nodes := newTable("BROKER GROUP", "NODE", "ROOM", "STATE", "LOG EPOCH", "COMMITTED", "END", "BEHIND", "RECORDS", "NOTE")
	for _, v := range groups {
		lease := "-"
		if v.Serves {
			lease = age(v.Lease)
		}
		terms.row(v.Group, v.Zone, v.Epoch, orDash(v.Master), lease, fmt.Sprintf("%d of %d: %s", len(v.InSync), len(v.Nodes), orDash(strings.Join(v.InSync, " "))), orDash(v.note()))
		for _, n := range v.Nodes {
			nodes.row(v.Group, n.Node, orDash(n.Room), n.State, n.LogEpoch, n.Committed, n.End, size(n.Behind), n.records(), orDash(n.note()))
		}
	}
	terms.print(w)
	fmt.Fprintln(w)
	nodes.print(w)
}

// note says what an operator should know of a group.
func (v *brokerGroup) note() string {
	var notes []string
	if !v.Led {
		notes = append(notes, v.notLed())
	}
	switch {
	case v.Master == "":
		notes = append(notes, strings.TrimSuffix("no master: "+v.Waiting, ": "))
	case !v.Serves:
		notes = append(notes, "the master does not serve, or does not answer")
	}
	if len(v.Proposed) > 0 {
		notes = append(notes, "becoming "+strings.Join(v.Proposed, " "))
	}
	for _, s := range v.Short {
		notes = append(notes, fmt.Sprintf("publishes to %s are refused: it asks for %d in sync", s.Topic, s.Wants))
	}
	if l := v.Lost; l != nil {
		notes = append(notes, fmt.Sprintf("epoch %d gave up what was acknowledged from %d on, at least up to %d", l.Epoch, l.From, max(l.From, l.Known)))
	}
	return strings.Join(notes, "; ")
}

func (n *groupNode) records() string {
	switch {
	case n.Records == nil:
		return "-"
	case n.More:
		return fmt.Sprintf("%d+", *n.Records)
	}
	return fmt.Sprint(*n.Records)
}

func (n *groupNode) note() string {
	var notes []string
	if n.Problem != "" {
		notes = append(notes, n.Problem)
	}
	if len(n.SetAside) > 0 {
		notes = append(notes, "set aside in its data folder: "+strings.Join(n.SetAside, " "))
	}
	if n.Tails > 0 {
		notes = append(notes, fmt.Sprintf("keeps %s of %s that the group has not: see mqrouter tail list",
			count(n.TailMessages, "message", "messages"), count(n.Tails, "tail", "tails")))
		if n.TailWaiting > 0 {
			notes = append(notes, fmt.Sprintf("%d of them wait to be offered again", n.TailWaiting))
		}
	}
	return strings.Join(notes, "; ")
}
