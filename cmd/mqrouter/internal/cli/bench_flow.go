package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// flowResult is what a cross-zone or cross-city load reached at its destination.
type flowResult struct {
	Published    loadResult    `json:"published"`
	Landed       uint64        `json:"landed"`
	LandedPerSec float64       `json:"landed_per_second"` // until the last record was settled
	Drain        time.Duration `json:"drain"`             // from the end of publishing to an empty backlog
	LinkBytes    uint64        `json:"link_bytes"`        // sent on all links of the deployment meanwhile
	PerByte      float64       `json:"link_bytes_per_body_byte"`
}

func newBenchFlow(e *env) *cobra.Command {
	var b benchFlags
	c := &cobra.Command{
		Use:   "flow",
		Short: "Measure how fast published records land where their route says",
		Long: `Publish as 'bench publish' does, to a topic whose records leave the zone, and
follow the flows of the publishing broker until nothing is left. The bytes on
the links are those of the whole deployment during the run: keep it idle.`,
		Example: `  mqrouter bench flow --zone rz01 --topic transfer --property userId=1065 --publishers 256 --batch 32`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var all []flowResult
			loads, err := b.loads()
			if err != nil {
				return err
			}
			for _, l := range loads {
				r, err := b.flow(c.Context(), e, l)
				if err != nil {
					return err
				}
				all = append(all, r)
			}
			return e.show(all, func(w io.Writer) { printFlowResults(w, all) })
		},
	}
	b.declare(e, c, "transfer")
	return c
}

func printFlowResults(w io.Writer, all []flowResult) {
	t := newTable("PUBLISHERS", "PER REQUEST", "BODY", "PUBLISHED/S", "LANDED/S", "DRAIN", "LINK BYTES", "PER BODY BYTE", "FAILED")
	for _, r := range all {
		t.row(r.Published.Publishers, r.Published.Batch, size(uint64(r.Published.Size)), fmt.Sprintf("%.0f", r.Published.PerSecond),
			fmt.Sprintf("%.0f", r.LandedPerSec), age(r.Drain), size(r.LinkBytes), fmt.Sprintf("%.2f", r.PerByte), r.Published.Failed)
	}
	t.print(w)
}

// flowSum adds up settled numbers, backlog and link bytes over all nodes.
func flowSum(all []admin.Status) (settled, backlog, bytes uint64) {
	for _, s := range all {
		for _, f := range s.Flows {
			settled += f.Settled
			backlog += f.Backlog
		}
		for _, l := range s.Links {
			bytes += l.Sent
		}
	}
	return settled, backlog, bytes
}

func (b *benchFlags) flow(ctx context.Context, e *env, l load) (flowResult, error) {
	f, err := e.openFleet(ctx)
	if err != nil {
		return flowResult{}, err
	}
	props, err := cycle(b.properties)
	if err != nil {
		return flowResult{}, usageError{err}
	}
	settled0, _, bytes0 := flowSum(f.statuses(ctx))
	begin := time.Now()
	var r flowResult
	if r.Published, err = b.publish(ctx, e, l, props); err != nil {
		return r, err
	}
	ended := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		settled, backlog, bytes := flowSum(f.statuses(ctx))
		r.Landed, r.LinkBytes = settled-settled0, bytes-bytes0
		if backlog == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r, fmt.Errorf("bench: backlog of %d records left: %w", backlog, ctx.Err())
		}
	}
	r.Drain = time.Since(ended)
	r.LandedPerSec = float64(r.Landed) / time.Since(begin).Seconds()
	if body := r.Published.Messages * uint64(l.Size); body > 0 {
		r.PerByte = float64(r.LinkBytes) / float64(body)
	}
	return r, nil
}
