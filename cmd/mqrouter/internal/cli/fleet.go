package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/source"
)

// askParallel bounds how many nodes are asked at once.
const askParallel = 16

// fleetFlags say how the nodes of a deployment are reached.
type fleetFlags struct {
	admin    string        // admin address of any node
	topology string        // topology file; asked from admin when empty
	timeout  time.Duration // for each answer
	pki, as  string        // certificate for admin and client addresses with TLS
}

func (e *env) fleetFlags(c *cobra.Command) {
	c.Flags().StringVar(&e.fleet.admin, "admin", envOr("MQROUTER_ADMIN", "127.0.0.1:5101"), "admin address of any node of the deployment (MQROUTER_ADMIN)")
	c.Flags().StringVar(&e.fleet.topology, "topology", os.Getenv("MQROUTER_TOPOLOGY"), "topology file; by default the node at --admin is asked for its own (MQROUTER_TOPOLOGY)")
	c.Flags().StringVar(&e.fleet.pki, "pki", "", "folder with ca.pem and the operator's certificate: TLS to admin and client addresses")
	c.Flags().StringVar(&e.fleet.as, "as", "", "with --pki: the operator's name; see mqrouter pki issue --admin")
	c.Flags().DurationVar(&e.fleet.timeout, "timeout", 10*time.Second, "how long to wait for each answer")
}

// asks makes c a command that asks the deployment: it gets the flags that say
// where, and the fleet that they lead to.
func (e *env) asks(c *cobra.Command, run func(ctx context.Context, f *fleet, args []string) error) *cobra.Command {
	e.fleetFlags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		f, err := e.openFleet(c.Context())
		if err != nil {
			return err
		}
		return run(c.Context(), f, args)
	}
	return c
}

func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// fleet is a deployment as the command line sees it.
type fleet struct {
	topology *zone.Topology
	client   *admin.Client
}

// tls returns the operator's mutual TLS, or nil without --pki.
func (f *fleetFlags) tls() (*tls.Config, error) {
	if f.pki == "" {
		return nil, nil
	}
	if f.as == "" {
		return nil, usageError{fmt.Errorf("--as is missing: whose certificate in %s is used", f.pki)}
	}
	store, err := peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(f.pki, f.as)})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; mqrouter pki issue --admin %s makes it", err, f.as)
	}
	if err != nil {
		return nil, err
	}
	mine := store.Identity().Deployment
	t := &peer.TLS{Store: store, Authorize: func(id peer.Identity) error {
		if id.Deployment != mine {
			return fmt.Errorf("%w: %s", peer.ErrDeployment, id.Deployment)
		}
		return nil
	}}
	return t.Client("admin", nil), nil
}

func (e *env) openFleet(ctx context.Context) (*fleet, error) {
	cfg, err := e.fleet.tls()
	if err != nil {
		return nil, err
	}
	if e.fleet.topology == "" {
		if err := checkAddress("--admin", e.fleet.admin); err != nil {
			return nil, err
		}
	}
	f := &fleet{client: admin.NewClient(cfg, e.fleet.timeout)}
	name, data := e.fleet.topology, []byte(nil)
	if name != "" {
		if data, err = source.ReadFile(name); err != nil {
			return nil, fmt.Errorf("cannot read the topology: %w; --topology names its file", err)
		}
	} else {
		name = "topology of " + e.fleet.admin
		if data, err = f.client.Topology(ctx, e.fleet.admin); err != nil {
			return nil, fmt.Errorf("cannot learn the topology: %w; %s", err, topologyHint(err))
		}
	}
	if f.topology, err = zone.Parse(data, name); err != nil {
		return nil, err
	}
	return f, nil
}

// checkAddress refuses what is no host and port: the resolver would call it an
// unknown host, or look for the port 0.
func checkAddress(flag, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		if n, bad := strconv.ParseUint(port, 10, 16); bad == nil && n > 0 {
			return nil
		}
	}
	return usageError{fmt.Errorf("%s %q: write HOST:PORT, such as 127.0.0.1:5101", flag, addr)}
}

