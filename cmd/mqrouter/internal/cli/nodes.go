package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/node"
)

func newBroker(e *env) *cobra.Command {
	return nodeCommand(e, "broker", "Run a broker of a zone", node.Broker,
		`Run one broker: it keeps its group's commit log, serves RocketMQ 5 clients, and
sends and lands the flows of its group. Addresses come from the topology, under
--name. SIGTERM drains it.`)
}

func newRouter(e *env) *cobra.Command {
	return nodeCommand(e, "router", "Run an MQ-router of a city", node.Router,
		`Run one router: it relays sessions between the brokers of its city and the
routers of other cities over QUIC. It keeps nothing on disk. SIGTERM drains it:
sessions move to the city's other routers first.`)
}

func newCacheSync(e *env) *cobra.Command {
	return nodeCommand(e, "cachesync", "Keep a cache of a city fresh", node.CacheSync,
		`Run one cache reader: it reads the landings of its city's CZone for a consumer
group with cache: true and applies them to a Redis, or to a cache in this
process. The position lives in the cache, written together with the data.`)
}

func newCoordinator(e *env) *cobra.Command {
	return nodeCommand(e, "coordinator", "Run a voter of a city's coordinator", node.Coordinator,
		`Run one voter of the coordinator of a city, which says who is master of each of
the city's broker groups. Needed only where the voters are no brokers: a broker that
the topology names as a voter is one by itself. Three voters bear the loss of one,
five that of two.`)
}

// nodeCommand is a command that runs a node until it is told to stop.
func nodeCommand(e *env, role, short string, run func(context.Context, config.Node, node.Options) error, long string) *cobra.Command {
	c := &cobra.Command{
		Use:   role + " --name NAME --topology FILE --pki DIR",
		Short: short,
		Long: long + `

Every flag is also a key of --config and an environment variable: --log-level,
log-level: and MQROUTER_LOG_LEVEL. Flags win over the environment, that over the
file.`,
		Args:        noArgs,
		Annotations: map[string]string{runsNode: role},
	}
	config.Flags(c.Flags(), role)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := config.Load(c.Flags())
		if err != nil {
			return usageError{err}
		}
		if err := cfg.Validate(role); err != nil {
			return usageError{err}
		}
		log := newLogger(cfg, e.errOut)
		for _, v := range config.UnreadVariables(os.Environ()) {
			log.Warn("environment variable is not one that mqrouter reads", "node", cfg.Name, "variable", v.Name, "near", v.Near)
		}
		o := node.Options{Version: Version(), Logger: log}
		disturb(cfg, &o)
		err = run(c.Context(), cfg, o)
		if c.Context().Err() != nil && errors.Is(err, context.Canceled) {
			return nil // told to stop while it was still starting
		}
		return err
	}
	return c
}

func newLogger(cfg config.Node, w io.Writer) *slog.Logger {
	level, err := config.ParseLevel(cfg.LogLevel)
	if err != nil {
		level = slog.LevelInfo // Validate has refused it
	}
	o := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
