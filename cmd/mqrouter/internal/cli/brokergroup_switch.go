package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

func newBrokerGroupSwitch(e *env) *cobra.Command {
	var o admin.SwitchOrder
	var wait time.Duration
	var preview bool
	c := e.asks(&cobra.Command{
		Use:   "switch GROUP --to NODE",
		Short: "Hand a broker group over to another of its nodes",
		Long: `Hand a broker group over to another of its nodes, which has to be in sync: the master
stops to answer, waits until that node has all of the log, and gives its epoch to it.
Publishers see a moment in which they are told to try again, as their clients do by
themselves; nothing is lost. A node that cannot take over is refused before anything is
done, with the reason. The command ends when the new master serves, or after --wait.

When the old master does not answer any more, see mqrouter brokergroup failover.`,
		Example: `  mqrouter brokergroup switch rz-east-a --to rz-east-a-2 --reason "upgrade of rz-east-a-1"`,
		Args:    exactArgs(1, "the broker group"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		if o.Group = args[0]; o.To == "" {
			return usageError{errors.New("--to is missing: which node takes over")}
		}
		if wait <= 0 {
			return usageError{errors.New("--wait must be above 0")}
		}
		o.Operator = operatorName()
		return e.switchTo(ctx, f, o, preview, wait)
	})
	c.Flags().StringVar(&o.To, "to", "", "the node that takes over")
	c.Flags().StringVar(&o.Why, "reason", "", "why, for the log")
	c.Flags().BoolVar(&preview, "preview", false, "say whether it could be done, and do nothing")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long the new master may take to serve")
	return c
}

// switchOutput is what a change of the master prints as JSON.
type switchOutput struct {
	Done   bool             `json:"done"` // false: a preview
	Group  string           `json:"group"`
	From   string           `json:"from,omitempty"` // the master before
	To     string           `json:"to"`
	Spared string           `json:"spared,omitempty"` // who was to take over with a loss, when To could without
	Epoch  uint64           `json:"epoch"`            // the new one; of a preview the present one
	Served time.Duration    `json:"served,omitempty"` // from the order until the new master served
	Lost   *admin.GroupLoss `json:"lost,omitempty"`
}

// maySwitch says why the node cannot take over, or nil.
func (v *brokerGroup) maySwitch(to string) error {
	n := v.node(to)
	master := v.master()
	switch {
	case n == nil:
		return fmt.Errorf("%s is not a node of broker group %s", to, v.Group)
	case v.Master == to:
		return fmt.Errorf("%s is the master already, of epoch %d", to, v.Epoch)
	case master == nil:
		return fmt.Errorf("broker group %s has no master that answers, so none can hand over: see mqrouter brokergroup failover", v.Group)
	case n.member == nil:
		return fmt.Errorf("%s: %s: %s", to, n.State, n.Problem)
	case n.State == "diverged" || !n.InSync:
		return fmt.Errorf("%s is not in sync: it is %s, %s behind; in sync are %v", to, n.State, size(n.Behind), v.InSync)
	}
	return nil
}

func (e *env) switchTo(ctx context.Context, f *fleet, o admin.SwitchOrder, preview bool, wait time.Duration) error {
	v, err := f.brokerGroup(ctx, o.Group)
	if err != nil {
		return err
	}
	if err := v.maySwitch(o.To); err != nil {
		return fmt.Errorf("nothing was done: %w", err)
	}
	out := switchOutput{Group: o.Group, From: v.Master, To: o.To, Epoch: v.Epoch}
	if preview {
		return e.line(out, fmt.Sprintf("%s could take over from %s; nothing was done", o.To, v.Master))
	}
	client, err := e.patient()
	if err != nil {
		return err
	}
	began := time.Now()
	terms, err := client.Switch(ctx, v.master().info.Admin, o)
	if err != nil {
		return fmt.Errorf("%s: %w", v.Master, err)
	}
	return e.awaitMaster(ctx, f, &out, terms, began, wait)
}

// patient returns a client for orders that take longer than an answer.
func (e *env) patient() (*admin.Client, error) {
	cfg, err := e.fleet.tls()
	if err != nil {
		return nil, err
	}
	return admin.NewClient(cfg, max(e.fleet.timeout, admin.FailoverTime)), nil
}

// awaitMaster waits until the master of an order serves, and tells of it.
func (e *env) awaitMaster(ctx context.Context, f *fleet, out *switchOutput, terms []admin.GroupTerm, began time.Time, wait time.Duration) error {
	out.Done = true
	for _, t := range terms {
		out.Epoch, out.Lost = t.Epoch, t.Lost
	}
	for time.Since(began) < wait {
		v, err := f.brokerGroup(ctx, out.Group)
		if err != nil {
			return err
		}
		if v.Serves && v.Epoch >= out.Epoch {
			out.Served = time.Since(began)
			text := fmt.Sprintf("%s is master of broker group %s, epoch %d, and serves since at most %s after the order", v.Master, v.Group, v.Epoch, age(out.Served))
			if v.Master != out.To {
				return fmt.Errorf("%s did not stay: %s", out.To, text)
			}
			return e.line(out, text+lossText(out.Lost)+out.sparedText())
		}
		if !pause(ctx, checkPause/5) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s was made master in epoch %d and does not serve yet after %s: see mqrouter brokergroup status %s", out.To, out.Epoch, zone.FormatDuration(wait), out.Group)
}

// spared notes that the coordinator has elected another node than the order named: one
// that was found to have everything.
func (out *switchOutput) spared(terms []admin.GroupTerm) {
	for _, t := range terms {
		if t.Group == out.Group && t.Master != "" && t.Master != out.To {
			out.Spared, out.To = out.To, t.Master
		}
	}
}

func (out *switchOutput) sparedText() string {
	if out.Spared == "" {
		return ""
	}
	return fmt.Sprintf("; nothing was given up: it is in sync and was found to answer, so %s did not have to take over", out.Spared)
}

func lossText(l *admin.GroupLoss) string {
	switch {
	case l == nil:
		return ""
	case l.Known <= l.From:
		return fmt.Sprintf("; nothing above %d is known to have been acknowledged before", l.From)
	}
	return fmt.Sprintf("; given up: what was acknowledged from %d on, at least up to %d", l.From, l.Known)
}
