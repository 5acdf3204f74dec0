package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cluster is a deployment of two cities, each with two routers, an RZone and a
// CZone, in which every node is a process of its own.
type cluster struct {
	t     *testing.T
	dir   string
	nodes map[string]*clusterNode
	moved int                           // routers that were given new addresses
	args  func(n *clusterNode) []string // more arguments of a node; nil: none

	program string // empty: binary
}

type clusterNode struct {
	name, role, admin, client string
	running                   *process
}

// newCluster writes topology and certificates; nothing runs yet.
func newCluster(t *testing.T) *cluster { return drawCluster(t, false) }

// drawCluster is newCluster; with caches each city has a cache reader of a broadcast topic.
func drawCluster(t *testing.T, caches bool) *cluster {
	c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*clusterNode{}}
	if err := os.WriteFile(c.topology(), []byte(c.draw(caches)), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "topology", "validate", c.topology())
	must(t, nil, "pki", "init", "--deployment", "cluster", "--dir", c.pki())
	must(t, nil, "pki", "issue", "--dir", c.pki(), "--topology", c.topology(), "--all")
	return c
}

func (c *cluster) topology() string { return filepath.Join(c.dir, "topology.yaml") }
func (c *cluster) pki() string      { return filepath.Join(c.dir, "pki") }

// draw returns the topology: users ending in 0-4 live in city a, 5-9 in b.
func (c *cluster) draw(caches bool) string {
	ports := freePorts(c.t, 2*(2*5+2*4+1))
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", p)
	}
	var b strings.Builder
	b.WriteString("deployment: cluster\nepoch: {term: 1, number: 1}\nshards: {count: 10, by: last-digits, owners: {rz-a: 0-4, rz-b: 5-9}}\ncities:\n")
	for _, city := range []string{"a", "b"} {
		fmt.Fprintf(&b, "  - name: city-%s\n    routers:\n", city)
		for i := range 2 {
			n := &clusterNode{name: fmt.Sprintf("rt-%s%d", city, i+1), role: "router", admin: next()}
			c.nodes[n.name] = n
			fmt.Fprintf(&b, "      - {name: %s, quic: %s, peer: %s, gossip: %s, wan: %s, admin: %s}\n", n.name, next(), next(), next(), next(), n.admin)
		}
		b.WriteString("    zones:\n")
		for _, kind := range []string{"RZone", "CZone"} {
			z := strings.ToLower(kind[:1]) + "z-" + city
			n := &clusterNode{name: z + "-1", role: "broker", admin: next(), client: next()}
			c.nodes[n.name] = n
			fmt.Fprintf(&b, "      - {name: %s, kind: %s, standby: none, groups: [{name: %s-g, nodes: [{name: %s, client: %s, peer: %s, gossip: %s, admin: %s}]}]}\n",
				z, kind, z, n.name, n.client, next(), next(), n.admin)
		}
		if !caches {
			continue
		}
		n := &clusterNode{name: "cache-" + city, role: "cachesync", admin: next()}
		c.nodes[n.name] = n
		fmt.Fprintf(&b, "    caches: [{name: %s, admin: %s}]\n", n.name, n.admin)
	}
	topics, groups := "topics:\n  - {name: transfer, route: {shard: {property: userId}}}\n", "consumer_groups:\n  - {name: credit, topics: [transfer]}\n"
	if caches {
		topics += "  - {name: member, route: {broadcast: city}}\n"
		groups += "  - {name: watch, topics: [member]}\n  - {name: keep, topics: [member], cache: true}\n"
	}
	b.WriteString(topics + groups)
	return strings.ReplaceAll(b.String(), "kind: CZone, standby: none,", "kind: CZone,")
}

// up starts a node, or starts it again.
func (c *cluster) up(name string) {
	c.t.Helper()
	n := c.nodes[name]
	args := []string{n.role, "--name", name, "--topology", c.topology(), "--pki", c.pki(), "--grace", "5s"}
	if n.role == "broker" {
		args = append(args, "--data-dir", filepath.Join(c.dir, "data", name))
	}
	if n.role == "cachesync" {
		args = append(args, "--group", "keep")
	}
	if c.args != nil {
		args = append(args, c.args(n)...)
	}
	program := binary
	if c.program != "" {
		program = c.program
	}
	n.running = start(c.t, name, nil, program, args...)
}

// ready waits until a node's readiness page says so.
func (c *cluster) ready(name string) {
	c.t.Helper()
	n := c.nodes[name]
	eventually(c.t, name+" is ready", time.Minute, func() error {
		select {
		case <-n.running.done:
			c.t.Fatalf("%s ended: %v", name, n.running.err)
		default:
		}
		resp, err := http.Get("http://" + n.admin + "/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
}

func (c *cluster) upAll() {
	for name := range c.nodes {
		c.up(name)
	}
	for name := range c.nodes {
		c.ready(name)
	}
}

// kill9 kills a node the way a power switch does, and starts it again.
func (c *cluster) kill9(name string) {
	c.t.Helper()
	c.nodes[name].running.kill()
	c.up(name)
	c.ready(name)
}
