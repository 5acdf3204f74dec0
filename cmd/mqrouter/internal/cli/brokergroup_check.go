package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/zone"
)

func newBrokerGroupCheck(e *env) *cobra.Command {
	var p safety
	var wait time.Duration
	c := e.asks(&cobra.Command{
		Use:   "check GROUP [--without NODE] [--in-sync N]",
		Short: "Say whether a broker group is whole, or can do without a node",
		Long: `Say whether a broker group is whole: it has a master that serves, all its nodes
answer with the same topology, none has diverged, all are in sync, no topic is refused
for want of copies, and the coordinator decides.

--without NODE asks whether that node may be stopped, upgraded, emptied or taken out of
the topology now: the same of the others, and the node is not the master, enough copies
are left for each topic, and the coordinator keeps its majority. What the node itself
is like does not count then: it may be dead.

The command fails unless all of it is true, and says what is not. --wait asks again
until it is. It is true of the moment at which it was asked.`,
		Example: `  mqrouter brokergroup check rz-east-a --in-sync 3 --wait 10m
  mqrouter brokergroup check rz-east-a --without rz-east-a-2`,
		Args: exactArgs(1, "the broker group"),
	}, func(ctx context.Context, f *fleet, args []string) error {
		if wait < 0 || p.inSync < 0 {
			return usageError{errors.New("--wait and --in-sync must not be negative")}
		}
		return e.check(ctx, f, args[0], p, wait)
	})
	c.Flags().StringVar(&p.without, "without", "", "a node that is about to be stopped, emptied or removed")
	c.Flags().IntVar(&p.inSync, "in-sync", 0, "so many nodes have to be in sync, not counting --without; 0 = all of them")
	c.Flags().DurationVar(&wait, "wait", 0, "ask again for so long; 0 = once")
	return c
}

// safety is what is asked of a broker group.
type safety struct {
	without string
	inSync  int
}

// checkOutput is what `brokergroup check` prints as JSON.
type checkOutput struct {
	Group   string   `json:"group"`
	Without string   `json:"without,omitempty"`
	Safe    bool     `json:"safe"`
	Against []string `json:"against"` // why it is not
	Notes   []string `json:"notes"`   // what to know although it is
}

// checkPause is how often a group is asked while it is waited for.
const checkPause = 500 * time.Millisecond

func (e *env) check(ctx context.Context, f *fleet, group string, p safety, wait time.Duration) error {
	until := time.Now().Add(wait)
	for {
		v, err := f.brokerGroup(ctx, group)
		if err != nil {
			return err
		}
		if p.without != "" && v.node(p.without) == nil {
			return fmt.Errorf("%s is not a node of broker group %s", p.without, group)
		}
		out := checkOutput{Group: group, Without: p.without}
		out.Against, out.Notes = v.against(f.topology, p)
		out.Safe = len(out.Against) == 0
		if !out.Safe && time.Now().Before(until) && pause(ctx, checkPause) {
			continue
		}
		if err := e.show(out, func(w io.Writer) { printCheck(w, &out) }); err != nil {
			return err
		}
		if !out.Safe {
			return fmt.Errorf("not safe: %s against it", count(len(out.Against), "thing speaks", "things speak"))
		}
		return nil
	}
}

// pause waits, and reports whether there is still somebody who wants to go on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func printCheck(w io.Writer, out *checkOutput) {
	for _, a := range out.Against {
		fmt.Fprintln(w, "not safe:", a)
	}
	for _, n := range out.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	switch {
	case !out.Safe:
	case out.Without != "":
		fmt.Fprintf(w, "broker group %s can do without %s now\n", out.Group, out.Without)
	default:
		fmt.Fprintf(w, "broker group %s is whole\n", out.Group)
	}
}

