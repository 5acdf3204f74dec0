package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// tailOffer is the command that offers a tail again.
type tailOffer struct {
	e            *env
	place        tailFlags
	topic        string
	reason       string
	dry, reroute bool
	yes          bool
	rate         int           // MiB/s
	wait         time.Duration // for a master that does not take it now
}

// tailOffered is what became of a tail, for -o json.
type tailOffered struct {
	Tail     string              `json:"tail"`
	Node     string              `json:"node"`
	DryRun   bool                `json:"dry_run,omitempty"`
	Outcomes map[string]int      `json:"outcomes"`
	Refused  []admin.TailRefused `json:"refused,omitempty"` // at most maxShownRefused
	refused  int
}

// maxShownRefused bounds the refused messages that are listed.
const maxShownRefused = 100

func newTailOffer(e *env) *cobra.Command {
	o := tailOffer{e: e}
	c := e.asks(&cobra.Command{
		Use:   "offer TAIL --reason TEXT",
		Short: "Offer the messages of a tail to their group's master again",
		Long: `Offer the messages of a tail to their group's master again, in log order. It stores each
once, however often the tail is offered, and whatever breaks meanwhile: run the command
again then. What comes again is late, so it stands behind what was published since; the
messages of one message group keep their order among themselves. A delayed message waits
for its time again, a half message for its producers, who are asked. A consumer group that
is known to have settled a message before the fail-over does not get it again, and a
destination that has landed one does not store it again.

Not offered are messages that were recalled or rolled back, and what other groups had
sent, who send it again. Refused is what cannot be stored: mend the cause and offer it
again. One whose route leads elsewhere now than then is refused, since the former
destination may have it; --reroute offers it. A message that is refused holds back what
is behind it of its message group.`,
		Example: `  mqrouter tail offer 4-1048640-1050112 --dry-run
  mqrouter tail offer 4-1048640-1050112 --reason "ticket 42" --yes`,
		Args: exactArgs(1, "the id of a tail, as mqrouter tail list shows it"),
	}, o.run)
	o.place.declarePlace(c)
	f := c.Flags()
	f.StringVar(&o.topic, "topic", "", "only messages of this topic")
	f.StringVar(&o.reason, "reason", "", "why: a ticket, or a sentence")
	f.BoolVar(&o.dry, "dry-run", false, "say what would happen, and do nothing")
	f.BoolVar(&o.reroute, "reroute", false, "also what left for another destination than it would now: both may have it then")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.IntVar(&o.rate, "rate", 16, "MiB a second at most, so that live traffic does not wait")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to wait for a master that does not take it now")
	return c
}

func (o *tailOffer) run(ctx context.Context, f *fleet, args []string) error {
	switch {
	case strings.TrimSpace(o.reason) == "" && !o.dry:
		return usageError{errors.New("--reason is missing: say why, for those who will ask")}
	case o.rate < 1:
		return usageError{errors.New("--rate must be at least 1")}
	}
	h, err := f.tail(ctx, &o.place, args[0])
	if err != nil {
		return err
	}
	if !o.yes && !o.dry {
		if err := o.e.confirm(fmt.Sprintf("this publishes %s of tail %s again", count(h.Messages, "message", "messages"), h.ID)); err != nil {
			return err
		}
	}
	sum := tailOffered{Tail: h.ID, Node: h.Node, DryRun: o.dry, Outcomes: map[string]int{}}
	err = o.each(ctx, f, h, &sum)
	if showErr := o.e.show(sum, func(w io.Writer) { printOffered(w, &sum) }); showErr != nil {
		return showErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w; what is not offered yet is when the command is run again", h.Node, err)
	}
	if sum.refused > 0 {
		return fmt.Errorf("%s refused", count(sum.refused, "record was", "records were"))
	}
	return nil
}

// each offers part after part.
func (o *tailOffer) each(ctx context.Context, f *fleet, h heldTail, sum *tailOffered) error {
	order := admin.TailOffer{ID: h.ID, Topic: o.topic, Dry: o.dry, Reroute: o.reroute, Why: o.reason, Operator: operatorName()}
	if o.dry {
		order.Why = "dry run"
	}
	last := time.Now() // of the last progress
	for {
		began := time.Now()
		page, err := f.client.OfferTail(ctx, h.at.Admin, order)
		if err == nil {
			sum.add(&page)
			if page.Next == 0 {
				return nil
			}
			if page.Next != order.From {
				last = time.Now()
			}
			order.From, order.After = page.Next, page.After
		}
		held := page.Held != "" || err != nil && tryAgain(err)
		switch {
		case err != nil && !held:
			return err
		case held && time.Since(last) > o.wait:
			if err == nil {
				err = errors.New(page.Held)
			}
			return err
		}
		rest := time.Duration(page.Bytes)*time.Second/time.Duration(o.rate<<20) - time.Since(began)
		if held {
			rest = time.Second
		}
		if !pause(ctx, rest) {
			return ctx.Err()
		}
	}
}

// tryAgain reports whether a node may carry the same order out a little later.
func tryAgain(err error) bool {
	var a *admin.AnswerError
	return errors.As(err, &a) && a.Status == http.StatusServiceUnavailable
}

func (s *tailOffered) add(p *admin.TailOffered) {
	for what, n := range p.Outcomes {
		s.Outcomes[what] += n
	}
	s.refused += p.Outcomes["refused"]
	s.Refused = append(s.Refused, p.Refused[:min(len(p.Refused), maxShownRefused-len(s.Refused))]...)
}

func printOffered(w io.Writer, s *tailOffered) {
	if s.DryRun {
		fmt.Fprintln(w, "nothing is done; what would be:")
	}
	if len(s.Outcomes) == 0 {
		fmt.Fprintln(w, "no such message is in the tail")
		return
	}
	t := newTable("OUTCOME", "RECORDS")
	for _, what := range slices.Sorted(maps.Keys(s.Outcomes)) {
		t.row(what, s.Outcomes[what])
	}
	t.print(w)
	for _, r := range s.Refused {
		fmt.Fprintf(w, "refused: %s of %s (%s): %s\n", orDash(plain(r.MessageID)), orDash(plain(r.Topic)), r.Kind, plain(r.Why))
	}
}
