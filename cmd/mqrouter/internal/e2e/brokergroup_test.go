package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// ward is a city with a broker group whose nodes come and go, and a broker that votes.
type ward struct {
	*cluster
	lines map[string]string // of the group's nodes in the topology
	in    []string          // those that the topology has
	epoch int
}

// brokerGroupSeen is a part of what `brokergroup status` prints.
type brokerGroupSeen struct {
	Group  string           `json:"group"`
	Epoch  uint64           `json:"epoch"`
	Master string           `json:"master"`
	Serves bool             `json:"serves"`
	InSync []string         `json:"in_sync"`
	Lost   *admin.GroupLoss `json:"lost"`
	Nodes  []struct {
		Node    string `json:"node"`
		State   string `json:"state"`
		Behind  uint64 `json:"behind"`
		Records *int   `json:"behind_records"`
	} `json:"nodes"`
}

func newWard(t *testing.T) *ward {
	t.Helper()
	w := &ward{cluster: &cluster{t: t, dir: t.TempDir(), nodes: map[string]*clusterNode{}}, lines: map[string]string{}}
	ports := freePorts(t, 4*4)
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", p)
	}
	for i, name := range []string{"cz-a-1", "rz-a-1", "rz-a-2", "rz-a-3"} {
		n := &clusterNode{name: name, role: "broker", admin: next(), client: next()}
		w.nodes[name] = n
		w.lines[name] = fmt.Sprintf("{name: %s, room: r%d, client: %s, peer: %s, gossip: %s, admin: %s}", name, i, n.client, next(), next(), n.admin)
	}
	w.declare("rz-a-1", "rz-a-2", "rz-a-3") // certificates for all
	must(t, nil, "pki", "init", "--deployment", "ward", "--dir", w.pki())
	must(t, nil, "pki", "issue", "--dir", w.pki(), "--topology", w.topology(), "--all")
	w.epoch = 0
	return w
}

// declare gives the group these nodes, under a new epoch.
func (w *ward) declare(nodes ...string) {
	w.t.Helper()
	w.epoch++
	w.in = nodes
	var lines []string
	for _, n := range nodes {
		lines = append(lines, w.lines[n])
	}
	text := fmt.Sprintf(`deployment: ward
epoch: {term: 1, number: %d}
shards: {count: 10, by: last-digits, owners: {rz-a: 0-9}}
cities:
  - name: city-a
    coordinator: {driver: raft, voters: [cz-a-1]}
    zones:
      - {name: rz-a, kind: RZone, standby: none, groups: [{name: rz-a-g, nodes: [%s]}]}
      - {name: cz-a, kind: CZone, groups: [{name: cz-a-g, nodes: [%s]}]}
topics: [{name: transfer, route: {shard: {property: userId}}}]
consumer_groups: [{name: credit, topics: [transfer]}]
`, w.epoch, strings.Join(lines, ", "), w.lines["cz-a-1"])
	next := w.topology() + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(next, w.topology()); err != nil {
		w.t.Fatal(err)
	}
	must(w.t, nil, "topology", "validate", w.topology())
}

// group runs a brokergroup command with the topology in force.
func (w *ward) group(args ...string) (string, error) {
	w.t.Helper()
	env := []string{"MQROUTER_TOPOLOGY=" + w.topology(), "MQROUTER_ADMIN=" + w.nodes["cz-a-1"].admin}
	return mqrouter(w.t, env, append([]string{"brokergroup"}, args...)...)
}