// against says what speaks against calling the group safe, and what else is to be known.
func (v *brokerGroup) against(t *zone.Topology, p safety) (against, notes []string) {
	no := func(format string, args ...any) { against = append(against, fmt.Sprintf(format, args...)) }
	if !v.Led {
		no("%s: nobody would be elected", v.notLed())
	}
	switch {
	case v.TermGone:
		no("%s", v.Waiting)
	case v.Master == "":
		no("the group has no master%s", strings.TrimSuffix(": "+v.Waiting, ": "))
	case !v.Serves:
		no("the master %s does not serve, or does not answer", v.Master)
	}
	if p.without != "" && v.Master == p.without {
		no("%s is the master: first mqrouter brokergroup switch %s --to another one", p.without, v.Group)
	}
	if len(v.Proposed) > 0 {
		no("the in-sync set is being changed to %s", strings.Join(v.Proposed, " "))
	}
	remain := 0
	for _, n := range v.Nodes {
		if n.Node == p.without {
			continue
		}
		if n.InSync {
			remain++
		}
		v.judgeNode(n, p, no)
	}
	for _, name := range v.InSync {
		if v.node(name) == nil {
			no("%s is in sync and not in this topology", name)
		}
	}
	want := p.inSync
	if want == 0 {
		want = len(v.Nodes)
		if p.without != "" {
			want--
		}
	}
	if remain < want {
		no("%d in sync%s, of %d that are asked for", remain, without(p.without), want)
	}
	for _, topic := range t.Topics {
		if topic.MinInSync > 1 && topic.MinInSync > remain {
			no("publishes to %s are refused%s: it asks for %d in sync, and %d are", topic.Name, without(p.without), topic.MinInSync, remain)
		}
	}
	if remain == 1 && len(against) == 0 {
		notes = append(notes, "one copy is left"+without(p.without)+": if that node fails the group has no master")
	}
	v.judgeVoters(p, no)
	v.judgeEpochs(t, p, no)
	return orNone(against), orNone(notes)
}

func without(node string) string {
	if node == "" {
		return ""
	}
	return " without " + node
}

// judgeNode says what is wrong with a node that the group goes on with.
func (v *brokerGroup) judgeNode(n *groupNode, p safety, no func(string, ...any)) {
	switch {
	case n.member == nil:
		no("%s: %s: %s", n.Node, n.State, n.Problem)
	case n.State == "diverged":
		no("%s: its log has diverged: %s", n.Node, n.Problem)
	case !n.InSync && p.inSync == 0:
		no("%s is not in sync: %s, %s behind%s", n.Node, n.State, size(n.Behind), strings.TrimSuffix("; "+n.Problem, "; "))
	case n.Problem != "":
		no("%s: %s", n.Node, n.Problem)
	}
}

// judgeVoters says whether the coordinator keeps its majority.
func (v *brokerGroup) judgeVoters(p safety, no func(string, ...any)) {
	if len(v.Voters) == 0 {
		return
	}
	left, leaves := 0, false
	for _, x := range v.Voters {
		switch {
		case x.Node == p.without:
			leaves = true
		case x.Votes:
			left++
		}
	}
	if majority := len(v.Voters)/2 + 1; left < majority && (leaves || p.without == "") {
		no("%d of the coordinator's %d voters are in its quorum%s: it needs %d", left, len(v.Voters), without(p.without), majority)
	}
}

// judgeEpochs says who has another topology than the one that was asked for.
func (v *brokerGroup) judgeEpochs(t *zone.Topology, p safety, no func(string, ...any)) {
	var others []string
	note := func(node, epoch string) {
		if epoch != "" && epoch != t.Epoch.String() && node != p.without {
			others = append(others, node+" has "+epoch)
		}
	}
	for _, n := range v.Nodes {
		note(n.Node, n.Epoch)
	}
	for _, x := range v.Voters {
		if v.node(x.Node) == nil {
			note(x.Node, x.Epoch)
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		no("not all have topology %s: %s", t.Epoch, strings.Join(others, ", "))
	}
}
