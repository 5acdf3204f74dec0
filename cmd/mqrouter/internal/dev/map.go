package dev

import (
	"cmp"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mqrouter/mqrouter/zone"
)

// printMap draws the deployment and says what to try next.
func (d *deployment) printMap() {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := tabwriter.NewWriter(d.o.Out, 0, 0, 2, ' ', 0)
	for _, c := range d.t.Cities {
		if !d.runs(func(n *zone.NodeInfo) bool { return n.City == c }) {
			continue
		}
		routers := strings.Join(addrs(d.some(c.Routers), func(n *zone.NodeInfo) string { return n.QUIC }), " ")
		fmt.Fprintf(w, "\n%s\trouters\t%s\n", c.Name, cmp.Or(routers, "none"))
		for _, z := range c.Zones {
			var clients []string
			for _, g := range z.Groups {
				clients = append(clients, addrs(d.some(g.Nodes), func(n *zone.NodeInfo) string { return n.Client })...)
			}
			if len(clients) == 0 {
				continue
			}
			fmt.Fprintf(w, "  %s\t%s\tclients %s\n", z.Name, kindWord(z), strings.Join(clients, " "))
		}
		if len(d.some(c.Caches)) > 0 {
			fmt.Fprintf(w, "  cache\t%s\t\n", d.cacheWord(c))
		}
	}
	w.Flush() //nolint:errcheck // the terminal went away: nothing is left to tell
	fmt.Fprintf(d.o.Out, `
ready. RocketMQ 5 clients connect to any address above. Try in another terminal:
%s
`, d.adminHint())
	for _, args := range d.tries() {
		fmt.Fprintf(d.o.Out, "  %s %s\n", d.o.Program, args)
	}
	if d.o.Processes {
		fmt.Fprint(d.o.Out, d.killHint())
	}
	fmt.Fprint(d.o.Out, "\nCtrl-C stops it.\n")
}

// runs reports whether a node that fits is started.
func (d *deployment) runs(fits func(*zone.NodeInfo) bool) bool {
	return slices.ContainsFunc(d.nodes, fits)
}

// some returns those of the nodes that are started.
func (d *deployment) some(nodes []*zone.NodeInfo) []*zone.NodeInfo {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *zone.NodeInfo) bool { return !slices.Contains(d.nodes, n) })
}

// tries are three commands to try: the tour's, or for another topology than a
// sample those that fit any.
func (d *deployment) tries() []string {
	if d.o.Replicas > 0 && len(d.replicated()) > 0 {
		return []string{
			"brokergroup status",
			"bench publish --zone rz01 --topic orders --publishers 8 --batch 1 --rate 200 --duration 15s",
			`publish --zone rz01 --topic transfer --property userId=1065 "pay 10"`,
		}
	}
	for _, name := range []zone.Zone{"rz01", "rz04"} {
		if !d.runs(func(n *zone.NodeInfo) bool { return n.Zone != nil && n.Zone.Name == name }) {
			return []string{"status", "topology show", "topic list"}
		}
	}
	return []string{
		`publish --zone rz01 --topic transfer --property userId=1065 "pay 10"`,
		"consume --zone rz04 --topic transfer --group transfer-credit --count 1",
		"broadcast set --zone rz01 --key member:1001 --version 1 --value gold",
	}
}

// killHint says where pids and logs of processes are, and how to use a pid.
func (d *deployment) killHint() string {
	victim := d.nodes[len(d.nodes)-1].Name
	then := "it stays dead until you start it"
	if d.o.Restart > 0 {
		then = fmt.Sprintf("it is started again after %v", d.o.Restart)
	}
	hint := fmt.Sprintf("\nEach node is a process; its pid is in %s, its log in %s:\n  kill -9 $(cat %s)   # %s\n",
		filepath.Dir(d.f.pid(victim)), filepath.Dir(d.f.nodeLog(victim)), d.f.pid(victim), then)
	for _, g := range d.replicated() {
		hint += fmt.Sprintf("  kill -9 $(cat %s)   # whoever is master of %s: another node takes over\n", d.f.master(g.Name), g.Name)
	}
	return hint
}

// adminHint is what a shell needs when the admin address is not the default.
func (d *deployment) adminHint() string {
	for _, n := range d.nodes {
		switch n.Admin {
		case "":
			continue
		case "127.0.0.1:5101":
			return ""
		}
		return fmt.Sprintf("\n  export MQROUTER_ADMIN=%s\n", n.Admin)
	}
	return "" // no node can be asked: the topology has no admin address
}

func addrs(nodes []*zone.NodeInfo, of func(*zone.NodeInfo) string) []string {
	var all []string
	for _, n := range nodes {
		if a := of(n); a != "" {
			all = append(all, a)
		}
	}
	return all
}

func kindWord(z *zone.ZoneInfo) string {
	if z.Kind == zone.GZone && !z.Active {
		return z.Kind.String() + " (standby)"
	}
	return z.Kind.String()
}

func (d *deployment) cacheWord(c *zone.CityInfo) string {
	addr := d.o.Redis[string(c.Name)]
	if addr == "" {
		addr = d.o.Redis[""]
	}
	if addr == "" {
		return "in-process"
	}
	if host, port, err := net.SplitHostPort(addr); err == nil {
		return "Redis at " + net.JoinHostPort(host, port)
	}
	return "Redis at " + addr
}
