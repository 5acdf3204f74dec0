package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

func newWaiting(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "waiting",
		Short: "List and decide about delayed and half messages",
		Long: `List messages that wait at the brokers that took them, one by one, and decide about
them: delayed ones for their delivery time, or for what blocks them since, and half
messages of transactions for the decision of their producers.`,
	}
	c.AddCommand(newWaitingList(e), newOrder(e, &dropOrder), newOrder(e, &commitOrder), newOrder(e, &rollbackOrder))
	return c
}

// waitingFlags select messages that wait.
type waitingFlags struct {
	zone, topic, id                      string
	since, until, dueAfter, dueBefore    string
	gone, unreadable, delayed, undecided bool
	limit                                int
}

func (p *waitingFlags) declare(c *cobra.Command, due bool) {
	f := c.Flags()
	f.StringVar(&p.zone, "zone", "", "only brokers of this zone")
	f.StringVar(&p.topic, "topic", "", "only messages of this topic, which the topology may have no more")
	f.StringVar(&p.id, "id", "", "only the message with this id")
	f.StringVar(&p.since, "since", "", "published at or after: a time (RFC 3339), or how long ago (2h)")
	f.StringVar(&p.until, "until", "", "published before: a time, or how long ago")
	f.BoolVar(&p.gone, "gone", false, "only messages whose topic the topology does not have")
	f.BoolVar(&p.unreadable, "unreadable", false, "only messages that are damaged")
	if due {
		f.StringVar(&p.dueAfter, "due-after", "", "due at or after: a time, or how far from now (2h, -2h)")
		f.StringVar(&p.dueBefore, "due-before", "", "due before: a time, or how far from now")
	}
}

// query makes the query of a kind that the flags and the argument ask for.
func (p *waitingFlags) query(kind string, args []string, now time.Time) (admin.WaitingQuery, error) {
	q := admin.WaitingQuery{Kind: kind, Topic: p.topic, MessageID: p.id, Gone: p.gone, Unreadable: p.unreadable}
	if len(args) == 1 {
		if p.id != "" && p.id != args[0] {
			return q, usageError{fmt.Errorf("--id %s and %s are two messages: give one", p.id, args[0])}
		}
		q.MessageID = args[0]
	}
	var err error
	if q.Since, err = moment("--since", p.since, now); err != nil {
		return q, err
	}
	if q.Until, err = moment("--until", p.until, now); err != nil {
		return q, err
	}
	if kind != admin.KindDelayed {
		return q, nil
	}
	if q.DueFrom, err = ahead("--due-after", p.dueAfter, now); err != nil {
		return q, err
	}
	q.DueUntil, err = ahead("--due-before", p.dueBefore, now)
	return q, err
}

// ahead reads a time, or a duration from now on.
func ahead(flag, text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(d), nil
	}
	return moment(flag, text, now)
}

// brokers returns the brokers that the flags select. A topic may have left the
// topology, and its messages not, so it is not judged.
func (p *waitingFlags) brokers(f *fleet) ([]members, error) {
	if p.zone != "" && f.topology.FindZone(zone.Zone(p.zone)) == nil {
		return nil, fmt.Errorf("zone %q is not in the topology; it has %s", p.zone, strings.Join(zoneNames(f.topology), ", "))
	}
	return f.groups(p.zone), nil
}

// eachWaiting calls fn for the pages of what a broker group has of the query, until fn
// says that it is enough.
func (f *fleet) eachWaiting(ctx context.Context, m members, q admin.WaitingQuery, fn func([]admin.WaitingMessage) (bool, error)) error {
	for {
		page, _, err := master(ctx, m, func(ctx context.Context, addr string) (admin.WaitingPage, error) {
			return f.client.Waiting(ctx, addr, q)
		})
		if err != nil {
			return err
		}
		more, err := fn(page.Messages)
		if q.From = page.Next; err != nil || !more || page.Next == "" {
			return err
		}
	}
}

func newWaitingList(e *env) *cobra.Command {
	var p waitingFlags
	c := e.asks(&cobra.Command{
		Use:   "list [ID]",
		Short: "List messages that wait, one by one",
		Long: `List messages that wait: delayed ones by the hour in which they are due, half messages
as they were published. With -o json each has its recall handle or transaction id.`,
		Example: `  mqrouter waiting list --topic reminders --due-before 1h
  mqrouter waiting list --undecided --until 24h
  mqrouter waiting list --gone`,
		Args: optionalArg("a message id"),
	}, func(ctx context.Context, f *fleet, args []string) error { return p.list(ctx, e, f, args) })
	p.declare(c, true)
	c.Flags().BoolVar(&p.delayed, "delayed", false, "only delayed messages")
	c.Flags().BoolVar(&p.undecided, "undecided", false, "only half messages")
	c.Flags().IntVar(&p.limit, "limit", 20, "messages at most, of each kind")
	return c
}

func (p *waitingFlags) list(ctx context.Context, e *env, f *fleet, args []string) error {
	if p.limit < 1 {
		return usageError{errors.New("--limit must be at least 1")}
	}
	kinds := []string{admin.KindDelayed, admin.KindUndecided}
	switch {
	case p.delayed && p.undecided:
	case p.delayed:
		kinds = kinds[:1]
	case p.undecided:
		kinds = kinds[1:]
	}
	groups, err := p.brokers(f)
	if err != nil {
		return err
	}
	all, more := []admin.WaitingMessage{}, false
	var errs []error
	for _, kind := range kinds {
		q, err := p.query(kind, args, time.Now())
		if err != nil {
			return err
		}
		left := p.limit
		for _, m := range groups {
			q.Limit = min(left+1, 1000) // one more tells that there is more
			err := f.eachWaiting(ctx, m, q, func(page []admin.WaitingMessage) (bool, error) {
				more = more || len(page) > left
				page = page[:min(len(page), left)]
				all, left = append(all, page...), left-len(page)
				return left > 0 || !more, nil
			})
			errs = append(errs, err)
		}
	}
	if showErr := e.show(all, func(w io.Writer) { printWaiting(w, all, more) }); showErr != nil {
		return showErr
	}
	return errors.Join(errs...)
}

func printWaiting(w io.Writer, list []admin.WaitingMessage, more bool) {
	if len(list) == 0 {
		fmt.Fprintln(w, "nothing waits")
		return
	}
	t := newTable("ZONE", "NODE", "TOPIC", "MESSAGE", "PUBLISHED", "WAITS FOR", "TAG", "BODY")
	for _, m := range list {
		if m.Problem != "" {
			t.row(m.Zone, m.Node, plain(m.Topic), "(damaged)", stamp(m.Stored), waitsFor(&m)+": "+plain(m.Problem), "-", "-")
			continue
		}
		topic := plain(m.Topic)
		if m.Gone {
			topic += " (gone)"
		}
		t.row(m.Zone, m.Node, topic, plain(m.MessageID), stamp(m.Stored), waitsFor(&m), plain(m.Tag), size(uint64(m.BodySize)))
	}
	t.print(w)
	if more {
		fmt.Fprintln(w, "\nand more: see --limit")
	}
}

// waitsFor says for people what a message waits for.
func waitsFor(m *admin.WaitingMessage) string {
	switch {
	case m.Kind == admin.KindDelayed:
		return stamp(m.Due)
	case m.Checks > 0:
		return fmt.Sprintf("a decision; asked %s", count(m.Checks, "time", "times"))
	}
	return "a decision"
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}