// mustGroup is group for what has to succeed.
func (w *ward) mustGroup(args ...string) string {
	w.t.Helper()
	out, err := w.group(args...)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// refused is group for what has to be refused, in these words.
func (w *ward) refused(words string, args ...string) {
	w.t.Helper()
	out, err := w.group(args...)
	if err == nil || !strings.Contains(err.Error()+out, words) {
		w.t.Errorf("brokergroup %s: %v; want it refused with %q\n%s", strings.Join(args, " "), err, words, out)
	}
}

// whole waits until all nodes of the group are in sync.
func (w *ward) whole() {
	w.t.Helper()
	w.mustGroup("check", "rz-a-g", "--in-sync", fmt.Sprint(len(w.in)), "--wait", "2m")
}

// seen is what the group looks like now.
func (w *ward) seen() brokerGroupSeen {
	w.t.Helper()
	all := decode[[]brokerGroupSeen](w.t, w.mustGroup("status", "rz-a-g", "-o", "json"))
	if len(all) != 1 || all[0].Group != "rz-a-g" {
		w.t.Fatalf("status has %+v", all)
	}
	return all[0]
}

// aside makes sure that a node is not the master, and that the group can do without it.
func (w *ward) aside(name string) {
	w.t.Helper()
	if w.seen().Master == name {
		w.refused("is the master", "check", "rz-a-g", "--without", name)
		w.ordered("switch", "rz-a-g", "--to", w.in[(slices.Index(w.in, name)+1)%len(w.in)], "--reason", name+" is to be stopped")
	}
	w.mustGroup("check", "rz-a-g", "--without", name, "--wait", "1m")
}

// starved are the words in which an order is refused since a node, or the machine, was
// too slow at that moment: an operator gives it again.
var starved = []string{"does not answer", "no master that answers", "ask again", "fell behind", "is not in sync", "is sync: "}

// ordered is mustGroup for an order, given again while it is refused in such words. One
// that was carried out though the answer said otherwise is done.
func (w *ward) ordered(args ...string) (out string) {
	w.t.Helper()
	eventually(w.t, "brokergroup "+strings.Join(args, " "), time.Minute, func() error {
		var err error
		out, err = w.group(args...)
		switch {
		case err == nil || out == "" && strings.Contains(err.Error(), "is the master already"):
			return nil
		case !slices.ContainsFunc(starved, func(words string) bool { return strings.Contains(err.Error(), words) }):
			w.t.Fatalf("%v\n%s", err, out)
		}
		w.t.Logf("refused for the moment: %v", err)
		return err
	})
	return out
}

// hammered publishes by way of all nodes until stopped.
func (w *ward) hammered() *load {
	ctx, stop := context.WithCancel(w.t.Context())
	l := &load{publisher: publisher{acked: map[string]bool{}, failed: map[string]bool{}}, stop: stop}
	names := []string{"rz-a-1", "rz-a-2", "rz-a-3"}
	for i := range 4 {
		at := w.clients(append(slices.Clone(names[i%3:]), names[:i%3]...)...)
		l.wg.Go(func() { l.wander(ctx, w.t, at, fmt.Sprint(1000+i)+"3") })
	}
	w.t.Cleanup(func() {
		stop()
		l.wg.Wait()
	})
	return l
}

// goesOn waits until publishes are acknowledged again.
func (w *ward) goesOn(l *load, after string) {
	w.t.Helper()
	began := time.Now()
	from, _ := l.counts()
	eventually(w.t, "publishes go on after "+after, time.Minute, func() error {
		if acked, failed := l.counts(); acked < from+20 {
			return fmt.Errorf("%d acknowledged since, %d failed in all", acked-from, failed)
		}
		return nil
	})
	w.t.Logf("%s; 20 publishes more within %.1f s", after, time.Since(began).Seconds())
}

// TestABrokerGroupIsChangedUnderLoad walks through the runbook's procedures while
// publishers go on: a third node is added, the master is handed over, all nodes are
// upgraded one by one, a disk is replaced, a node is removed. Every acknowledged message
// is received in the end, and is at one place.
func TestABrokerGroupIsChangedUnderLoad(t *testing.T) {
	w := newWard(t)
	w.declare("rz-a-1", "rz-a-2")
	for _, n := range []string{"cz-a-1", "rz-a-1", "rz-a-2"} {
		w.up(n)
	}
	w.whole()
	l := w.hammered()
	w.goesOn(l, "the beginning")
	for range rounds(1, 20) {
		w.declare("rz-a-1", "rz-a-2", "rz-a-3")
		w.up("rz-a-3")
		w.whole()
		w.goesOn(l, "a third node")

		w.refused("not a node of broker group", "switch", "rz-a-g", "--to", "cz-a-1")
		w.refused("is the master already", "switch", "rz-a-g", "--to", w.seen().Master)
		for _, n := range w.in {
			w.aside(n)
			w.nodes[n].running.stop(t, 30*time.Second)
			w.refused("no answer", "switch", "rz-a-g", "--to", n)
			w.goesOn(l, "the stop of "+n)
			w.up(n)
			w.whole()
		}

		w.aside("rz-a-2")
		w.nodes["rz-a-2"].running.kill()
		if err := os.RemoveAll(filepath.Join(w.dir, "data", "rz-a-2")); err != nil {
			t.Fatal(err)
		}
		w.up("rz-a-2")
		w.whole()
		w.goesOn(l, "a new disk of rz-a-2")

		w.aside("rz-a-3")
		w.nodes["rz-a-3"].running.stop(t, 30*time.Second)
		w.mustGroup("check", "rz-a-g", "--without", "rz-a-3", "--wait", "1m")
		w.declare("rz-a-1", "rz-a-2")
		w.whole()
		w.goesOn(l, "the removal of rz-a-3")
		if err := os.RemoveAll(filepath.Join(w.dir, "data", "rz-a-3")); err != nil {
			t.Fatal(err)
		}
	}
	l.stop()
	l.wg.Wait()
	at := places{}
	at.drain(t, w.nodes["rz-a-1"].client, l.acked)
	at.once(t)
	acked, failed := l.counts()
	t.Logf("%d acknowledged, %d not", acked, failed)
}

// TestAFailoverByOrderTellsWhatIsLost: with the only copy gone nothing is promoted
// without --allow-loss; the preview says how much is given up. The node that had it
// keeps it as a tail when it comes back, and follows.
func TestAFailoverByOrderTellsWhatIsLost(t *testing.T) {
	w := newWard(t)
	w.declare("rz-a-1", "rz-a-2")
	for _, n := range []string{"cz-a-1", "rz-a-1", "rz-a-2"} {
		w.up(n)
	}
	w.whole()
	publish := func(node, text string) {
		eventually(t, "a publish by way of "+node, time.Minute, func() error { // its route may still name a dead node
			_, err := mqrouter(t, nil, "publish", "--endpoint", w.nodes[node].client, "--topic", "transfer", "--property", "userId=1003", text)
			return err
		})
	}
	if w.seen().Master != "rz-a-1" {
		w.ordered("switch", "rz-a-g", "--to", "rz-a-1")
	}
	publish("rz-a-1", "both have this")
	out := w.ordered("failover", "rz-a-g", "--to", "rz-a-2", "--reason", "the master is to be looked at", "--yes")
	if !strings.Contains(out, "rz-a-2 is master") || strings.Contains(out, "given up") {
		t.Errorf("a fail-over to a node in sync says %q", out)
	}
	w.whole()
	w.ordered("switch", "rz-a-g", "--to", "rz-a-1")
	w.whole()
	w.nodes["rz-a-2"].running.kill()
	eventually(t, "rz-a-2 is out of the set", time.Minute, func() error {
		if s := w.seen(); len(s.InSync) != 1 {
			return fmt.Errorf("in sync are %v", s.InSync)
		}
		return nil
	})
	for i := range 20 {
		publish("rz-a-1", "only rz-a-1 has this")
		if i == 14 { // with the one that both have
			w.consumed("rz-a-1", 16)
		}
	}
	w.refused("no answer", "failover", "rz-a-g", "--to", "rz-a-2", "--allow-loss", "--reason", "too early")
	hold(3 * time.Second) // a master that is alone in sync tells what it has committed twice a second
	w.nodes["rz-a-1"].running.kill()
	w.up("rz-a-2")
	eventually(t, "rz-a-2 answers and waits", time.Minute, func() error {
		s := w.seen()
		if s.Master != "" || s.Nodes[1].State != "replica" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	w.refused("bring one of them back, or give --allow-loss", "failover", "rz-a-g", "--reason", "ticket 42")
	if out := w.mustGroup("failover", "rz-a-g", "--allow-loss", "--preview"); !strings.Contains(out, "given up: from position") || !strings.Contains(out, "rz-a-2 would take over") {
		t.Errorf("the preview says %q", out)
	}
	w.refused("give --yes", "failover", "rz-a-g", "--allow-loss", "--reason", "ticket 42")
	if s := w.seen(); s.Master != "" {
		t.Fatalf("%s is master, and nobody said yes", s.Master)
	}
	if out := w.ordered("failover", "rz-a-g", "--allow-loss", "--reason", "ticket 42", "--yes"); !strings.Contains(out, "given up: what was acknowledged from") {
		t.Errorf("the fail-over says %q", out)
	}
	if s := w.seen(); s.Lost == nil || s.Lost.Known <= s.Lost.From {
		t.Errorf("status says that %+v was lost", s.Lost)
	}
	if text := w.nodes["rz-a-2"].running.output(); !strings.Contains(text, "ticket 42") {
		t.Error("the log of the node that took the order does not say why")
	}
	publish("rz-a-2", "after")
	w.up("rz-a-1")
	w.whole() // what it alone had is saved, and its log a copy of the master's
	w.tailOffered(t, w.tailTold(t, 20))
}
