package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

func newTail(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "tail",
		Short: "List, show, offer again and drop what a fail-over gave up",
		Long: `List, show, offer again and drop what a fail-over gave up: the end of an old master's log that the
group does not have. When the node returns, it saves that as a tail in its data folder
before it drops it from its log, if anybody may have been told that it was stored, and
follows the new master then. Each node keeps its own tails, until an operator drops them.

A message is acknowledged for sure when its node knew it to be committed, and perhaps
otherwise: of the last moments before a crash nobody knows.`,
	}
	c.AddCommand(newTailList(e), newTailShow(e), newTailOffer(e), newTailDrop(e))
	return c
}

// tailFlags select tails and messages in them.
type tailFlags struct{ group, node, topic, id string }

func (p *tailFlags) declarePlace(c *cobra.Command) {
	c.Flags().StringVar(&p.group, "group", "", "only tails of this broker group")
	c.Flags().StringVar(&p.node, "node", "", "only tails that this node keeps")
}

func (p *tailFlags) declareFilter(c *cobra.Command) {
	c.Flags().StringVar(&p.topic, "topic", "", "only messages of this topic")
	c.Flags().StringVar(&p.id, "id", "", "only the message with this id")
}

// heldTail is a tail with the node that keeps it.
type heldTail struct {
	admin.Tail
	at *zone.NodeInfo
}

// tails asks the members of the groups with several nodes for their tails. The error
// names those that did not answer.
func (f *fleet) tails(ctx context.Context, p *tailFlags) ([]heldTail, error) {
	if p.group != "" && f.topology.FindGroup(zone.Group(p.group)) == nil {
		return nil, fmt.Errorf("broker group %q is not in the topology", p.group)
	}
	if p.node != "" && f.topology.FindNode(zone.Node(p.node)) == nil {
		return nil, fmt.Errorf("node %q is not in the topology", p.node)
	}
	var held []heldTail
	var errs []error
	for _, n := range f.nodes() {
		if n.Role != zone.RoleBroker || len(n.Group.Nodes) < 2 || p.group != "" && string(n.Group.Name) != p.group || p.node != "" && string(n.Name) != p.node {
			continue
		}
		list, err := f.client.Tails(ctx, n.Admin)
		if err != nil {
			errs = append(errs, fmt.Errorf("the answer is not complete without %s: %w", n.Name, err))
			continue
		}
		for _, t := range list {
			held = append(held, heldTail{t, n})
		}
	}
	return held, errors.Join(errs...)
}

// tail returns the one tail that the id names.
func (f *fleet) tail(ctx context.Context, p *tailFlags, id string) (heldTail, error) {
	held, err := f.tails(ctx, p)
	held = slices.DeleteFunc(held, func(h heldTail) bool { return h.ID != id })
	switch len(held) {
	case 0:
		return heldTail{}, errors.Join(fmt.Errorf("no node that was asked keeps a tail %q; mqrouter tail list shows them", id), err)
	case 1:
		return held[0], nil
	}
	var nodes []string
	for _, h := range held {
		nodes = append(nodes, h.Node)
	}
	return heldTail{}, fmt.Errorf("%s keep a tail %s: say which with --node", strings.Join(nodes, " and "), id)
}

func newTailList(e *env) *cobra.Command {
	var p tailFlags
	c := e.asks(&cobra.Command{
		Use:   "list",
		Short: "List the tails that nodes keep: how many messages, of which topics, how many acknowledged",
		Args:  noArgs,
	}, func(ctx context.Context, f *fleet, _ []string) error {
		held, err := f.tails(ctx, &p)
		if err != nil && len(held) == 0 {
			return err
		}
		rows := []admin.Tail{}
		for _, h := range held {
			rows = append(rows, h.Tail)
		}
		if showErr := e.show(rows, func(w io.Writer) { printTails(w, rows) }); showErr != nil {
			return showErr
		}
		return err
	})
	p.declarePlace(c)
	return c
}

func printTails(w io.Writer, rows []admin.Tail) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "no node keeps a tail")
		return
	}
	t := newTable("TAIL", "BROKER GROUP", "NODE", "SAVED", "MESSAGES", "ACKNOWLEDGED", "WAITING", "OTHER RECORDS", "SIZE", "TOPICS", "NOTE")
	for _, x := range rows {
		if x.Damage != "" {
			t.row(x.ID, x.Group, x.Node, "-", "-", "-", "-", "-", size(uint64(x.Bytes)), "-", plain(x.Damage))
			continue
		}
		note := "a fail-over by order gave it up"
		if !x.Forced {
			note = "of topics that are acknowledged early"
		}
		if x.Offer != nil {
			note += "; " + offerNote(x.Offer)
		}
		t.row(x.ID, x.Group, x.Node, x.Saved.Local().Format(time.DateTime), x.Messages, acknowledged(x.Certain, x.Messages), x.Waiting, x.Records-x.Messages, size(uint64(x.Bytes)), topicsInTail(&x), note)
	}
	t.print(w)
}

// offerNote says what became of a tail that was offered.
func offerNote(o *admin.TailProgress) string {
	s := fmt.Sprintf("offered again %s by %s: %d stored", o.At.Local().Format(time.DateTime), plain(o.By), o.Offered)
	for _, x := range []struct {
		n    int
		what string
	}{{o.Duplicates, "published again since"}, {o.Decided, "decided since"}, {o.Not, "not to be offered"}, {o.Refused, "refused"}} {
		if x.n > 0 {
			s += fmt.Sprintf(", %d %s", x.n, x.what)
		}
	}
	for _, r := range o.Reasons {
		s += fmt.Sprintf(" (%d: %s)", r.Messages, plain(r.Text))
	}
	if o.Under {
		s += ", did not come to its end"
	}
	return s
}