// topologyHint says what to do when the topology could not be had.
func topologyHint(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "HTTP request to an HTTPS server"):
		return "the node wants mutual TLS: give --pki and --as"
	case strings.Contains(text, "HTTP response to HTTPS client"):
		return "the node's admin address is without TLS: leave --pki out"
	}
	return "is a node running there (mqrouter dev starts a sample deployment)? give --admin or --topology"
}

// nodes returns every node that has an admin address, in the topology's order.
func (f *fleet) nodes() []*zone.NodeInfo {
	return slices.DeleteFunc(pki.Nodes(f.topology), func(n *zone.NodeInfo) bool { return n.Admin == "" })
}

// statuses asks every node; one that does not answer is in the result with Error set.
func (f *fleet) statuses(ctx context.Context) []admin.Status {
	nodes := f.nodes()
	out := make([]admin.Status, len(nodes))
	var g errgroup.Group
	g.SetLimit(askParallel)
	for i, n := range nodes {
		g.Go(func() error {
			s, err := f.client.Status(ctx, n.Admin)
			if err == nil && s.Node != string(n.Name) {
				err = fmt.Errorf("%s is the address of another node now, %s", n.Admin, s.Node)
			}
			if err != nil {
				s = admin.Status{Node: string(n.Name), Role: n.Role.String(), City: string(n.City.Name), Error: err.Error()}
				if n.Zone != nil {
					s.Zone = string(n.Zone.Name)
				}
			}
			out[i] = s
			return nil
		})
	}
	g.Wait() //nolint:errcheck // the functions return no error
	return out
}

// endpointFlags say where a client of the RocketMQ protocol connects.
type endpointFlags struct{ endpoint, zone, accessKey string }

func (p *endpointFlags) declare(c *cobra.Command) {
	c.Flags().StringVar(&p.endpoint, "endpoint", os.Getenv("MQROUTER_ENDPOINT"), "broker to connect to, host:port (MQROUTER_ENDPOINT)")
	c.Flags().StringVar(&p.zone, "zone", "", "connect to a broker of this zone instead of --endpoint")
	c.Flags().StringVar(&p.accessKey, "access-key", os.Getenv("MQROUTER_ACCESS_KEY"), "access key to sign requests with (MQROUTER_ACCESS_KEY); its secret comes from MQROUTER_SECRET_KEY")
}

// signs puts the credentials into a client's configuration. The secret is no flag:
// command lines are seen by others.
func (p *endpointFlags) signs(cfg rocketmqclient.Config) rocketmqclient.Config {
	if p.accessKey != "" {
		cfg.AccessKey, cfg.SecretKey = p.accessKey, os.Getenv("MQROUTER_SECRET_KEY")
	}
	return cfg
}

// addresses returns those of the zone's brokers, or the endpoint given.
func (p *endpointFlags) addresses(ctx context.Context, e *env) ([]string, error) {
	if p.accessKey != "" && os.Getenv("MQROUTER_SECRET_KEY") == "" {
		return nil, usageError{fmt.Errorf("the access key %q has no secret: set MQROUTER_SECRET_KEY", p.accessKey)}
	}
	if p.endpoint != "" {
		if p.zone != "" {
			return nil, usageError{fmt.Errorf("give --endpoint or --zone, not both")}
		}
		return []string{p.endpoint}, nil
	}
	if p.zone == "" {
		return nil, usageError{fmt.Errorf("say where: --zone ZONE or --endpoint HOST:PORT")}
	}
	f, err := e.openFleet(ctx)
	if err != nil {
		return nil, err
	}
	z := f.topology.FindZone(zone.Zone(p.zone))
	if z == nil {
		return nil, fmt.Errorf("zone %q is not in the topology; it has %s", p.zone, strings.Join(zoneNames(f.topology), ", "))
	}
	var all []string
	for _, g := range z.Groups {
		for _, n := range g.Nodes {
			all = append(all, n.Client)
		}
	}
	return all, nil
}

func cityNames(t *zone.Topology) []string {
	var names []string
	for _, c := range t.Cities {
		names = append(names, string(c.Name))
	}
	return names
}

func zoneNames(t *zone.Topology) []string {
	var names []string
	for _, z := range t.Zones() {
		names = append(names, string(z.Name))
	}
	return names
}
