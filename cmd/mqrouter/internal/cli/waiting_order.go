package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// orderKind is a decision that an operator may order.
type orderKind struct {
	what, kind  string
	short, long string
	done        string // of the messages, in words
}

var (
	dropOrder = orderKind{admin.OrderDrop, admin.KindDelayed, "Drop delayed messages, so that they are never delivered",
		`Drop delayed messages: they are never delivered, as if they had been recalled. What
falls due meanwhile is delivered, and counts as gone. The id of a message stays in the
window of an idempotent topic: sent again within it, it is not stored.`, "dropped"}
	commitOrder = orderKind{admin.OrderCommit, admin.KindUndecided, "Commit half messages that no producer decides",
		`Commit half messages that no producer decides: they are delivered. Ask their service
first whether it has done its part.`, "committed"}
	rollbackOrder = orderKind{admin.OrderRollback, admin.KindUndecided, "Roll back half messages that no producer decides",
		`Roll back half messages that no producer decides: they are never delivered. Ask their
service first whether it has done its part.`, "rolled back"}
)

// commonOrderText ends the help of each order.
const commonOrderText = `

Say which messages: an id, --topic, --gone, --unreadable or --all, narrowed by the
other flags. Only what was published before the command began is meant. All brokers are
asked first for what there is; then the command asks, or wants --yes. The first durable
decision about a message counts, whoever makes it.

--reason says why, and is kept with your name in the record of each message, which
mqrouter message shows, and in the log of the broker. What was interrupted can be run
again. --rate bounds the messages a second over all brokers together.`

func newOrder(e *env, k *orderKind) *cobra.Command {
	r := orderRun{e: e, k: k}
	c := e.asks(&cobra.Command{
		Use:   k.what + " (ID | --topic TOPIC | --gone | --unreadable | --all) --reason TEXT",
		Short: k.short,
		Long:  k.long + commonOrderText,
		Example: fmt.Sprintf(`  mqrouter waiting %[1]s --topic reminders --until 2h --preview
  mqrouter waiting %[1]s --topic reminders --until 2h --reason "ticket 42" --yes --rate 500`, k.what),
		Args: optionalArg("a message id"),
	}, r.run)
	r.declare(c, k.kind == admin.KindDelayed)
	f := c.Flags()
	f.BoolVar(&r.all, "all", false, "all that wait at the brokers")
	f.StringVar(&r.reason, "reason", "", "why: a ticket, or a sentence")
	f.BoolVar(&r.preview, "preview", false, "say what would be done, and do nothing")
	f.BoolVar(&r.yes, "yes", false, "do not ask")
	f.IntVar(&r.limit, "limit", 0, "messages at most; 0 = all")
	f.Float64Var(&r.rate, "rate", 0, "messages a second; 0 = as fast as it goes")
	return c
}

// orderRun is one run of an order.
type orderRun struct {
	waitingFlags
	e                 *env
	k                 *orderKind
	reason            string
	all, preview, yes bool
	rate              float64

	fleet   *fleet
	rows    []*orderRow
	counts  map[string]int // by outcome
	refused int            // told so far
	limiter *rate.Limiter
	screen  progressLine
}

// orderRow is what an order means of a topic at a broker.
type orderRow struct {
	Zone     string    `json:"zone"`
	Node     string    `json:"node"`
	Topic    string    `json:"topic,omitempty"` // empty: of what cannot be read
	Messages int       `json:"messages"`
	Oldest   time.Time `json:"oldest,omitzero"`
	Example  string    `json:"example,omitempty"` // a message id
}

// orderOutput is what an order prints as JSON.
type orderOutput struct {
	Done     bool           `json:"done"` // false: a preview
	Selected []*orderRow    `json:"selected"`
	Outcomes map[string]int `json:"outcomes"` // done, gone, refused
}

// maxRefusedTold bounds the lines about messages that were refused.
const maxRefusedTold = 20

// orderBatch is how many messages one request decides about.
const orderBatch = 200

func (r *orderRun) run(ctx context.Context, f *fleet, args []string) error {
	q, err := r.query(r.k.kind, args, time.Now())
	if err != nil {
		return err
	}
	if q.Topic == "" && q.MessageID == "" && !q.Gone && !q.Unreadable && !r.all {
		return usageError{errors.New("say which: a message id, --topic, --gone, --unreadable or --all")}
	}
	if strings.TrimSpace(r.reason) == "" && !r.preview {
		return usageError{errors.New("--reason is missing: say why, for those who will ask")}
	}
	if r.limit < 0 || !(r.rate >= 0) || r.rate > 0 && r.rate < slowestRate { // NaN is none of both
		return usageError{fmt.Errorf("--limit must not be negative, and --rate must be 0 or at least %v", slowestRate)}
	}
	if q.Until.IsZero() && q.MessageID == "" {
		q.Until = time.Now()
	}
	r.begin(f)
	groups, err := r.brokers(f)
	if err != nil {
		return err
	}
	total, err := r.look(ctx, groups, q)
	if err != nil {
		return fmt.Errorf("nothing was done: %w", err)
	}
	if r.preview || total == 0 {
		return r.show(false)
	}
	if err := r.confirm(total); err != nil {
		return err
	}
	err = r.order(ctx, groups, q, total)
	if showErr := r.show(true); showErr != nil {
		return showErr
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: run the command again for the others")
	}
	if n := r.counts["refused"]; err == nil && n > 0 {
		err = fmt.Errorf("%s could not be %s and still wait", count(n, "message", "messages"), r.k.done)
	}
	return err
}

