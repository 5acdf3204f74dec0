package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// smallDisk is the broker whose data folder is a small file system, when this
// user may mount one.
const smallDisk = "rz03-a-1"

// ground is the sample deployment as processes, every door behind a relay.
type ground struct {
	*deployment
	t       *testing.T
	top     *zone.Topology
	net     *network
	mounted bool // smallDisk is one
}

// startGround runs `mqrouter dev --processes` until the test ends.
func startGround(t *testing.T, args ...string) *ground {
	t.Helper()
	return startGroundOf(t, string(sample.YAML), args...)
}

// startGroundOf is startGround with another topology of the sample's nodes.
func startGroundOf(t *testing.T, yaml string, args ...string) *ground {
	t.Helper()
	d := &deployment{dir: filepath.Join(t.TempDir(), "dev"), offset: offsetFor(t)}
	text, net := relayTopology(t, yaml, d.offset)
	begin := filepath.Join(t.TempDir(), "begin.yaml")
	if err := os.WriteFile(begin, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	top, err := zone.Parse([]byte(text), begin)
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{deployment: d, t: t, top: top, net: net}
	g.mounted = mountSmall(t, filepath.Join(d.dir, "nodes", smallDisk))
	d.process = start(t, "mqrouter dev --processes", nil, binary,
		append([]string{"dev", "--processes", "--restart", "200ms", "--dir", d.dir, "--topology", begin}, args...)...)
	d.await(t, "Ctrl-C stops it", 2*time.Minute)
	return g
}

// mountSmall makes a folder a file system of its own; false when it may not.
func mountSmall(t *testing.T, dir string) bool {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=160m"); err != nil {
		t.Logf("no small file system, a full disk is left out: %v", err)
		return false
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return true
}

// names returns the nodes of roles, all of them without any.
func (g *ground) names(roles ...zone.Role) []string {
	var all []string
	for _, n := range pki.Nodes(g.top) {
		if len(roles) == 0 || slices.Contains(roles, n.Role) {
			all = append(all, string(n.Name))
		}
	}
	return all
}

// routers returns those of the cities.
func (g *ground) routers(cities ...string) []string {
	var all []string
	for _, n := range pki.Nodes(g.top) {
		if n.Role == zone.RoleRouter && slices.Contains(cities, string(n.City.Name)) {
			all = append(all, string(n.Name))
		}
	}
	return all
}

// doors are doors of nodes, as the network names them.
func doors(nodes []string, which ...string) []string {
	var all []string
	for _, n := range nodes {
		for _, w := range which {
			all = append(all, n+" "+w)
		}
	}
	return all
}

// client is the client address of a zone's first broker.
func (g *ground) client(zoneName string) string {
	return g.top.FindZone(zone.Zone(zoneName)).Groups[0].Nodes[0].Client
}

func (g *ground) admin(node string) string { return g.top.FindNode(zone.Node(node)).Admin }

// signal sends a signal to nodes that run; one that is being started is waited for.
func (g *ground) signal(sig syscall.Signal, nodes ...string) {
	g.t.Helper()
	for _, n := range nodes {
		eventually(g.t, n+" runs", time.Minute, func() error {
			if pid := g.pid(n); pid > 0 && syscall.Kill(pid, sig) == nil {
				return nil
			}
			return fmt.Errorf("it does not")
		})
	}
}

// whole is nil when every node is ready.
func (g *ground) whole() error {
	for _, n := range g.names() {
		resp, err := http.Get("http://" + g.admin(n) + "/readyz")
		if err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: status %d", n, resp.StatusCode)
		}
	}
	return nil
}

// sane looks for what no node may ever write into its log.
func (g *ground) sane() {
	g.t.Helper()
	for _, n := range g.names() {
		text := readFile(g.t, filepath.Join(g.dir, "logs", n+".log"))
		for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
			if i := strings.Index(text, bad); i >= 0 {
				g.t.Errorf("%s: %.4000s", n, text[i:])
			}
		}
	}
}

// fault is something that happens to a deployment and is over when do returns.
type fault struct {
	name string
	do   func(g *ground, l *ledger)
}

