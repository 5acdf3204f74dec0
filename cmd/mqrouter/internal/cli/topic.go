package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// topicRow is what `topic list` prints for each topic.
type topicRow struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`
	Route     string   `json:"route"`
	Class     string   `json:"class"`
	Queues    int      `json:"queues"`
	Retention string   `json:"retention"`
	Budget    string   `json:"budget"`
	AtBudget  string   `json:"at_budget"`
	Residency []string `json:"residency,omitempty"`
	// Transaction says how half messages are checked; empty for other kinds.
	Transaction string   `json:"transaction,omitempty"`
	Lite        string   `json:"lite,omitempty"`     // bounds of its lite topics; empty for other kinds
	Receipts    string   `json:"receipts,omitempty"` // the topic of its receipts
	Consumers   []string `json:"consumer_groups,omitempty"`
}

// topicQueue is one queue of a topic at one broker.
type topicQueue struct {
	Zone  string `json:"zone"`
	Node  string `json:"node"`
	Queue int    `json:"queue"`
	First uint64 `json:"first"`
	Next  uint64 `json:"next"`
}

// liteAt is how many lite topics of a topic live at one broker.
type liteAt struct {
	Zone string `json:"zone"`
	Node string `json:"node"`
	admin.LiteTopics
}

func newTopic(e *env) *cobra.Command {
	c := &cobra.Command{Use: "topic", Short: "Show topics"}
	list := e.asks(&cobra.Command{
		Use:   "list",
		Short: "List the topics of the topology",
		Args:  noArgs,
	}, func(_ context.Context, f *fleet, _ []string) error {
		rows := []topicRow{}
		for _, t := range f.topology.Topics {
			rows = append(rows, describeTopic(t))
		}
		return e.show(rows, func(w io.Writer) {
			tab := newTable("TOPIC", "KIND", "ROUTE", "CLASS", "QUEUES", "RETENTION", "CONSUMER GROUPS")
			for _, r := range rows {
				tab.row(r.Name, r.Kind, r.Route, r.Class, r.Queues, r.Retention, strings.Join(r.Consumers, " "))
			}
			tab.print(w)
		})
	})
	show := e.asks(&cobra.Command{
		Use:   "show TOPIC",
		Short: "Show a topic and its queues at every broker",
		Args:  exactArgs(1, "the topic"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		t := f.topology.FindTopic(zone.Topic(args[0]))
		if t == nil {
			return fmt.Errorf("topic %q is not in the topology; mqrouter topic list shows them", args[0])
		}
		all := f.statuses(ctx)
		if err := e.showTopic(t, all); err != nil {
			return err
		}
		return unanswered(all)
	})
	c.AddCommand(list, show)
	return c
}

func describeTopic(t *zone.TopicInfo) topicRow {
	r := topicRow{Name: string(t.Name), Kind: t.Kind.String(), Route: t.Route.String(), Class: t.Class.String(),
		Queues: t.Queues, Retention: hours(t.Retention), Budget: size(uint64(t.Budget)), AtBudget: t.AtBudget.String()}
	if t.Kind == zone.KindTransaction {
		r.Transaction = t.Transaction.String()
	}
	if t.Kind == zone.KindLite {
		r.Lite = t.Lite.String()
	}
	if t.Receipts != nil {
		r.Receipts = string(t.Receipts.Name)
	}
	for _, c := range t.Residency {
		r.Residency = append(r.Residency, string(c.Name))
	}
	for _, g := range t.Groups {
		r.Consumers = append(r.Consumers, string(g.Name))
	}
	return r
}

func (e *env) showTopic(t *zone.TopicInfo, all []admin.Status) error {
	queues := []topicQueue{}
	lites := []liteAt{}
	for _, s := range all {
		for _, l := range s.Lite {
			if l.Topic == string(t.Name) {
				lites = append(lites, liteAt{s.Zone, s.Node, l})
			}
		}
		for _, q := range s.Topics {
			if q.Name == string(t.Name) {
				queues = append(queues, topicQueue{s.Zone, s.Node, q.Queue, q.First, q.Next})
			}
		}
	}
	r := describeTopic(t)
	return e.show(struct {
		topicRow
		At   []topicQueue `json:"at"`
		Lite []liteAt     `json:"lite_topics,omitempty"`
	}{r, queues, lites}, func(w io.Writer) {
		kind := r.Kind
		if r.Transaction != "" {
			kind += ": " + r.Transaction
		}
		if r.Lite != "" {
			kind += ": " + r.Lite
		}
		if r.Receipts != "" {
			kind += ", receipts to " + r.Receipts
		}
		fmt.Fprintf(w, "topic      %s\nkind       %s\nroute      %s\nclass      %s\nretention  %s\nbudget     %s for each destination, then %s\nresidency  %s\nconsumers  %s\n\n",
			r.Name, kind, r.Route, r.Class, r.Retention, r.Budget, r.AtBudget, orAll(r.Residency, "every city"), orAll(r.Consumers, "none"))
		tab := newTable("ZONE", "NODE", "QUEUE", "FIRST", "NEXT", "HELD")
		for _, q := range queues {
			tab.row(q.Zone, q.Node, q.Queue, q.First, q.Next, q.Next-q.First)
		}
		tab.print(w)
		if len(lites) > 0 {
			fmt.Fprintln(w)
			tab := newTable("ZONE", "NODE", "LITE TOPICS", "OF AT MOST", "LONGEST UNUSED")
			for _, l := range lites {
				tab.row(l.Zone, l.Node, l.Topics, l.Limit, l.Idle.Round(time.Second))
			}
			tab.print(w)
		}
	})
}

func orAll(list []string, empty string) string {
	if len(list) == 0 {
		return empty
	}
	return strings.Join(list, " ")
}

// hours prints a retention without its empty minutes and seconds.
func hours(d time.Duration) string {
	s := strings.TrimSuffix(d.String(), "0s")
	return strings.TrimSuffix(s, "0m")
}
