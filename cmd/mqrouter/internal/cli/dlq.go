package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

func newDLQ(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "dlq",
		Short: "List, show and replay dead letters",
		Long: `List, show and replay dead letters: what a consumer group gave up after its last
attempt, what a destination will never take (parked at its origin), delayed messages
whose topic was gone when they were due (parked, too), and half messages of
transactions that no producer decided. They are kept by the broker that gave them up,
for 14 days.`,
	}
	c.AddCommand(newDLQList(e), newDLQShow(e), newDLQReplay(e))
	return c
}

// letterFlags select dead letters.
type letterFlags struct {
	group, zone, reason, city, destination, since, until string
	tag, key, id                                         string
	properties                                           []string // NAME=VALUE
	parked, undecided                                    bool
	limit                                                int
}

func (p *letterFlags) declareQueue(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.group, "group", "", "dead letters of this consumer group")
	f.BoolVar(&p.parked, "parked", false, "records that a destination refused, and delayed messages whose topic was gone when they were due")
	f.BoolVar(&p.undecided, "undecided", false, "half messages that no producer decided within the checks of their topic")
	f.StringVar(&p.zone, "zone", "", "only brokers of this zone")
}

func (p *letterFlags) declareFilter(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.reason, "reason", "", "only what was given up for this reason, as dlq list shows it")
	f.StringVar(&p.city, "city", "", "of parked records: refused in this city")
	f.StringVar(&p.destination, "destination", "", "of parked records: refused by this broker group")
	f.StringVar(&p.since, "since", "", "given up at or after: a time (RFC 3339), or how long ago (2h)")
	f.StringVar(&p.until, "until", "", "given up before: a time, or how long ago")
	f.StringVar(&p.tag, "tag", "", "only messages with this tag")
	f.StringVar(&p.key, "key", "", "only messages with this key")
	f.StringArrayVar(&p.properties, "property", nil, "only messages with this user property, NAME=VALUE; given again: with all of them")
	f.StringVar(&p.id, "id", "", "only the message with this id")
}

// narrows reports whether the flags select some letters of a queue only.
func (p *letterFlags) narrows() bool {
	return p.reason+p.city+p.destination+p.since+p.until+p.tag+p.key+p.id != "" || len(p.properties) > 0
}

// messageID returns the id that --id or the only argument names; "" when neither.
func (p *letterFlags) messageID(args []string) (string, error) {
	switch {
	case len(args) == 0:
		return p.id, nil
	case p.id != "" && p.id != args[0]:
		return "", usageError{fmt.Errorf("--id %s and %s are two messages: give one", p.id, args[0])}
	}
	return args[0], nil
}

// wants reports whether the flags select the queue.
func (p *letterFlags) wants(q *admin.DeadLetterQueue) bool {
	if p.group == "" && !p.parked && !p.undecided {
		return true
	}
	if undecided := q.Queue == string(broker.UndecidedTopic); undecided || q.Group == "" {
		return undecided && p.undecided || !undecided && p.parked
	}
	return q.Group == p.group
}

// query makes the query that the flags ask for; the queue is the caller's.
func (p *letterFlags) query(now time.Time) (admin.DeadLetterQuery, error) {
	q := admin.DeadLetterQuery{Reason: p.reason, City: p.city, Destination: p.destination, Tag: p.tag, Key: p.key, Properties: p.properties, MessageID: p.id}
	for _, pair := range p.properties {
		if strings.IndexByte(pair, '=') < 1 {
			return q, usageError{fmt.Errorf("--property %q: write NAME=VALUE", pair)}
		}
	}
	var err error
	if q.Since, err = moment("--since", p.since, now); err != nil {
		return q, err
	}
	q.Until, err = moment("--until", p.until, now)
	return q, err
}

// moment reads a time, or a duration before now.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, usageError{fmt.Errorf("%s %q: write a time like 2026-01-02T15:04:05Z, or a duration like 2h", flag, text)}
	}
	return t, nil
}

// letterBox is a dead-letter queue with the broker group that holds it.
type letterBox struct {
	admin.DeadLetterQueue
	at members
}

// check refuses names that lead nowhere. A consumer group may have left the
// topology, and its dead letters not; so a group is judged by known, which says
// whether any broker has a queue of it.
func (p *letterFlags) check(t *zone.Topology, known bool) error {
	switch {
	case p.zone != "" && t.FindZone(zone.Zone(p.zone)) == nil:
		return fmt.Errorf("zone %q is not in the topology; it has %s", p.zone, strings.Join(zoneNames(t), ", "))
	case p.group != "" && !known && t.FindConsumerGroup(zone.ConsumerGroup(p.group)) == nil:
		return fmt.Errorf("consumer group %q is not in the topology, and no broker has dead letters of it; mqrouter group list shows the groups", p.group)
	}
	return nil
}

// letterBoxes asks the brokers for the queues that the flags select. The error
// names the brokers that did not answer.
func (f *fleet) letterBoxes(ctx context.Context, p *letterFlags) ([]letterBox, error) {
	if err := p.check(f.topology, true); err != nil {
		return nil, err
	}
	groups := f.groups(p.zone)
	found, err := everywhere(ctx, groups, f.client.DeadLetterQueues)
	var boxes []letterBox
	for i, list := range found {
		for _, q := range list {
			if p.wants(&q) {
				boxes = append(boxes, letterBox{q, groups[i]})
			}
		}
	}
	if err == nil {
		err = p.check(f.topology, len(boxes) > 0)
	}
	return boxes, err
}