// deck is one fault of each kind with drawn victims, shuffled: the same draws
// give the same faults.
func deck(g *ground, rnd *rand.Rand) []fault {
	some := func(from []string, most int) []string {
		from = slices.Clone(from)
		rnd.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
		return from[:1+rnd.IntN(most)]
	}
	kill := func(what string, nodes []string) fault {
		return fault{what + ": SIGKILL of " + strings.Join(nodes, " "), func(g *ground, l *ledger) {
			end := l.flood(g.client("rz02"), 300, func(i int) letter {
				to := i % len(zoneOf)
				return letter{topic: "transfer", properties: map[string]string{"userId": fmt.Sprint(1007 + 20*to)}, homes: []string{zoneOf[to]}}
			})
			defer end()
			g.signal(syscall.SIGKILL, nodes...)
		}}
	}
	brokers, routers := g.names(zone.RoleBroker), g.names(zone.RoleRouter)
	city := func() string { return string(g.top.Cities[rnd.IntN(len(g.top.Cities))].Name) }
	pair := func() (a, b []string, names string) {
		i := rnd.IntN(len(g.top.Cities))
		from, to := string(g.top.Cities[i].Name), string(g.top.Cities[(i+1+rnd.IntN(2))%3].Name)
		return g.routers(from), g.routers(to), from + " and " + to
	}
	lone := some(brokers, 1)[0]
	cut := time.Duration(rounds(12, 30)) * time.Second // longer than links and sessions wait
	a1, b1, pair1 := pair()
	a2, b2, pair2 := pair()
	inCity := some([]string{"rz02-a-1", "rz03-a-1", "rz04-a-1", "rz05-a-1"}, 1)
	towards := g.routers(city())
	all := []fault{
		kill("brokers and routers", append(some(brokers, 3), some(routers, 2)...)),
		kill("cache readers", some(g.names(zone.RoleCacheSync), 3)),
		kill("all at once", g.names()),
		kill("all routers, whose gossip begins anew", routers),
		{"SIGKILL of " + lone + ", and again as soon as it starts", func(g *ground, _ *ledger) {
			g.signal(syscall.SIGKILL, lone)
			g.signal(syscall.SIGKILL, lone)
		}},
		freeze(some(append(slices.Clone(brokers), routers...), 1)),
		fullDisk(),
		{fmt.Sprintf("no datagram between %s for %v", pair1, cut), func(g *ground, _ *ledger) {
			g.net.part(a1, b1)
			hold(cut)
			g.net.heal()
		}},
		{fmt.Sprintf("no datagram between %s, one way, for %v", pair2, cut), func(g *ground, _ *ledger) {
			g.net.lose(a2, b2)
			hold(cut)
			g.net.heal()
		}},
		{fmt.Sprintf("nothing comes from %s, nothing reaches %s, for %v", inCity, towards, cut), func(g *ground, _ *ledger) {
			g.net.cut(cutOut, doors(inCity, "peer", "gossip")...)
			g.net.cut(cutIn, doors(towards, "peer")...)
			hold(cut)
			g.net.heal()
		}},
	}
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// frozen is how long a node is stopped: longer than links and sessions wait.
const frozen = 10 * time.Second

func freeze(nodes []string) fault {
	return fault{fmt.Sprintf("SIGSTOP of %s for %v", strings.Join(nodes, " "), frozen), func(g *ground, _ *ledger) {
		g.signal(syscall.SIGSTOP, nodes...)
		hold(frozen)
		g.signal(syscall.SIGCONT, nodes...)
	}}
}

// fullDisk fills the small disk until its broker refuses publishes, and gives the
// space back when the others have gone on.
func fullDisk() fault {
	return fault{"a full disk at " + smallDisk, func(g *ground, l *ledger) {
		if !g.mounted {
			g.t.Log("left out: no small file system")
			return
		}
		filler := filepath.Join(g.dir, "nodes", smallDisk, "filler")
		defer os.Remove(filler)
		deadline := time.Now().Add(time.Minute)
		l.burst(g.client("rz03"), letter{topic: "orders", homes: []string{"rz03"}, size: 64 << 10}, func() bool {
			fill(g.t, filler) // the log gets as far as what it has reserved
			if time.Now().After(deadline) {
				g.t.Fatalf("%s stores on a full disk", smallDisk)
			}
			return httpCode(g.t, g.admin(smallDisk), "/readyz/publish") == http.StatusServiceUnavailable
		})
		m := l.mark()
		eventually(g.t, "others go on", time.Minute, func() error { return l.goesOn(m, 20, publishersAt("rz03")...) })
	}}
}
