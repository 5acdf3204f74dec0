package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// resetRun is one run of `group reset`.
type resetRun struct {
	e            *env
	topic        string
	zone, to     string
	queue        int
	preview, yes bool

	client *admin.Client
}

// resetOutput is what `group reset -o json` prints.
type resetOutput struct {
	Done   bool               `json:"done"` // false: a preview
	Queues []admin.GroupReset `json:"queues"`
}

func newGroupReset(e *env) *cobra.Command {
	r := resetRun{e: e}
	c := e.asks(&cobra.Command{
		Use:   "reset GROUP --topic TOPIC --to earliest|latest|time|offset [TIME|OFFSET]",
		Short: "Have a consumer group go on elsewhere in a topic",
		Long: `Have a consumer group go on elsewhere in a topic: at its oldest message (earliest),
behind its newest (latest), at the first that was stored at or after a time, or at
an offset. Everything before is as consumed then; everything from there on comes,
what was consumed comes again.

It works while consumers are connected. What they have in hands counts no more:
their acknowledgements are refused, and the messages come again, with their
attempts counted anew, unless they are before the place. Dead letters stay where
they are. At each broker the reset is one record of the log: it is there as a
whole or not at all.

All brokers are asked first, and nothing is done unless all of them can; then each
is reset, and the command tells what was done at which. Should one fail, run the
command again. When messages are skipped that were not consumed, the command asks,
or wants --yes.`,
		Example: `  mqrouter group reset orders-billing --topic orders --to earliest --preview
  mqrouter group reset orders-billing --topic orders --to time 2026-01-02T15:04:05Z
  mqrouter group reset orders-billing --topic orders --to time 2h --zone rz02
  mqrouter group reset orders-billing --topic orders --to offset 1200 --queue 3 --yes`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usageError{fmt.Errorf("got %d arguments, want the consumer group, and with --to time or --to offset which", len(args))}
			}
			return nil
		},
	}, r.run)
	f := c.Flags()
	f.StringVar(&r.topic, "topic", "", "the topic, or a dead-letter topic that the group consumes")
	f.StringVar(&r.to, "to", "", "earliest, latest, time (RFC 3339, or how long ago) or offset")
	f.IntVar(&r.queue, "queue", -1, "only this queue of each broker")
	f.StringVar(&r.zone, "zone", "", "only brokers of this zone")
	f.BoolVar(&r.preview, "preview", false, "say what would happen, and do nothing")
	f.BoolVar(&r.yes, "yes", false, "do not ask before messages are skipped")
	return c
}

// request makes the request that flags and arguments ask for.
func (r *resetRun) request(args []string, now time.Time) (admin.ResetRequest, error) {
	q := admin.ResetRequest{Group: args[0], Topic: r.topic, To: r.to}
	wrong := func(format string, a ...any) (admin.ResetRequest, error) {
		return q, usageError{fmt.Errorf(format, a...)}
	}
	if r.topic == "" {
		return wrong("--topic is missing")
	}
	if r.queue >= 0 {
		q.Queue = &r.queue
	}
	value := ""
	if len(args) == 2 {
		value = args[1]
	}
	switch r.to {
	case "earliest", "latest":
		if value != "" {
			return wrong("unexpected argument %q after --to %s", value, r.to)
		}
	case "time":
		at, err := moment("--to time", value, now)
		if err != nil {
			return q, err
		}
		if at.IsZero() {
			return wrong("--to time: write a time like 2026-01-02T15:04:05Z, or a duration like 2h, after it")
		}
		q.Time = at
	case "offset":
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return wrong("--to offset: write a number after it, not %q", value)
		}
		q.Offset = n
	default:
		return wrong("--to %q: write earliest, latest, time TIME or offset N", r.to)
	}
	return q, nil
}

