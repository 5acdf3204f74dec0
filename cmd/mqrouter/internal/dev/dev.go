package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/acl"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/node"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/zone"
)

// grace is how long a node of a development deployment may take to drain: all
// stop together, so there is nobody to drain to.
const grace = 2 * time.Second

// limits keep a dozen brokers on one machine small: each preallocates two
// segments and keeps the newest entries in memory.
var limits = broker.Limits{SegmentBytes: 16 << 20, TailBytes: 8 << 20}

// Options say what to start.
type Options struct {
	Dir       string            // made when missing
	Begin     Beginning         // when the folder has no topology
	Redis     map[string]string // city -> host:port; the key "" is for every city not named
	Only      []string          // nodes, zones and cities to start; empty: all
	Replicas  int               // Begin is the sample with a broker group of so many nodes; 0: it is not
	Processes bool              // each node is a process of its own
	Restart   time.Duration     // with Processes: the pause before a node that died is started again; 0: never
	ACL       string            // access file of every broker; empty: everybody may do everything
	Trace     config.Trace
	LogLevel  slog.Level
	Version   string
	Out       io.Writer // the map, the commands to try, and which node died
	Program   string    // how the commands to try begin
}

// Beginning is the topology that a new folder gets.
type Beginning struct {
	Name       string // of the file, for its faults
	Text       []byte
	PortOffset int  // added to every port
	Asked      bool // for this topology or offset, rather than taken by default
}

// Run starts every node, prints the map, and stops them when ctx ends.
func Run(ctx context.Context, o Options) error {
	if err := checkACL(o.ACL); err != nil {
		return err
	}
	f := folder{o.Dir}
	kept := f.kept(o.Begin)
	t, err := f.prepare(o.Begin, time.Now())
	if err != nil {
		return err
	}
	if err := checkRedis(o.Redis, t); err != nil {
		return err
	}
	nodes, err := chosen(t, o.Only)
	if err != nil {
		return err
	}
	d := &deployment{o: o, f: f, t: t, nodes: nodes, ready: make(chan zone.Node)}
	if kept != "" {
		d.say("%s", kept)
	}
	if o.Processes {
		stop, err := d.supervise()
		if err != nil {
			return explain(err)
		}
		defer stop()
		d.say("starting deployment %q, %d processes, data in %s, logs in %s", t.Deployment, len(nodes), f.dir, filepath.Dir(f.nodeLog("x")))
		return d.run(ctx, d.process)
	}
	logFile, err := os.OpenFile(f.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	defer logFile.Close()
	d.log = slog.New(slog.NewTextHandler(logFile, &slog.HandlerOptions{Level: o.LogLevel}))
	d.say("starting deployment %q, data in %s, log in %s", t.Deployment, f.dir, f.log())
	return d.run(ctx, d.node)
}

// chosen returns the nodes that are, or belong to, what only names; all nodes
// when it names nothing.
func chosen(t *zone.Topology, only []string) ([]*zone.NodeInfo, error) {
	all := pki.Nodes(t)
	if len(only) == 0 {
		return all, nil
	}
	var some []*zone.NodeInfo
	used := map[string]bool{}
	for _, n := range all {
		names := []string{string(n.Name), string(n.City.Name)}
		if n.Zone != nil {
			names = append(names, string(n.Zone.Name))
		}
		if i := slices.IndexFunc(names, func(name string) bool { return slices.Contains(only, name) }); i >= 0 {
			some = append(some, n)
		}
		for _, name := range names {
			used[name] = true
		}
	}
	for _, name := range only {
		if !used[name] {
			return nil, fmt.Errorf("dev: --only names %q, which is no node, zone or city of the topology", name)
		}
	}
	return some, nil
}

// checkACL refuses an access file that each of the brokers would refuse.
func checkACL(path string) error {
	if path == "" {
		return nil
	}
	data, err := acl.Read(path)
	if err == nil {
		_, err = policy.ParseAccess(data, path)
	}
	if err != nil {
		return fmt.Errorf("dev: --acl: %w", err)
	}
	return nil
}

// checkRedis refuses the name of a city that does not exist.
func checkRedis(redis map[string]string, t *zone.Topology) error {
	for city := range redis {
		if city != "" && t.FindCity(zone.City(city)) == nil {
			return fmt.Errorf("dev: --redis names the city %q, which is not in the topology", city)
		}
	}
	return nil
}

// deployment is the set of running nodes.
type deployment struct {
	o     Options
	f     folder
	t     *zone.Topology
	nodes []*zone.NodeInfo // those to run
	log   *slog.Logger     // of nodes in this process
	ready chan zone.Node

	// With Processes only.
	exe     string // this program
	ask     *admin.Client
	starter *starter

	mu     sync.Mutex          // guards Out as well
	alive  map[*child]struct{} // guarded by mu
	killed bool                // guarded by mu
}

// say prints a line for the person at the terminal. It is safe for concurrent use.
func (d *deployment) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.o.Out, "mqrouter dev: "+format+"\n", args...)
}

