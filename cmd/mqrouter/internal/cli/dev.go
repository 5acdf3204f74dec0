package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/dev"
	"github.com/mqrouter/mqrouter/zone/sample"
)

type devFlags struct {
	dir      string
	topology string
	offset   int
	redis    []string
	logLevel string
}

func newDev(e *env) *cobra.Command {
	var p devFlags
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole sample deployment in this process",
		Long: `Start a deployment of three cities, with two routers each and every kind of
zone, in one process on 127.0.0.1, with certificates and a gossip key of its own.
The data stays in --dir: the same command goes on with it.

Ports: 5101.. admin, 6001.. and 6101.. gossip, 7001.. QUIC, 8081.. RocketMQ
clients, 9001.. in-city peers. --port-offset moves them all.`,
		Example: `  mqrouter dev
  mqrouter dev --redis 127.0.0.1:6379
  mqrouter dev --redis shanghai=127.0.0.1:6379 --redis hangzhou=127.0.0.1:6380`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.run(c, e) },
	}
	c.Flags().StringVar(&p.dir, "dir", "mqrouter-dev", "folder for topology, certificates, data and log")
	c.Flags().StringVar(&p.topology, "topology", "", "topology to begin with instead of the sample; loopback addresses only make sense")
	c.Flags().IntVar(&p.offset, "port-offset", 0, "add this to every port of the topology to begin with")
	c.Flags().StringArrayVar(&p.redis, "redis", nil, "keep this Redis fresh: HOST:PORT for all cities (keys begin with the city), or CITY=HOST:PORT; default: in-process caches")
	c.Flags().StringVar(&p.logLevel, "log-level", "info", "debug, info, warn or error")
	return c
}

func (p *devFlags) run(c *cobra.Command, e *env) error {
	level, err := config.ParseLevel(p.logLevel)
	if err != nil {
		return usageError{err}
	}
	redis := map[string]string{}
	for _, r := range p.redis {
		city, addr, ok := strings.Cut(r, "=")
		if !ok {
			city, addr = "", r
		}
		if !strings.Contains(addr, ":") {
			return usageError{fmt.Errorf("--redis %q: write HOST:PORT or CITY=HOST:PORT", r)}
		}
		redis[city] = addr
	}
	begin := sample.YAML
	if p.topology != "" {
		if begin, err = os.ReadFile(p.topology); err != nil {
			return fmt.Errorf("dev: %w", err)
		}
	}
	return dev.Run(c.Context(), dev.Options{Dir: p.dir, Sample: begin, PortOffset: p.offset, Redis: redis, LogLevel: level,
		Version: Version(), Out: e.out, Program: program()})
}

// program is how a person would call this program again.
func program() string {
	exe, err := os.Executable()
	if err != nil || strings.Contains(exe, "go-build") {
		return "go run ./cmd/mqrouter"
	}
	return os.Args[0]
}
