package e2e

import (
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// members are the nodes of the broker group of city a's RZone, and its voters.
var members = []string{"rz-a-1", "rz-a-2", "rz-a-3"}

// newReplicatedCluster is newCluster with three nodes in the group of zone rz-a and
// one router a city.
func newReplicatedCluster(t *testing.T) *cluster {
	t.Helper()
	return drawReplicated(t, "topics:\n  - {name: transfer, route: {shard: {property: userId}}}\nconsumer_groups:\n  - {name: credit, topics: [transfer]}\n")
}

// drawReplicated is newReplicatedCluster with other topics and consumer groups.
func drawReplicated(t *testing.T, topics string) *cluster {
	t.Helper()
	return drawCopies(t, len(members), topics)
}

// drawCopies is drawReplicated with so many of the members.
func drawCopies(t *testing.T, copies int, topics string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*clusterNode{}}
	ports := freePorts(t, 2*5+6*4)
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", p)
	}
	broker := func(name, room string) string {
		n := &clusterNode{name: name, role: "broker", admin: next(), client: next()}
		c.nodes[name] = n
		return fmt.Sprintf("{name: %s, %sclient: %s, peer: %s, gossip: %s, admin: %s}", name, room, n.client, next(), next(), n.admin)
	}
	var b strings.Builder
	b.WriteString("deployment: cluster\nepoch: {term: 1, number: 1}\nshards: {count: 10, by: last-digits, owners: {rz-a: 0-4, rz-b: 5-9}}\ncities:\n")
	for _, city := range []string{"a", "b"} {
		n := &clusterNode{name: "rt-" + city, role: "router", admin: next()}
		c.nodes[n.name] = n
		fmt.Fprintf(&b, "  - name: city-%s\n    routers: [{name: %s, quic: %s, peer: %s, gossip: %s, wan: %s, admin: %s}]\n", city, n.name, next(), next(), next(), next(), n.admin)
		nodes := []string{broker("rz-"+city+"-1", "room: r1, ")}
		if city == "a" && copies > 1 {
			voters := append(slices.Clone(members[:copies]), "cz-a-1")[:3]
			for i, name := range members[1:copies] {
				nodes = append(nodes, broker(name, fmt.Sprintf("room: r%d, ", i+2)))
			}
			fmt.Fprintf(&b, "    coordinator: {driver: raft, voters: [%s]}\n", strings.Join(voters, ", "))
		}
		fmt.Fprintf(&b, "    zones:\n      - {name: rz-%s, kind: RZone, standby: none, groups: [{name: rz-%s-g, nodes: [%s]}]}\n", city, city, strings.Join(nodes, ", "))
		fmt.Fprintf(&b, "      - {name: cz-%s, kind: CZone, groups: [{name: cz-%s-g, nodes: [%s]}]}\n", city, city, broker("cz-"+city+"-1", ""))
	}
	b.WriteString(topics)
	if err := os.WriteFile(c.topology(), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "topology", "validate", c.topology())
	must(t, nil, "pki", "init", "--deployment", "cluster", "--dir", c.pki())
	must(t, nil, "pki", "issue", "--dir", c.pki(), "--topology", c.topology(), "--all")
	return c
}

// leads returns the master of the group and whether every member is in sync, as the
// members themselves say.
func (c *cluster) leads() (master string, whole bool, err error) {
	type status struct {
		Node   string        `json:"node"`
		Member *admin.Member `json:"member"`
	}
	out, err := mqrouter(c.t, []string{"MQROUTER_ADMIN=" + c.nodes["cz-a-1"].admin}, "status", "-o", "json")
	if err != nil {
		return "", false, err
	}
	for _, s := range decode[[]status](c.t, out) {
		if s.Member != nil && s.Member.Role == "master" {
			return s.Node, len(s.Member.InSync) == len(members), nil
		}
	}
	return "", false, nil
}

