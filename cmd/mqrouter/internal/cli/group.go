package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// groupRow is what `group list` prints for each consumer group.
type groupRow struct {
	Name        string   `json:"name"`
	Topics      []string `json:"topics"`
	Zones       []string `json:"zones,omitempty"`
	MaxAttempts int      `json:"max_attempts"`
	Cache       bool     `json:"cache,omitempty"`
	Declared    bool     `json:"declared"`
}

// groupProgress is a consumer group's use of one topic at one broker.
type groupProgress struct {
	Zone string `json:"zone"`
	Node string `json:"node"`
	admin.Consumer
}

func newGroup(e *env) *cobra.Command {
	c := &cobra.Command{Use: "group", Short: "Show consumer groups, and have them go on elsewhere"}
	list := e.asks(&cobra.Command{
		Use:   "list",
		Short: "List the consumer groups of the topology",
		Args:  noArgs,
	}, func(_ context.Context, f *fleet, _ []string) error {
		rows := []groupRow{}
		for _, g := range f.topology.Groups {
			rows = append(rows, describeGroup(g))
		}
		return e.show(rows, func(w io.Writer) {
			tab := newTable("CONSUMER GROUP", "TOPICS", "ZONES", "ATTEMPTS", "KIND")
			for _, r := range rows {
				kind := "clients"
				if r.Cache {
					kind = "cache"
				}
				tab.row(r.Name, strings.Join(r.Topics, " "), orAll(r.Zones, "where it lands"), r.MaxAttempts, kind)
			}
			tab.print(w)
		})
	})
	show := e.asks(&cobra.Command{
		Use:   "show GROUP",
		Short: "Show a consumer group's progress at every broker",
		Args:  exactArgs(1, "the consumer group"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		all := f.statuses(ctx)
		if err := e.showGroup(f, args[0], all); err != nil {
			return err
		}
		return unanswered(all)
	})
	c.AddCommand(list, show, newGroupReset(e))
	return c
}

func describeGroup(g *zone.ConsumerGroupInfo) groupRow {
	r := groupRow{Name: string(g.Name), Topics: []string{}, MaxAttempts: g.MaxAttempts, Cache: g.Cache, Declared: true}
	for _, t := range g.Topics {
		r.Topics = append(r.Topics, string(t.Name))
	}
	for _, z := range g.Zones {
		r.Zones = append(r.Zones, string(z.Name))
	}
	return r
}

func (e *env) showGroup(f *fleet, name string, all []admin.Status) error {
	progress := []groupProgress{}
	for _, s := range all {
		for _, c := range s.Consumers {
			if c.Group == name {
				progress = append(progress, groupProgress{s.Zone, s.Node, c})
			}
		}
	}
	row := groupRow{Name: name, Topics: []string{}}
	if g := f.topology.FindConsumerGroup(zone.ConsumerGroup(name)); g != nil {
		row = describeGroup(g)
	} else if len(progress) == 0 {
		return fmt.Errorf("consumer group %q is neither in the topology nor known to a broker; mqrouter group list shows the declared ones", name)
	}
	return e.show(struct {
		groupRow
		Progress []groupProgress `json:"progress"`
	}{row, progress}, func(w io.Writer) {
		fmt.Fprintf(w, "consumer group  %s\ntopics          %s\nzones           %s\nmax attempts    %d\n\n",
			row.Name, strings.Join(row.Topics, " "), orAll(row.Zones, "where the topics land"), row.MaxAttempts)
		tab := newTable("TOPIC", "ZONE", "NODE", "LAG", "IN FLIGHT", "WAITING", "MESSAGE GROUPS", "BEHIND THEM")
		for _, p := range progress {
			tab.row(p.Topic, p.Zone, p.Node, p.Lag, p.InFlight, p.Waiting, p.MessageGroups, p.Behind)
		}
		tab.print(w)
		printLiteUse(w, progress)
	})
}

// printLiteUse says what the group does with lite topics, if it has any.
func printLiteUse(w io.Writer, progress []groupProgress) {
	tab, any := newTable("TOPIC", "ZONE", "NODE", "LITE TOPICS", "CLIENTS", "SUBSCRIPTIONS", "ASLEEP"), false
	for _, p := range progress {
		if p.Lite != nil {
			tab.row(p.Topic, p.Zone, p.Node, p.Lite.Mode, p.Lite.Clients, p.Lite.Named, p.Lite.Asleep)
			any = true
		}
	}
	if any {
		fmt.Fprintln(w)
		tab.print(w)
	}
}
