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

	"github.com/mqrouter/mqrouter/internal/admin"
)

func newMessage(e *env) *cobra.Command {
	c := &cobra.Command{Use: "message", Short: "Find messages"}
	find := &cobra.Command{
		Use:   "find ID",
		Short: "Show where a message is: published, landed, delivered",
		Long: `Ask every broker where it has a message id: where it was published, in which
zones it landed and with which outcome, and what each consumer group did with it.
The brokers search the retained part of their logs.`,
		Args: exactArgs(1, "the message id"),
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] == "" {
				return usageError{errors.New("the message id is empty")}
			}
			f, err := e.openFleet(c.Context())
			if err != nil {
				return err
			}
			found, err := f.find(c.Context(), args[0])
			if err != nil && len(found) == 0 {
				return err
			}
			if showErr := e.show(found, func(w io.Writer) { printSightings(w, found) }); showErr != nil {
				return showErr
			}
			if err == nil && len(found) == 0 {
				return fmt.Errorf("no broker has a message %s in the retained part of its log%s", args[0], idHint(args[0]))
			}
			return err
		},
	}
	e.fleetFlags(find)
	c.AddCommand(find)
	return c
}

// messageIDDigits is the length of an id that RocketMQ 5 clients give.
const messageIDDigits = 34

// idHint says what is odd about an id that nobody knows. Clients choose ids, so
// any is looked for.
func idHint(id string) string {
	odd := func(r rune) bool { return !strings.ContainsRune("0123456789ABCDEFabcdef", r) }
	if len(id) == messageIDDigits && !strings.ContainsFunc(id, odd) {
		return ""
	}
	return fmt.Sprintf("; ids have %d hexadecimal digits, as publish prints them", messageIDDigits)
}

// find asks every broker; the error names those that did not answer.
func (f *fleet) find(ctx context.Context, id string) ([]admin.Sighting, error) {
	found, err := everywhere(ctx, f.groups(""), func(ctx context.Context, addr string) ([]admin.Sighting, error) { return f.client.Find(ctx, addr, id) })
	all := slices.Concat(found...)
	if all == nil {
		all = []admin.Sighting{}
	}
	slices.SortStableFunc(all, func(a, b admin.Sighting) int {
		// Clocks differ between cities: publishing comes first whatever they say.
		return cmp.Or(a.Stored.Compare(b.Stored), -cmp.Compare(a.What, b.What), a.Landed.Compare(b.Landed), cmp.Compare(a.Node, b.Node))
	})
	return all, err
}

func printSightings(w io.Writer, found []admin.Sighting) {
	for _, s := range found {
		at, later := s.Stored, ""
		if !s.Landed.IsZero() {
			at, later = s.Landed, fmt.Sprintf(", %s after it was published", s.Landed.Sub(s.Stored).Round(100*time.Microsecond))
		}
		what := s.What
		if s.Replayed {
			what += ", replayed"
		}
		fmt.Fprintf(w, "%s  %s in %s, %s (%s)%s\n", at.Format("15:04:05.000"), what, s.Zone, s.City, s.Node, later)
		if s.Offset >= 0 {
			fmt.Fprintf(w, "    queue       %s[%d]@%d\n", s.Topic, s.Queue, s.Offset)
		}
		if s.Flow != "" {
			fmt.Fprintf(w, "    flow        %s number %d\n", s.Flow, s.Number)
		}
		if s.Settled != "" {
			fmt.Fprintf(w, "    sent to     %s\n", s.Settled)
		}
		for _, d := range s.Deliveries {
			fmt.Fprintf(w, "    consumers   %s: %s", d.Group, d.State)
			if d.Attempts > 0 {
				fmt.Fprintf(w, " (attempt %d)", d.Attempts)
			}
			fmt.Fprintln(w)
		}
	}
}
