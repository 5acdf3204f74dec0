package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/internal/freeport"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/consul"
	"github.com/mqrouter/mqrouter/replication/coordinator/raft"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/zone"
)

// coordinated is a city with three coordinator nodes and a broker group of two.
type coordinated struct {
	dir, file string
	text      string // of the topology
	top       *zone.Topology
}

// freePorts returns ports of the loopback that are the test's until it ends.
func freePorts(t *testing.T, n int) (ports []any) {
	t.Helper()
	for _, p := range freeport.Take(t, n) {
		ports = append(ports, p)
	}
	return ports
}

func newCoordinated(t *testing.T) *coordinated {
	t.Helper()
	ports := freePorts(t, 22)
	dir := t.TempDir()
	c := &coordinated{dir: dir, file: filepath.Join(dir, "topology.yaml")}
	text := fmt.Sprintf(`deployment: test
epoch: {term: 1, number: 1}
unknown_groups: newest
shards: {count: 10, by: last-digits, owners: {z: 0-9}}
cities:
  - name: c
    routers: [{name: r, quic: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d", wan: "127.0.0.1:%d"}]
    coordinator:
      driver: raft
      lease: 10s
      voters: [co-1, co-2, co-3]
      nodes:
        - {name: co-1, peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
        - {name: co-2, peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
        - {name: co-3, peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d", admin: "127.0.0.1:%d"}
    zones:
      - name: z
        kind: RZone
        standby: {remote: none}
        groups:
          - name: g
            nodes:
              - {name: g-1, client: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d"}
              - {name: g-2, client: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d"}
      - name: cz
        kind: CZone
        groups: [{name: cg, nodes: [{name: cg-1, client: "127.0.0.1:%d", peer: "127.0.0.1:%d", gossip: "127.0.0.1:%d"}]}]
topics: []
consumer_groups: []
`, ports...)
	if err := os.WriteFile(c.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.text, c.top = text, parse(t, []byte(text))
	if err := pki.Init("test", dir, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.Issue(dir, dir, c.top, pki.Nodes(c.top), peer.Request{Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	return c
}

// start runs a coordinator node until the test ends or stop is called.
func (c *coordinated) start(t *testing.T, name string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		done <- Coordinator(ctx, config.Node{Name: name, Topology: c.file, PKI: c.dir, DataDir: filepath.Join(c.dir, "data", name), Grace: 5 * time.Second},
			Options{Version: "test", Logger: slog.New(slog.DiscardHandler), Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("%s: %v", name, err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// client is the coordinator as the node has it, with its certificate.
func (c *coordinated) client(t *testing.T, name zone.Node) *raft.Client {
	t.Helper()
	store, err := peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(c.dir, string(name))})
	if err != nil {
		t.Fatal(err)
	}
	current := func() *zone.Topology { return c.top }
	secured := &peer.TLS{Store: store, Authorize: peer.AuthorizeBy(current, zone.RoleCoordinator)}
	client := raft.NewClient(raft.ClientOptions{Voters: func() []zone.Node { return []zone.Node{"co-1", "co-2", "co-3"} },
		Dial: func(ctx context.Context, to zone.Node, protocol string) (net.Conn, error) {
			n := c.top.FindNode(to)
			return peer.DialOther(ctx, secured, n.Peer, peer.IdentityFor("test", n), protocol, nil)
		}})
	t.Cleanup(client.Close)
	return client
}

// master waits for the group's master to be n, with the members telling where they
// stand, and returns its term.
func (c *coordinated) master(t *testing.T, n zone.Node, members map[zone.Node]*raft.Client) coordinator.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	seen := map[zone.Node]coordinator.Term{}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		for name, m := range members {
			s := coordinator.Standing{Node: name, Fit: true, Seen: seen[name].Version, SeenEpoch: seen[name].Epoch}
			if seen[name].Master == name {
				s.Leads = seen[name].Epoch
			}
			term, lease, err := m.Renew(ctx, "g", s)
			if err == nil {
				seen[name] = term
			}
			if err == nil && name == n && lease.Epoch == term.Epoch && lease.Duration > 0 {
				return term
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s does not become master: %+v", n, seen)
		}
	}
}

func TestCoordinatorNodesElectAMasterAndOutliveOneOfThem(t *testing.T) {
	t.Parallel()
	c := newCoordinated(t)
	stops := map[string]func(){}
	for _, name := range []string{"co-1", "co-2", "co-3"} {
		stops[name] = c.start(t, name)
	}
	members := map[zone.Node]*raft.Client{"g-1": c.client(t, "g-1"), "g-2": c.client(t, "g-2")}
	term := c.master(t, "g-1", members)
	if term.Epoch != 1 || len(term.InSync) != 1 {
		t.Errorf("first term %+v", term)
	}
	checkMetrics(t, c)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if _, _, err := members["g-2"].Renew(ctx, "g", coordinator.Standing{Node: "g-1", Leads: 1}); !errors.Is(err, coordinator.KindRefused) {
		t.Errorf("g-2 renews as g-1: %v", err)
	}
	if _, err := c.client(t, "r").Terms(ctx); !errors.Is(err, coordinator.KindNoQuorum) {
		t.Errorf("a router asks the coordinator: %v; want no way to it", err)
	}
	stops[string(members["g-1"].Leader())]()
	if again := c.master(t, "g-1", members); again.Epoch < term.Epoch || again.Lineage == 0 {
		t.Errorf("term %+v after the coordinator's leader is gone; was %+v", again, term)
	}
}

// TestEveryLeaseOfATopologyIsOneThatACoordinatorTakes, from the shortest to the longest
// that a topology may have.
func TestEveryLeaseOfATopologyIsOneThatACoordinatorTakes(t *testing.T) {
	for _, lease := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 10 * time.Second, 23 * time.Second, 30 * time.Second} {
		for name, base := range map[string]coordinator.Timing{"raft": {}, "consul": consul.DefaultTiming()} {
			d := scaled(base, lease)
			if err := d.Validate(); err != nil || d.Lease != lease || d.Margin <= 0 || d.Settle <= 0 || d.Renew*3 > lease {
				t.Errorf("%s, lease %s: %+v, %v", name, lease, d, err)
			}
		}
	}
}

// checkMetrics finds on the voters' pages what alerts and dashboard ask of them.
func checkMetrics(t *testing.T, c *coordinated) {
	t.Helper()
	rules, err := os.ReadFile("../../../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, name := range regexp.MustCompile(`mqrouter_coordinator_[a-z_]+`).FindAllString(string(rules), -1) {
		wanted[name] = true
	}
	if len(wanted) < 3 {
		t.Fatalf("alerts ask for %v; is the expression right?", wanted)
	}
	var pages strings.Builder
	for _, n := range c.top.FindCity("c").CoordinatorNodes() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Admin+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(&pages, resp.Body); err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name := range wanted {
		if !regexp.MustCompile(`(?m)^` + name + `[ {]`).MatchString(pages.String()) {
			t.Errorf("no voter exports %s", name)
		}
	}
}