func newDLQList(e *env) *cobra.Command {
	var p letterFlags
	var all bool
	c := e.asks(&cobra.Command{
		Use:   "list",
		Short: "List where dead letters are, how many, and why",
		Long: `List where dead letters are, how many were not replayed yet, since when the
oldest waits, and why they were given up. With a filter, only what it selects is
counted, and every letter is looked at.`,
		Example: `  mqrouter dlq list
  mqrouter dlq list --group transfer-credit
  mqrouter dlq list --tag refund --since 2h`,
		Args: noArgs,
	}, func(ctx context.Context, f *fleet, _ []string) error {
		boxes, err := f.letterBoxes(ctx, &p)
		if err != nil && len(boxes) == 0 {
			return err
		}
		if boxes, err = f.narrowed(ctx, &p, boxes, err); err != nil && len(boxes) == 0 {
			return err
		}
		rows := []admin.DeadLetterQueue{}
		for _, b := range boxes {
			if all || b.Pending > 0 {
				rows = append(rows, b.DeadLetterQueue)
			}
		}
		if showErr := e.show(rows, func(w io.Writer) { printLetterBoxes(w, rows) }); showErr != nil {
			return showErr
		}
		return err
	})
	p.declareQueue(c)
	p.declareFilter(c)
	c.Flags().BoolVar(&all, "all", false, "also where everything was replayed")
	return c
}

// narrowed counts what the filter selects of each queue instead of all. incomplete is
// the error so far.
func (f *fleet) narrowed(ctx context.Context, p *letterFlags, boxes []letterBox, incomplete error) ([]letterBox, error) {
	if !p.narrows() {
		return boxes, incomplete
	}
	q, err := p.query(time.Now())
	if err != nil {
		return nil, err
	}
	for i := range boxes {
		b := &boxes[i].DeadLetterQueue
		b.Held, b.Pending, b.Counted, b.Oldest, b.Reasons = 0, 0, 0, time.Time{}, map[string]int{}
		err := f.each(ctx, boxes[i:i+1], q, func(_ letterBox, page []admin.DeadLetter) (bool, error) {
			for _, l := range page {
				b.Held++
				if l.Replayed {
					continue
				}
				if b.Pending++; b.Oldest.IsZero() {
					b.Oldest = l.Dead
				}
				b.Counted++
				b.Reasons[l.Reason]++
			}
			return true, nil
		})
		if err != nil {
			return boxes, errors.Join(incomplete, fmt.Errorf("%s: %w", b.Node, err))
		}
	}
	return boxes, incomplete
}

func printLetterBoxes(w io.Writer, rows []admin.DeadLetterQueue) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "no dead letters")
		return
	}
	t := newTable("ZONE", "NODE", "GIVEN UP BY", "WAITING", "REPLAYED", "OLDEST", "REASONS")
	for _, q := range rows {
		oldest := "-"
		if !q.Oldest.IsZero() {
			oldest = q.Oldest.Local().Format(time.DateTime)
		}
		t.row(q.Zone, q.Node, givenUpBy(&q), q.Pending, q.Held-q.Pending, oldest, reasonsText(&q))
	}
	t.print(w)
}

func givenUpBy(q *admin.DeadLetterQueue) string {
	switch {
	case q.Queue == string(broker.UndecidedTopic):
		return "producers (undecided)"
	case q.Group == "":
		return "destination (parked)"
	}
	return q.Group
}

func reasonsText(q *admin.DeadLetterQueue) string {
	words := make([]string, 0, len(q.Reasons))
	for w := range q.Reasons {
		words = append(words, w)
	}
	slices.SortFunc(words, func(a, b string) int { return cmp.Or(-cmp.Compare(q.Reasons[a], q.Reasons[b]), cmp.Compare(a, b)) })
	for i, w := range words {
		words[i] = fmt.Sprintf("%s %d", w, q.Reasons[w])
	}
	text := strings.Join(words, ", ")
	if uint64(q.Counted) < q.Pending {
		text += fmt.Sprintf(" (of the oldest %d)", q.Counted)
	}
	return text
}

// each calls fn for every dead letter of the boxes that the query selects, until
// fn says that it is enough.
func (f *fleet) each(ctx context.Context, boxes []letterBox, q admin.DeadLetterQuery, fn func(letterBox, []admin.DeadLetter) (bool, error)) error {
	for _, b := range boxes {
		q.Queue, q.From = b.Queue, 0
		for {
			page, _, err := master(ctx, b.at, func(ctx context.Context, addr string) (admin.DeadLetterPage, error) {
				return f.client.DeadLetters(ctx, addr, q)
			})
			if err != nil {
				return err
			}
			more, err := fn(b, page.Letters)
			if err != nil || !more {
				return err
			}
			if q.From = page.Next; page.Next == 0 {
				break
			}
		}
	}
	return nil
}