// begin makes the run ready.
func (r *orderRun) begin(f *fleet) {
	r.fleet, r.counts, r.rows = f, map[string]int{}, []*orderRow{}
	r.screen = newProgressLine(r.e.errOut, time.Now())
	allowed := rate.Inf
	if r.rate > 0 {
		allowed = rate.Limit(r.rate)
	}
	r.limiter = rate.NewLimiter(allowed, r.batch())
}

// batch is how many messages one request has: what a rate allows in a second.
func (r *orderRun) batch() int {
	if r.rate > 0 {
		return min(orderBatch, max(1, int(r.rate)))
	}
	return orderBatch
}

// walk calls fn for pages of what is selected, up to the limit.
func (r *orderRun) walk(ctx context.Context, groups []members, q admin.WaitingQuery, fn func(members, []admin.WaitingMessage) error) error {
	seen := 0
	q.Limit = r.batch()
	for _, m := range groups {
		err := r.fleet.eachWaiting(ctx, m, q, func(page []admin.WaitingMessage) (bool, error) {
			if r.limit > 0 {
				page = page[:min(len(page), r.limit-seen)]
			}
			if seen += len(page); len(page) == 0 {
				return r.limit == 0 || seen < r.limit, nil
			}
			err := fn(m, page)
			return r.limit == 0 || seen < r.limit, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// look counts what is selected.
func (r *orderRun) look(ctx context.Context, groups []members, q admin.WaitingQuery) (total int, err error) {
	err = r.walk(ctx, groups, q, func(m members, page []admin.WaitingMessage) error {
		for i := range page {
			r.note(&page[i])
		}
		total += len(page)
		r.screen.tell(time.Now(), fmt.Sprintf("%s: %s so far", m.name(), count(total, "message", "messages")))
		return nil
	})
	r.screen.clear()
	slices.SortFunc(r.rows, func(a, b *orderRow) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Topic, b.Topic)) })
	return total, err
}

func (r *orderRun) note(m *admin.WaitingMessage) {
	i := slices.IndexFunc(r.rows, func(x *orderRow) bool { return x.Node == m.Node && x.Topic == m.Topic })
	if i < 0 {
		i = len(r.rows)
		r.rows = append(r.rows, &orderRow{Zone: m.Zone, Node: m.Node, Topic: m.Topic, Example: m.MessageID})
	}
	row := r.rows[i]
	if row.Messages++; row.Oldest.IsZero() || !m.Stored.IsZero() && m.Stored.Before(row.Oldest) {
		row.Oldest = m.Stored
	}
}

// confirm asks before anything is decided.
func (r *orderRun) confirm(total int) error {
	if r.yes {
		return nil
	}
	if r.e.format != "json" {
		r.print(r.e.errOut)
	}
	return r.e.confirm(fmt.Sprintf("this has %s %s for ever", count(total, "message", "messages"), r.k.done))
}

// order decides about what is selected.
func (r *orderRun) order(ctx context.Context, groups []members, q admin.WaitingQuery, total int) error {
	defer r.screen.clear()
	return r.walk(ctx, groups, q, func(m members, page []admin.WaitingMessage) error {
		if err := r.limiter.WaitN(ctx, len(page)); err != nil {
			return err
		}
		o := admin.WaitingOrder{What: r.k.what, Why: r.reason, Operator: operatorName()}
		ids := map[string]string{}
		for _, m := range page {
			o.Messages = append(o.Messages, admin.WaitingNamed{Topic: m.Topic, Handle: m.Handle})
			ids[m.Handle] = m.MessageID
		}
		results, n, err := master(ctx, m, func(ctx context.Context, addr string) ([]admin.OrderResult, error) {
			return r.fleet.client.Order(ctx, addr, o)
		})
		if err != nil {
			return err
		}
		for _, res := range results {
			r.counts[res.Outcome]++
			r.tell(n, ids[res.Handle], &res)
		}
		r.screen.tell(time.Now(), fmt.Sprintf("%s: %s so far, of %d", n.Name, r.summary(), total))
		return nil
	})
}

// tell prints what a person has to know of a message that goes on waiting.
func (r *orderRun) tell(n *zone.NodeInfo, id string, res *admin.OrderResult) {
	if res.Outcome != "refused" || r.refused > maxRefusedTold {
		return
	}
	r.screen.clear()
	if r.refused++; r.refused > maxRefusedTold {
		fmt.Fprintln(r.e.errOut, "and more")
		return
	}
	fmt.Fprintf(r.e.errOut, "%s: %s: %s\n", n.Name, plain(cmp.Or(id, "(damaged)")), plain(res.Error))
}

func (r *orderRun) show(done bool) error {
	return r.e.show(orderOutput{done, r.rows, r.counts}, func(w io.Writer) {
		if !done {
			r.print(w)
			fmt.Fprintln(w, "nothing was done")
			return
		}
		fmt.Fprintln(w, r.summary())
	})
}

func (r *orderRun) print(w io.Writer) {
	if len(r.rows) == 0 {
		fmt.Fprintln(w, "no message that waits is selected")
		return
	}
	t := newTable("ZONE", "NODE", "TOPIC", "MESSAGES", "OLDEST", "SUCH AS")
	for _, x := range r.rows {
		t.row(x.Zone, x.Node, plain(cmp.Or(x.Topic, "(damaged)")), x.Messages, stamp(x.Oldest), plain(x.Example))
	}
	t.print(w)
	fmt.Fprintln(w)
}

func (r *orderRun) summary() string {
	text := fmt.Sprintf("%d %s", r.counts["done"], r.k.done)
	if n := r.counts["gone"]; n > 0 {
		text += fmt.Sprintf(", %d waited no more", n)
	}
	if n := r.counts["refused"]; n > 0 {
		text += fmt.Sprintf(", %d refused", n)
	}
	return text
}

// operatorName is who runs this command, as far as this machine says.
func operatorName() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
