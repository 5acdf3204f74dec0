package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// replayBatch is how many letters one request replays.
const replayBatch = 100

// replayRow is what `dlq replay -o json` prints for each letter.
type replayRow struct {
	Node  string `json:"node"`
	Queue string `json:"queue"`
	admin.ReplayResult
}

func newDLQReplay(e *env) *cobra.Command {
	r := replayRun{e: e}
	c := e.asks(&cobra.Command{
		Use:   "replay (--group GROUP | --parked | --undecided | ID)",
		Short: "Bring dead letters back",
		Long: `Bring dead letters back. What a consumer group gave up goes into its topic's
queue again, for this group alone, with its attempts counted anew. What a
destination refused is published again by the topology as it is now; a broadcast
goes to all cities again. A half message that no producer decided is committed:
ask its service first.

A letter and its mark "replayed" are one record of the log: a replay that was
interrupted goes on where it was when the command is run again, and nothing is
brought back twice, unless --force asks for it. A letter that cannot be brought
back stays where it is, and the command fails.

--rate bounds the letters a second over all brokers together; the first second's
worth may come at once.`,
		Example: `  mqrouter dlq replay --group transfer-credit --preview
  mqrouter dlq replay --group transfer-credit --rate 200
  mqrouter dlq replay --group transfer-credit --tag refund --property currency=EUR
  mqrouter dlq replay --parked --reason too-large --since 2h
  mqrouter dlq replay 01A2B3C4D5E6F70123456789ABCDEF0123`,
		Args: optionalArg("a message id"),
	}, r.run)
	r.letterFlags.declareQueue(c)
	r.letterFlags.declareFilter(c)
	c.Flags().IntVar(&r.limit, "limit", 0, "letters at most; 0 = all")
	c.Flags().Float64Var(&r.rate, "rate", 0, "letters a second; 0 = as fast as it goes")
	c.Flags().BoolVar(&r.preview, "preview", false, "say what would be brought back, and where to")
	c.Flags().BoolVar(&r.preview, "dry-run", false, "the same as --preview")
	c.Flags().MarkHidden("dry-run") //nolint:errcheck // the flag exists
	c.Flags().BoolVar(&r.force, "force", false, "also what was replayed before")
	return c
}

// replayRun is one run of the command.
type replayRun struct {
	letterFlags
	e              *env
	rate           float64
	preview, force bool

	client  *admin.Client
	rows    []replayRow
	counts  map[string]int // by outcome
	seen    int            // letters asked for
	most    uint64         // letters that there can be at most
	limiter *rate.Limiter
	screen  progressLine
}

// slowestRate is one letter in about eleven days: what is slower is a slip.
const slowestRate = 1e-6

func (r *replayRun) run(ctx context.Context, f *fleet, args []string) error {
	id, err := r.messageID(args)
	if err != nil {
		return err
	}
	if id == "" && r.group == "" && !r.parked && !r.undecided {
		return usageError{errors.New("say what: --group GROUP, --parked, --undecided or a message id")}
	}
	if r.limit < 0 || !(r.rate >= 0) || r.rate > 0 && r.rate < slowestRate { // NaN is none of both
		return usageError{fmt.Errorf("--limit must not be negative, and --rate must be 0 or at least %v", slowestRate)}
	}
	q, err := r.query(time.Now())
	if err != nil {
		return err
	}
	q.MessageID, q.Limit, q.Pending = id, r.batch(), !r.force && id == ""
	r.begin(f.client)
	boxes, err := f.letterBoxes(ctx, &r.letterFlags)
	if err != nil && len(boxes) == 0 {
		return err
	}
	for _, b := range boxes {
		r.most += b.Pending
	}
	if err == nil {
		err = f.each(ctx, boxes, q, func(b letterBox, page []admin.DeadLetter) (bool, error) { return r.page(ctx, b, page) })
	}
	r.screen.clear()
	if r.seen == 0 && err == nil && id != "" {
		return fmt.Errorf("no broker has such a dead letter of message %s%s", id, idHint(id))
	}
	if showErr := r.e.show(r.rows, func(w io.Writer) { fmt.Fprintln(w, r.summary()) }); showErr != nil {
		return showErr
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: run the command again, and it goes on where it was")
	}
	if n := r.counts["refused"]; err == nil && n > 0 {
		err = fmt.Errorf("%s could not be brought back", count(n, "letter", "letters"))
	}
	return err
}

// batch is how many letters one request has: what a rate allows in a second.
func (r *replayRun) batch() int {
	n := replayBatch
	if r.rate > 0 {
		n = min(n, max(1, int(r.rate)))
	}
	return n
}

// page replays what a page of letters has; false when the limit is reached.
func (r *replayRun) page(ctx context.Context, b letterBox, page []admin.DeadLetter) (bool, error) {
	if r.limit > 0 {
		page = page[:min(len(page), r.limit-r.seen)]
	}
	if len(page) == 0 {
		return r.limit == 0 || r.seen < r.limit, nil
	}
	if err := r.limiter.WaitN(ctx, len(page)); err != nil {
		return false, err
	}
	req := admin.ReplayRequest{Queue: b.Queue, Force: r.force, DryRun: r.preview}
	for _, l := range page {
		req.Offsets = append(req.Offsets, l.Offset)
	}
	results, n, err := master(ctx, b.at, func(ctx context.Context, addr string) ([]admin.ReplayResult, error) {
		return r.client.Replay(ctx, addr, req)
	})
	if err != nil {
		return false, err
	}
	b.Node = string(n.Name)
	r.seen += len(page)
	for _, res := range results {
		r.counts[res.Outcome]++
		r.rows = append(r.rows, replayRow{b.Node, b.Queue, res})
		r.tell(b.Node, &res)
	}
	if r.e.format != "json" {
		r.rows = r.rows[:0] // they are told, and may be many
	}
	r.screen.tell(time.Now(), fmt.Sprintf("%s: %s so far, of %d at most", b.Node, r.summary(), r.most))
	return r.limit == 0 || r.seen < r.limit, nil
}

// tell prints what a person has to know of one letter.
func (r *replayRun) tell(node string, res *admin.ReplayResult) {
	switch {
	case r.e.format == "json":
	case res.Error != "":
		r.screen.clear()
		fmt.Fprintf(r.e.errOut, "%s: %s (letter %d): %s\n", node, plain(res.MessageID), res.Offset, plain(res.Error))
	case r.preview && res.Where != "":
		fmt.Fprintf(r.e.out, "%s (letter %d at %s): %s\n", plain(res.MessageID), res.Offset, node, res.Where)
	}
}

// begin makes the run ready.
func (r *replayRun) begin(c *admin.Client) {
	r.client, r.counts, r.rows = c, map[string]int{}, []replayRow{}
	r.screen = newProgressLine(r.e.errOut, time.Now())
	allowed := rate.Inf
	if r.rate > 0 {
		allowed = rate.Limit(r.rate)
	}
	r.limiter = rate.NewLimiter(allowed, r.batch())
}

func (r *replayRun) summary() string {
	verb := "replayed"
	if r.preview {
		verb = "would be replayed"
	}
	text := fmt.Sprintf("%d %s", r.counts["replayed"], verb)
	for _, k := range []string{"already replayed", "gone", "refused"} {
		if n := r.counts[k]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, k)
		}
	}
	return text
}
