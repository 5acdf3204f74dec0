package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
)

// Exit codes of the process.
const (
	ExitOK     = 0
	ExitFailed = 1 // the command could not do its work
	ExitUsage  = 2 // wrong flags or arguments
)

// usageError marks wrong use, so that Run can return ExitUsage.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// env is what every command gets: where to print and where to ask.
type env struct {
	out, errOut io.Writer
	in          io.Reader
	format      string // text or json
	fleet       fleetFlags
}

// Run executes the command line and returns the exit code.
func Run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	e := &env{out: out, errOut: errOut, in: in}
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		fmt.Fprintf(errOut, "mqrouter: %v\n", err)
		return ExitUsage
	default:
		fmt.Fprintf(errOut, "mqrouter: %v\n", err)
		return ExitFailed
	}
}

// Main is Run on the process's own arguments and streams.
func Main(ctx context.Context) int { return Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr) }

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "mqrouter",
		Short: "Routes messages between the zones and cities of a company",
		Long: `mqrouter routes messages between the zones and cities of a company.

Services publish with the RocketMQ 5 clients that they have and need not know
where the receiver lives; changes of member data reach the cache of every city.

Start with:  mqrouter dev`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if e.format != "text" && e.format != "json" {
				return usageError{fmt.Errorf("-o %q: write text or json", e.format)}
			}
			if c.Annotations[runsNode] == "" {
				for _, v := range config.UnreadVariables(os.Environ()) {
					fmt.Fprintf(e.errOut, "mqrouter: the environment variable %s is not one that mqrouter reads%s\n", v.Name, didYouMean(v))
				}
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVarP(&e.format, "output", "o", "text", "output: text or json")
	root.AddCommand(
		newDev(e),
		newBroker(e), newRouter(e), newCacheSync(e), newCoordinator(e),
		newTopology(e), newTopic(e), newGroup(e), newBrokerGroup(e),
		newPublish(e), newRecall(e), newConsume(e), newBroadcast(e), newCache(e), newMessage(e), newDLQ(e), newWaiting(e), newTail(e), newFlow(e),
		newStatus(e), newBench(e), newPKI(e), newACL(e), newVersion(e),
	)
	demandCommands(root)
	plainFlags(root)
	return root
}

// runsNode marks commands that tell of mistyped variables in their log.
const runsNode = "runs-node"

func didYouMean(v config.Unread) string {
	if v.Near == "" {
		return ""
	}
	return "; did you mean " + v.Near + "?"
}

// plainFlags makes help write --all instead of --all[=true|false].
func plainFlags(root *cobra.Command) {
	const value = "[=true|false]"
	cobra.AddTemplateFunc("plainFlags", func(usages string) string {
		return strings.ReplaceAll(usages, value, strings.Repeat(" ", len(value)))
	})
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages |", ".FlagUsages | plainFlags |"))
}

// demandCommands makes a command that has only others under it refuse words
// that are none of them, which cobra would answer with the help text and 0.
func demandCommands(c *cobra.Command) {
	for _, sub := range c.Commands() {
		demandCommands(sub)
	}
	if !c.HasSubCommands() || c.Runnable() {
		return
	}
	c.SuggestionsMinimumDistance = 2 // letters that may differ
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := "see " + c.CommandPath() + " --help"
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "did you mean " + strings.Join(near, " or ") + "?"
		}
		return usageError{fmt.Errorf("unknown command %q for %q; %s", args[0], c.CommandPath(), hint)}
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// exactArgs is cobra.ExactArgs with the exit code of wrong use.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("got %d arguments, want %d: %s", len(args), n, what)}
		}
		return nil
	}
}

// optionalArg is cobra.MaximumNArgs(1) with the exit code of wrong use.
func optionalArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usageError{fmt.Errorf("got %d arguments, want at most 1: %s", len(args), what)}
		}
		return nil
	}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}
