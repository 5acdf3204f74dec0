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

func newBrokerGroupFailover(e *env) *cobra.Command {
	r := failoverRun{e: e}
	c := e.asks(&cobra.Command{
		Use:   "failover GROUP [--to NODE] [--allow-loss] --reason TEXT",
		Short: "Make a node the master without the help of the one before",
		Long: `Make a node of a broker group the master without the help of the one before, as soon as
the lease of that one is over. While the master answers, mqrouter brokergroup switch is
gentler; when it dies, the coordinator does this by itself.

Without --allow-loss the node has to be in sync: nothing that was acknowledged is lost.
With --allow-loss any node that answers will do, unless the master answers, or one that
is in sync could take over; when such a one comes to be known while the order is carried
out, the coordinator elects it, and the command says so. First is said what would be given up: from which position
on, how many bytes are known to have been committed beyond, and of which topics as far
as any node that answers has them. The new master begins a new lineage; a node that has
more keeps that as a tail when it comes back, and follows: see mqrouter tail.

--preview says all of that and does nothing. Without it the command asks before
something is lost, or wants --yes. It needs an operator's certificate where admin
addresses have TLS; your name and the reason are in the log of the node that took the
order.`,
		Example: `  mqrouter brokergroup failover rz-east-a --reason "ticket 42" --preview
  mqrouter brokergroup failover rz-east-a --to rz-east-a-3 --allow-loss --reason "ticket 42" --yes`,
		Args: exactArgs(1, "the broker group"),
	}, r.run)
	f := c.Flags()
	f.StringVar(&r.order.To, "to", "", "the node that takes over; by default the one with the longest log")
	f.BoolVar(&r.order.AllowLoss, "allow-loss", false, "even if acknowledged records are given up")
	f.StringVar(&r.order.Why, "reason", "", "why: a ticket, or a sentence")
	f.BoolVar(&r.preview, "preview", false, "say what would be done and lost, and do nothing")
	f.BoolVar(&r.yes, "yes", false, "do not ask")
	f.DurationVar(&r.wait, "wait", time.Minute, "how long the new master may take to serve")
	return c
}

// failoverRun is one run of a fail-over.
type failoverRun struct {
	e            *env
	order        admin.FailoverOrder
	preview, yes bool
	wait         time.Duration
}

// failoverPlan is what a fail-over would do.
type failoverPlan struct {
	Group   string       `json:"group"`
	Epoch   uint64       `json:"epoch"` // the present one
	From    string       `json:"from,omitempty"`
	To      string       `json:"to"`
	InSync  []string     `json:"in_sync"`
	Loss    *plannedLoss `json:"loss,omitempty"` // nil: nothing that was acknowledged
	Refused string       `json:"refused,omitempty"`
	target  *groupNode
}

// plannedLoss is what would be given up, as far as anybody who answers knows. What the
// master acknowledged after it was heard last comes on top.
type plannedLoss struct {
	From  uint64           `json:"from"`  // end of the new master's log
	Known uint64           `json:"known"` // committed at least up to here; at or below From: nothing is known to be lost
	Bytes uint64           `json:"bytes"`
	Told  *admin.LogExtent `json:"told,omitempty"` // the records, counted by By; nil: nobody who answers has them
	By    string           `json:"told_by,omitempty"`
}

func (r *failoverRun) run(ctx context.Context, f *fleet, args []string) error {
	r.order.Group, r.order.Operator = args[0], operatorName()
	if strings.TrimSpace(r.order.Why) == "" && !r.preview {
		return usageError{errors.New("--reason is missing: say why, for those who will ask")}
	}
	if r.wait <= 0 {
		return usageError{errors.New("--wait must be above 0")}
	}
	v, err := f.brokerGroup(ctx, r.order.Group)
	if err != nil {
		return err
	}
	plan, err := v.planFailover(r.order.To, r.order.AllowLoss)
	if err != nil {
		return fmt.Errorf("nothing was done: %w", err)
	}
	f.countLoss(ctx, v, plan)
	if r.preview || plan.Refused != "" {
		if err := r.e.show(plan, func(w io.Writer) { plan.print(w) }); err != nil {
			return err
		}
		if plan.Refused != "" {
			return fmt.Errorf("nothing was done: %s", plan.Refused)
		}
		return nil
	}
	if plan.Loss != nil && !r.yes {
		if r.e.format != "json" {
			plan.print(r.e.errOut)
		}
		if err := r.e.confirm(fmt.Sprintf("this gives up what only %s had, for ever", cmp.Or(plan.From, "the master before"))); err != nil {
			return err
		}
	}
	client, err := r.e.patient()
	if err != nil {
		return err
	}
	r.order.To = plan.To
	began := time.Now()
	terms, err := client.Failover(ctx, plan.target.info.Admin, r.order)
	if err != nil {
		return fmt.Errorf("%s: %w", plan.To, err)
	}
	out := switchOutput{Group: plan.Group, From: plan.From, To: plan.To}
	out.spared(terms)
	return r.e.awaitMaster(ctx, f, &out, terms, began, r.wait)
}

