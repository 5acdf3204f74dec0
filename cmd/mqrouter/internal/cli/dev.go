package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/dev"
	"github.com/mqrouter/mqrouter/zone/sample"
	"github.com/mqrouter/mqrouter/zone/source"
)

type devFlags struct {
	dir      string
	topology string
	acl      string
	offset   int
	redis    []string
	logLevel string

	only      []string
	replicas  int
	processes bool
	restart   time.Duration
}

func newDev(e *env) *cobra.Command {
	var p devFlags
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole sample deployment on this machine",
		Long: `Start a deployment of three cities, with two routers each and every kind of
zone, in one process on 127.0.0.1, with certificates and a gossip key of its own.
The data stays in --dir: the same command goes on with it.

With --processes each node is a process of its own, for those who want to kill
some: pids are in DIR/pids, logs in DIR/logs. A node that dies is told here and
started again after --restart, which doubles while it dies soon after each start.
Ctrl-C stops all in order, a second one kills them. On Linux they die with this
process, whatever it dies of; elsewhere they outlive a kill -9 of it.

With --replicas 3 (or 5) it is a smaller deployment, of two cities, in which zone
rz01 has a broker group of so many nodes, each a process, in a folder of its own
(mqrouter-replicas). DIR/masters has the pid of the group's master: kill it and
see another one take over.

Ports: 5101.. admin, 6001.. and 6101.. gossip, 7001.. QUIC, 8081.. RocketMQ
clients, 9001.. in-city peers. --port-offset moves them all.`,
		Example: `  mqrouter dev
  mqrouter dev --redis 127.0.0.1:6379
  mqrouter dev --processes
  mqrouter dev --replicas 3
  mqrouter dev --processes --only shanghai     # a terminal for each city
  mqrouter dev --redis shanghai=127.0.0.1:6379 --redis hangzhou=127.0.0.1:6380`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.run(c, e) },
	}
	c.Flags().StringVar(&p.dir, "dir", devFolder, "folder for topology, certificates, data and log")
	c.Flags().StringVar(&p.topology, "topology", "", "topology to begin with instead of the sample; loopback addresses only make sense")
	c.Flags().StringVar(&p.acl, "acl", "", "access file that every broker follows; default: clients may do everything")
	c.Flags().IntVar(&p.offset, "port-offset", 0, "add this to every port of the topology to begin with")
	c.Flags().StringArrayVar(&p.redis, "redis", nil, "keep this Redis fresh: HOST:PORT for all cities (keys begin with the city), or CITY=HOST:PORT; default: in-process caches")
	c.Flags().StringVar(&p.logLevel, "log-level", "info", "debug, info, warn or error")
	c.Flags().StringSliceVar(&p.only, "only", nil, "start only these nodes, zones or cities of the topology; others may run elsewhere")
	c.Flags().BoolVar(&p.processes, "processes", false, "run every node as a process of its own")
	c.Flags().IntVar(&p.replicas, "replicas", 0, "begin with the sample that has a broker group of 3 or 5 nodes; with --processes")
	c.Flags().DurationVar(&p.restart, "restart", 2*time.Second, "with --processes: the pause before a node that died is started again; 0: it stays dead")
	config.TraceFlags(c.Flags())
	return c
}

func (p *devFlags) run(c *cobra.Command, e *env) error {
	level, err := config.ParseLevel(p.logLevel)
	if err != nil {
		return usageError{err}
	}
	if p.replicas != 0 {
		if err := p.withReplicas(c); err != nil {
			return err
		}
	}
	switch {
	case p.restart < 0:
		return usageError{fmt.Errorf("--restart %v: write a duration, or 0 for never", p.restart)}
	case c.Flags().Changed("restart") && !p.processes:
		return usageError{fmt.Errorf("--restart is of --processes: nodes in one process end together")}
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
	trace, err := config.TraceOf(c.Flags())
	if err != nil {
		return usageError{err}
	}
	begin := dev.Beginning{Name: "the sample", Text: sample.YAML, PortOffset: p.offset, Asked: p.topology != "" || p.replicas != 0 || c.Flags().Changed("port-offset")}
	if p.replicas != 0 {
		if begin.Text, err = sample.Replicated(p.replicas); err != nil {
			return usageError{err}
		}
	}
	if p.topology != "" {
		begin.Name = p.topology
		if begin.Text, err = source.ReadFile(p.topology); err != nil {
			return fmt.Errorf("dev: %w", err)
		}
	}
	return dev.Run(c.Context(), dev.Options{Dir: p.dir, Begin: begin, Redis: redis, ACL: p.acl, Trace: trace, LogLevel: level,
		Only: p.only, Replicas: p.replicas, Processes: p.processes, Restart: p.restart,
		Version: Version(), Out: e.out, Program: program()})
}

// Folders of deployments, when nobody says which.
const (
	devFolder      = "mqrouter-dev"
	replicasFolder = "mqrouter-replicas"
)

// withReplicas makes of the flags what --replicas means by itself.
func (p *devFlags) withReplicas(c *cobra.Command) error {
	switch {
	case p.topology != "":
		return usageError{errors.New("--replicas is for the sample, and --topology names another one")}
	case c.Flags().Changed("processes") && !p.processes:
		return usageError{errors.New("--replicas is to kill nodes: they are processes")}
	}
	p.processes = true
	if !c.Flags().Changed("dir") {
		p.dir = replicasFolder
	}
	return nil
}

// program is how a person would call this program again.
func program() string {
	exe, err := os.Executable()
	if err != nil || strings.Contains(exe, "go-build") {
		return "go run ./cmd/mqrouter"
	}
	return os.Args[0]
}