// acknowledged says how many of the messages were.
func acknowledged(certain, all int) string {
	if certain == all {
		return fmt.Sprint(certain)
	}
	return fmt.Sprintf("%d, perhaps %d more", certain, all-certain)
}

func topicsInTail(x *admin.Tail) string {
	var words []string
	for _, t := range x.Topics {
		words = append(words, fmt.Sprintf("%s %d", plain(t.Topic), t.Messages))
	}
	if x.More > 0 {
		words = append(words, fmt.Sprintf("others %d", x.More))
	}
	return orDash(strings.Join(words, ", "))
}

// eachTailPage calls fn for the pages of a tail until it says that it is enough.
func (f *fleet) eachTailPage(ctx context.Context, h heldTail, q admin.TailQuery, fn func([]admin.TailMessage) (bool, error)) error {
	for q.ID = h.ID; ; {
		page, err := f.client.TailMessages(ctx, h.at.Admin, q)
		if err != nil {
			return fmt.Errorf("%s: %w", h.Node, err)
		}
		more, err := fn(page.Messages)
		if err != nil || !more || page.Next == 0 {
			return err
		}
		q.From, q.After = page.Next, page.After
	}
}

func newTailShow(e *env) *cobra.Command {
	var p tailFlags
	var all bool
	var limit int
	c := e.asks(&cobra.Command{
		Use:   "show TAIL",
		Short: "Show the messages of a tail: id, topic, whether it was acknowledged, the beginning of the body",
		Long: `Show the messages of a tail in log order: kind, topic, id, whether it was acknowledged,
the beginning of its body, and what speaks against offering it again: a half message
that was rolled back, a delayed one that was recalled. --all shows the other records,
too: what landed from other groups, which these send again, and what the broker wrote
for itself.`,
		Args: exactArgs(1, "the id of a tail, as mqrouter tail list shows it"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		if limit < 1 {
			return usageError{errors.New("--limit must be at least 1")}
		}
		h, err := f.tail(ctx, &p, args[0])
		if err != nil {
			return err
		}
		messages := []admin.TailMessage{}
		q := admin.TailQuery{Topic: p.topic, MessageID: p.id, All: all, Limit: min(limit, 100)}
		err = f.eachTailPage(ctx, h, q, func(page []admin.TailMessage) (bool, error) {
			messages = append(messages, page...)
			return len(messages) < limit, nil
		})
		messages = messages[:min(len(messages), limit)]
		if showErr := e.show(messages, func(w io.Writer) { printTailMessages(w, messages) }); showErr != nil {
			return showErr
		}
		return err
	})
	p.declarePlace(c)
	p.declareFilter(c)
	c.Flags().BoolVar(&all, "all", false, "also records that are no messages of clients")
	c.Flags().IntVar(&limit, "limit", 20, "records at most")
	return c
}

func printTailMessages(w io.Writer, list []admin.TailMessage) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no such message is in the tail")
		return
	}
	for i, m := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s (%s at %d)\n", orDash(plain(m.MessageID)), m.Kind, m.Position)
		line := func(name, value string) {
			if value != "" {
				fmt.Fprintf(w, "    %-12s %s\n", name, plain(value))
			}
		}
		line("topic", m.Topic)
		if m.Kind != "broker" {
			line("acknowledged", m.Acknowledged)
		}
		line("for", m.Target)
		if !m.Stored.IsZero() {
			line("stored", m.Stored.Local().Format("2006-01-02 15:04:05.000"))
		}
		if !m.DeliverAt.IsZero() {
			line("deliver at", m.DeliverAt.Local().Format("2006-01-02 15:04:05.000"))
		}
		line("group", m.MsgGroup)
		line("tag", m.Tag)
		line("keys", strings.Join(m.Keys, " "))
		line("not offered", m.Not)
		line("settled by", strings.Join(m.SettledBy, " "))
		if len(m.Body) > 0 {
			line("body", preview(m.Body, m.BodySize))
		}
	}
}

func newTailDrop(e *env) *cobra.Command {
	var p tailFlags
	var reason string
	var yes bool
	c := e.asks(&cobra.Command{
		Use:   "drop TAIL --reason TEXT",
		Short: "Remove a tail for ever",
		Long: `Remove a tail for ever: what is in it and was not offered again is lost. Your name and
the reason are in the log of the node.`,
		Example: `  mqrouter tail drop 4-1048640-1050112 --reason "ticket 42: replayed" --yes`,
		Args:    exactArgs(1, "the id of a tail, as mqrouter tail list shows it"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		if strings.TrimSpace(reason) == "" {
			return usageError{errors.New("--reason is missing: say why, for those who will ask")}
		}
		h, err := f.tail(ctx, &p, args[0])
		if err != nil {
			return err
		}
		if !yes {
			if err := e.confirm(fmt.Sprintf("this removes tail %s of %s for ever, with %s", h.ID, h.Node, count(h.Messages, "message", "messages"))); err != nil {
				return err
			}
		}
		list, err := f.client.DropTail(ctx, h.at.Admin, admin.TailDrop{ID: h.ID, Why: reason, Operator: operatorName()})
		if err != nil {
			return fmt.Errorf("%s: %w", h.Node, err)
		}
		return e.show(list, func(w io.Writer) { fmt.Fprintf(w, "tail %s of %s is removed\n", h.ID, h.Node) })
	})
	p.declarePlace(c)
	c.Flags().StringVar(&reason, "reason", "", "why: a ticket, or a sentence")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}