// run starts the nodes in two waves, so that a stop takes clients off first:
// brokers and cache readers end before the routers that carry their flows.
func (d *deployment) run(ctx context.Context, node func(context.Context, *zone.NodeInfo) error) error {
	upper, stopUpper := context.WithCancel(context.WithoutCancel(ctx))
	lower, stopLower := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLower()
	defer stopUpper()
	var routers, others sync.WaitGroup
	failed := make(chan error, len(d.nodes))
	for _, n := range d.nodes {
		on, wg := upper, &others
		if n.Role == zone.RoleRouter {
			on, wg = lower, &routers
		}
		wg.Go(func() {
			if err := node(on, n); err != nil {
				failed <- fmt.Errorf("%s: %w", n.Name, err)
			}
		})
	}
	watch, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	if d.o.Processes {
		others.Go(func() { d.watchMasters(watch) })
	}
	err := d.await(ctx, len(d.nodes), failed)
	stopWatch()
	if d.o.Processes {
		defer d.heedSecondSignal()()
	}
	stopUpper()
	others.Wait()
	stopLower()
	routers.Wait()
	close(failed)
	err = gather(err, failed)
	if err == nil {
		fmt.Fprintln(d.o.Out, "stopped; the data stays, the same command goes on with it")
	}
	return explain(err)
}

// await waits until all nodes are ready, prints the map, and then until ctx
// ends or a node fails.
func (d *deployment) await(ctx context.Context, count int, failed <-chan error) error {
	for range count {
		select {
		case <-d.ready:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
	d.printMap()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		d.say("stopping")
		return nil
	}
}

// gather joins the first failure with the others. When another deployment has the ports
// or the folder every node says so: of those the first is told, the others are counted.
func gather(first error, failed <-chan error) error {
	err, alike := first, 0
	for e := range failed {
		switch {
		case errors.Is(e, context.Canceled): // it only heard of the first failure
		case taken(e) && taken(err):
			alike++
		default:
			err = errors.Join(err, e)
		}
	}
	if alike > 0 {
		err = fmt.Errorf("%w\n%d more of the nodes cannot start for such a reason", err, alike)
	}
	return err
}

// taken reports whether a node failed since somebody else has its port or its folder.
func taken(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "address already in use") || errors.Is(err, disk.ErrLocked))
}

// explain adds, at the end, what to do about a port or a folder that is taken.
func explain(err error) error {
	if taken(err) {
		return fmt.Errorf("%w\nis another mqrouter dev running? a new folder and other ports start a second one beside it: --dir NEW --port-offset 10000", err)
	}
	return err
}

// node runs one node until ctx ends.
func (d *deployment) node(ctx context.Context, n *zone.NodeInfo) error {
	cfg := d.config(n)
	o := node.Options{Version: d.o.Version, Logger: d.log, Limits: limits, Ready: func() {
		select {
		case d.ready <- n.Name:
		case <-ctx.Done():
		}
	}}
	switch n.Role {
	case zone.RoleRouter:
		return node.Router(ctx, cfg, o)
	case zone.RoleCacheSync:
		return node.CacheSync(ctx, cfg, o)
	case zone.RoleCoordinator:
		return node.Coordinator(ctx, cfg, o)
	case zone.RoleBroker:
		return node.Broker(ctx, cfg, o)
	default:
		return fmt.Errorf("%s is a %s, which this version does not start", n.Name, n.Role)
	}
}

// config is the configuration of a node, in this process or in one of its own.
func (d *deployment) config(n *zone.NodeInfo) config.Node {
	c := config.Node{Name: string(n.Name), Topology: d.f.topology(), PKI: d.f.pki(), DataDir: d.f.data(n.Name), Plaintext: true, Grace: grace, Trace: d.o.Trace}
	if n.Role == zone.RoleBroker {
		c.ACL = d.o.ACL
	}
	if n.Role == zone.RoleCacheSync {
		c.Group = cacheGroup(d.t)
		city := string(n.City.Name)
		if c.Redis = d.o.Redis[city]; c.Redis == "" && d.o.Redis[""] != "" {
			c.Redis, c.RedisPrefix = d.o.Redis[""], city+":"
		}
	}
	return c
}

// cacheGroup returns the first consumer group that is a cache's.
func cacheGroup(t *zone.Topology) string {
	for _, g := range t.Groups {
		if g.Cache {
			return string(g.Name)
		}
	}
	return ""
}