// planFailover says what a fail-over would do; to may be empty. A plan that is Refused
// says why it cannot be carried out as it was asked for.
func (v *brokerGroup) planFailover(to string, allowLoss bool) (*failoverPlan, error) {
	p := &failoverPlan{Group: v.Group, Epoch: v.Epoch, From: v.Master, InSync: v.InSync}
	if to != "" {
		p.target = v.node(to)
		switch {
		case p.target == nil:
			return nil, fmt.Errorf("%s is not a node of broker group %s", to, v.Group)
		case p.target.member == nil:
			return nil, fmt.Errorf("%s: %s: %s", to, p.target.State, p.target.Problem)
		case to == v.Master && v.Serves:
			return nil, fmt.Errorf("%s is the master already, of epoch %d", to, v.Epoch)
		}
	} else if p.target = v.longest(); p.target == nil {
		return nil, fmt.Errorf("no node of broker group %s answers that could take over", v.Group)
	}
	p.To = p.target.Node
	switch {
	case v.TermGone && !allowLoss:
		return p, nil // who was in sync nobody knows: the election says whether it can be without loss
	case !v.TermGone && (v.safe(p.target) || v.Epoch == 0):
		return p, nil
	}
	p.Loss = &plannedLoss{From: p.target.Synced, Known: v.Known, Bytes: v.Known - min(v.Known, p.target.Synced)}
	others := slices.DeleteFunc(slices.Clone(v.Nodes), func(n *groupNode) bool { return !v.safe(n) || n.Node == v.Master && !v.Serves })
	switch {
	case v.TermGone:
	case v.Serves:
		p.Refused = fmt.Sprintf("%s is not in sync, and the master %s answers: nothing needs to be lost", p.To, v.Master)
	case len(others) > 0:
		p.Refused = fmt.Sprintf("%s is not in sync, and %s is and answers: nothing needs to be lost", p.To, others[0].Node)
	case !allowLoss:
		p.Refused = fmt.Sprintf("%s is not in sync, in sync are %s: bring one of them back, or give --allow-loss", p.To, cmp.Or(strings.Join(v.InSync, " "), "none"))
	}
	return p, nil
}

// safe says whether the node has everything that was acknowledged.
func (v *brokerGroup) safe(n *groupNode) bool {
	return n.member != nil && n.InSync && n.State != "diverged" && n.member.Problem == ""
}

// longest returns the node that should take over: of those that answer, one that is in
// sync, then the one with the longest log; nil when there is none.
func (v *brokerGroup) longest() *groupNode {
	var best *groupNode
	for _, n := range v.Nodes {
		if n.member == nil || n.Node == v.Master && v.Serves || n.State == "opening" {
			continue
		}
		if best == nil || v.prefers(n, best) {
			best = n
		}
	}
	return best
}

// prefers says whether a should rather take over than b.
func (v *brokerGroup) prefers(a, b *groupNode) bool {
	if v.safe(a) != v.safe(b) {
		return v.safe(a)
	}
	return cmp.Or(cmp.Compare(a.LogEpoch, b.LogEpoch), cmp.Compare(a.Synced, b.Synced)) > 0
}

// countLoss has a node that has what would be given up count its records.
func (f *fleet) countLoss(ctx context.Context, v *brokerGroup, p *failoverPlan) {
	if p.Loss == nil || p.Loss.Bytes == 0 {
		return
	}
	for _, n := range v.Nodes {
		if n == p.target || n.member == nil || n.LogEpoch != v.Epoch || n.Committed < p.Loss.Known {
			continue
		}
		if x, err := f.client.Extent(ctx, n.info.Admin, admin.ExtentQuery{From: p.Loss.From, To: p.Loss.Known}); err == nil {
			p.Loss.Told, p.Loss.By = &x, n.Node
			return
		}
	}
}

func (p *failoverPlan) print(w io.Writer) {
	fmt.Fprintf(w, "broker group %s, epoch %d: %s would take over from %s; in sync are %s\n", p.Group, p.Epoch, p.To, cmp.Or(p.From, "nobody"), cmp.Or(strings.Join(p.InSync, " "), "none"))
	l := p.Loss
	switch {
	case l == nil:
		fmt.Fprintln(w, "nothing that was acknowledged would be lost")
		return
	case l.Bytes == 0:
		fmt.Fprintf(w, "nothing is known to be lost: nobody has told of a commit above %d, the end of its log. What was acknowledged after the last word of the master would be\n", l.From)
		return
	}
	fmt.Fprintf(w, "given up: from position %d on, %s at least (committed up to %d when the master was heard last)\n", l.From, size(l.Bytes), l.Known)
	if l.Told == nil {
		fmt.Fprintln(w, "how many records of which topics cannot be said: no node that answers has them")
		return
	}
	more := ""
	if l.Told.Partial {
		more = " at least"
	}
	fmt.Fprintf(w, "that is %s%s, which %s has:\n", count(l.Told.Records, "record", "records"), more, l.By)
	t := newTable("TOPIC", "MESSAGES")
	for _, x := range l.Told.Topics {
		t.row(plain(x.Topic), x.Messages)
	}
	t.print(w)
}