// wander is hammer by way of whichever of the nodes answers.
func (l *load) wander(ctx context.Context, t *testing.T, endpoints []string, user string) {
	ids, err := rocketmqclient.NewIDs(cryptorand.Reader)
	if err != nil {
		t.Error(err)
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for at := 0; ctx.Err() == nil; at++ {
		producer, err := rocketmqclient.NewProducer(ctx, rocketmqclient.Config{Endpoint: endpoints[at%len(endpoints)], RequestTimeout: 3 * time.Second}, "transfer")
		for err == nil && ctx.Err() == nil {
			m := &rocketmqclient.Message{Topic: "transfer", ID: ids.Next(), Body: []byte("pay"), Properties: map[string]string{"userId": user}}
			_, err = producer.Send(context.WithoutCancel(ctx), m)
			l.mu.Lock()
			if err == nil {
				l.acked[m.ID] = true
			} else {
				l.failed[m.ID] = true
			}
			l.mu.Unlock()
			<-tick.C
		}
		if producer != nil {
			producer.Close()
		}
		<-tick.C
	}
}

// once checks that each message id was seen at one place of the zone's only group.
func (p places) once(t *testing.T) {
	t.Helper()
	for id, where := range p {
		spots := map[string]bool{}
		for w := range where { // the node's name may differ, the place may not
			spots[w[strings.Index(w, "["):]] = true
		}
		if len(spots) != 1 {
			t.Errorf("I2: message %s is at %d places: %v", id, len(spots), where)
		}
	}
}

// TestReplicasTakeOver runs a group of three nodes through rounds of drawn faults
// under load: messages of its own, that leave it for another city and that land in
// it from there. After each fault publishers go on without a hand, and when the node
// is back all three are in sync again. At the end everything that was acknowledged
// was received, and nothing is at two places.
func TestReplicasTakeOver(t *testing.T) {
	rnd := attackRand(t)
	c := newReplicatedCluster(t)
	c.upAll()
	whole := func(what string) (master string) {
		eventually(t, what, 2*time.Minute, func() error {
			m, all, err := c.leads()
			if err == nil && !all {
				err = fmt.Errorf("master %q, and not all in sync", m)
			}
			master = m
			return err
		})
		return master
	}
	whole("three nodes are in sync")
	ctx, stop := context.WithCancel(t.Context())
	here, there := c.clients(members...), c.clients("rz-b-1")
	loads := map[string]*load{}
	for name, to := range map[string]struct {
		endpoints []string
		digit     string
	}{"own": {here, "3"}, "leaving": {here, "7"}, "landing": {there, "2"}} {
		l := &load{publisher: publisher{acked: map[string]bool{}, failed: map[string]bool{}}, stop: stop}
		for i := range 4 {
			at := append(slices.Clone(to.endpoints[i%len(to.endpoints):]), to.endpoints[:i%len(to.endpoints)]...)
			l.wg.Go(func() { l.wander(ctx, t, at, fmt.Sprint(1000+i)+to.digit) })
		}
		loads[name] = l
	}
	t.Cleanup(func() {
		stop()
		for _, l := range loads {
			l.wg.Wait()
		}
	})
	for i := range rounds(5, 200) {
		master := whole("before the next round all are in sync")
		what := c.trouble(rnd, i, master)
		began := time.Now()
		for name, l := range loads {
			from, _ := l.counts()
			eventually(t, fmt.Sprintf("round %d, %s: publishes %s go on", i+1, what, name), 2*time.Minute, func() error {
				if acked, failed := l.counts(); acked < from+20 {
					return fmt.Errorf("%d acknowledged since, %d failed in all", acked-from, failed)
				}
				return nil
			})
		}
		t.Logf("round %d: %s; publishers went on within %.1f s", i+1, what, time.Since(began).Seconds())
		c.restore()
	}
	whole("at the end all are in sync")
	stop()
	for _, l := range loads {
		l.wg.Wait()
	}
	atA, atB, expectA := places{}, places{}, map[string]bool{}
	for _, l := range []*load{loads["own"], loads["landing"]} {
		for id := range l.acked {
			expectA[id] = true
		}
	}
	atA.drain(t, c.nodes["rz-a-2"].client, expectA)
	atB.drain(t, there[0], loads["leaving"].acked)
	atA.once(t)
	atB.once(t)
	for name, l := range loads {
		acked, failed := l.counts()
		t.Logf("%s: %d acknowledged, %d not", name, acked, failed)
	}
}

// trouble does one of the faults to the group and says which.
func (c *cluster) trouble(rnd *rand.Rand, round int, master string) string {
	replica := members[(slices.Index(members, master)+1+rnd.IntN(2))%len(members)]
	n := c.nodes[master]
	switch round % 5 {
	case 0, 3:
		n.running.kill()
		return "kill -9 of the master " + master
	case 1:
		syscall.Kill(n.running.cmd.Process.Pid, syscall.SIGSTOP)
		hold(5 * time.Second) // longer than a lease and an election
		syscall.Kill(n.running.cmd.Process.Pid, syscall.SIGCONT)
		return "the master " + master + " freezes"
	case 2:
		c.nodes[replica].running.kill()
		return "kill -9 of the replica " + replica
	default:
		n.running.stop(c.t, 30*time.Second)
		return "SIGTERM of the master " + master
	}
}

// restore starts the members that do not run.
func (c *cluster) restore() {
	c.t.Helper()
	for _, name := range members {
		select {
		case <-c.nodes[name].running.done:
			c.up(name)
			c.ready(name)
		default:
		}
	}
}

// clients are the addresses for clients of nodes.
func (c *cluster) clients(names ...string) []string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = c.nodes[name].client
	}
	return list
}
