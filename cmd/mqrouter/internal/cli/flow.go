package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

func newFlow(e *env) *cobra.Command {
	c := &cobra.Command{Use: "flow", Short: "Give up what waits for a destination that is gone"}
	c.AddCommand(newFlowWithdraw(e))
	return c
}

func newFlowWithdraw(e *env) *cobra.Command {
	var yes bool
	c := e.asks(&cobra.Command{
		Use:   "withdraw GROUP",
		Short: "Give up what waits at every broker for a group that the topology does not have any more",
		Long: `Give up what waits at every broker for a broker group that the topology does not
have any more (state "removed" in status): it holds the log back until the group
returns, or until this. Without --yes the command only says how much it would be.
What is given up is lost for that group; it is counted and logged.`,
		Example: `  mqrouter flow withdraw rz09-a
  mqrouter flow withdraw rz09-a --yes`,
		Args: exactArgs(1, "the broker group"),
	}, func(ctx context.Context, f *fleet, args []string) error { return e.withdraw(ctx, f, args[0], yes) })
	c.Flags().BoolVar(&yes, "yes", false, "do it; without it the command only says what it would do")
	return c
}

func (e *env) withdraw(ctx context.Context, f *fleet, group string, yes bool) error {
	if f.topology.FindGroup(zone.Group(group)) != nil { // each broker refuses too, by its own topology
		return fmt.Errorf("topology %s has the broker group %s: what waits for it is not given up by hand; take it out of the topology first, or see at_budget", f.topology.Epoch, group)
	}
	rows := []admin.Withdrawal{}
	var errs []error
	for _, m := range f.groups("") {
		list, _, err := master(ctx, m, func(ctx context.Context, addr string) ([]admin.Withdrawal, error) {
			return f.client.Withdraw(ctx, addr, admin.WithdrawRequest{Group: group, DryRun: !yes})
		})
		if err != nil {
			errs = append(errs, err)
		}
		rows = append(rows, list...)
	}
	var records uint64
	var bytes int64
	for _, r := range rows {
		records, bytes = records+r.Records, bytes+r.Bytes
	}
	err := e.show(rows, func(w io.Writer) {
		if len(rows) == 0 {
			if len(errs) == 0 {
				fmt.Fprintf(w, "nothing waits for a broker group %s\n", group)
			}
			return
		}
		t := newTable("NODE", "FLOW", "LANE", "RECORDS", "SIZE", "OLDEST")
		for _, r := range rows {
			t.row(r.Node, r.Flow, r.Lane, r.Records, size(uint64(r.Bytes)), age(r.Oldest))
		}
		t.print(w)
		what := "would be given up; --yes gives them up"
		if yes {
			what = "are given up"
		}
		fmt.Fprintf(w, "\n%s (%s) for group %s %s\n", count(int(records), "record", "records"), size(uint64(bytes)), group, what)
	})
	return errors.Join(append(errs, err)...)
}