func (r *resetRun) run(ctx context.Context, f *fleet, args []string) error {
	q, err := r.request(args, time.Now())
	if err != nil {
		return err
	}
	if err := r.check(f.topology, &q); err != nil {
		return err
	}
	r.client = f.client
	q.Preview = true
	rows, groups, err := r.ask(ctx, f.groups(r.zone), q)
	if err != nil {
		return fmt.Errorf("nothing was done: %w", err)
	}
	if len(groups) == 0 {
		return fmt.Errorf("no broker%s has consumer group %s consume topic %s", r.where(), q.Group, q.Topic)
	}
	if r.preview {
		return r.show(rows, false)
	}
	if err := r.confirm(rows); err != nil {
		return err
	}
	q.Preview = false
	rows, _, err = r.ask(ctx, groups, q)
	return errors.Join(r.show(rows, true), err)
}

// check refuses names that lead nowhere.
func (r *resetRun) check(t *zone.Topology, q *admin.ResetRequest) error {
	if r.zone != "" && t.FindZone(zone.Zone(r.zone)) == nil {
		return fmt.Errorf("zone %q is not in the topology; it has %s", r.zone, strings.Join(zoneNames(t), ", "))
	}
	if t.FindTopic(zone.Topic(q.Topic)) == nil && !strings.HasPrefix(q.Topic, "%") {
		return fmt.Errorf("topic %q is not in the topology; mqrouter topic list shows the topics", q.Topic)
	}
	return nil
}

func (r *resetRun) where() string {
	if r.zone == "" {
		return ""
	}
	return " of zone " + r.zone
}

// ask puts the request to the brokers; those where the group does not consume the
// topic are left out of the answer.
func (r *resetRun) ask(ctx context.Context, groups []members, q admin.ResetRequest) (rows []admin.GroupReset, have []members, err error) {
	var errs []error
	for _, m := range groups {
		list, _, err := master(ctx, m, func(ctx context.Context, addr string) ([]admin.GroupReset, error) {
			return r.client.ResetGroup(ctx, addr, q)
		})
		var answer *admin.AnswerError
		switch {
		case errors.As(err, &answer) && answer.Status == http.StatusNotFound:
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		}
		rows, have = append(rows, list...), append(have, m)
	}
	return rows, have, errors.Join(errs...)
}

// confirm asks before messages are skipped.
func (r *resetRun) confirm(rows []admin.GroupReset) error {
	skipped := uint64(0)
	for _, q := range rows {
		skipped += q.Skipped
	}
	if skipped == 0 || r.yes {
		return nil
	}
	what := fmt.Sprintf("%s that the group has not consumed", count(int(skipped), "message", "messages"))
	return r.e.confirm("this skips " + what)
}

func (r *resetRun) show(rows []admin.GroupReset, done bool) error {
	if rows == nil {
		rows = []admin.GroupReset{}
	}
	return r.e.show(resetOutput{done, rows}, func(w io.Writer) {
		t := newTable("ZONE", "NODE", "QUEUE", "HELD", "FROM", "TO", "COMES AGAIN", "SKIPPED", "IN HANDS")
		var again, skipped uint64
		still := 0
		for _, q := range rows {
			if q.From == q.To && q.Again == 0 && q.Skipped == 0 && q.InHands == 0 {
				still++
				continue
			}
			t.row(q.Zone, q.Node, q.Queue, fmt.Sprintf("%d-%d", q.First, q.Next), q.From, q.To, q.Again, q.Skipped, q.InHands)
			again, skipped = again+q.Again, skipped+q.Skipped
		}
		if still < len(rows) {
			t.print(w)
			fmt.Fprintln(w)
		}
		verb := "come again"
		if !done {
			verb = "would come again"
		}
		fmt.Fprintf(w, "%s %s, %d skipped", count(int(again), "message", "messages"), verb, skipped)
		if still > 0 {
			fmt.Fprintf(w, "; %s there already", count(still, "queue is", "queues are"))
		}
		if !done {
			fmt.Fprint(w, "; nothing was done")
		}
		fmt.Fprintln(w)
	})
}
