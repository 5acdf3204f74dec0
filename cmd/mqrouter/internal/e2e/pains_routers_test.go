package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// metric sums the series of a metric on a node's page that hold every text.
func (c *cluster) metric(node, name string, texts ...string) (float64, error) {
	return metricAt(c.nodes[node].admin, name, texts...)
}

func metricAt(admin, name string, texts ...string) (sum float64, err error) {
	page, err := httpGet("http://" + admin + "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(page) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); !ok || bare != name {
			continue
		}
		if slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(series, text) }) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// mustMetric is metric of a node that answers.
func (c *cluster) mustMetric(node, name string, texts ...string) float64 {
	c.t.Helper()
	v, err := c.metric(node, name, texts...)
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}

func (c *cluster) status(node string) (admin.Status, error) {
	var s admin.Status
	page, err := httpGet("http://" + c.nodes[node].admin + "/v1/status")
	if err == nil {
		err = json.Unmarshal([]byte(page), &s)
	}
	return s, err
}

// members waits until a pool has so many living members, as each node sees it.
func (c *cluster) members(pool string, n int, nodes ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%v see %d members of %s", nodes, n, pool), 2*time.Minute, func() error {
		for _, node := range nodes {
			if got, err := c.metric(node, "mqrouter_gossip_members", `pool="`+pool+`"`); err != nil || int(got) != n {
				return fmt.Errorf("%s sees %v: %w", node, got, err)
			}
		}
		return nil
	})
}

// crossing publishes from city a to city b, to be checked by what clients see.
func (c *cluster) crossing(pace time.Duration) *ledger {
	l := newLedger(c.t)
	l.publish("a to b", c.nodes["rz-a-1"].client, pace, func(n int) letter {
		user := fmt.Sprint(1007 + 10*(n%3))
		return letter{topic: "transfer", properties: map[string]string{"userId": user}, homes: []string{"rz-b"}, stream: user}
	})
	l.consume("rz-b", c.nodes["rz-b-1"].client, "credit", "transfer")
	return l
}

// going waits until the publishers have n more acknowledgements and all that was
// acknowledged before has arrived.
func (l *ledger) going(n int) {
	l.t.Helper()
	m := l.mark()
	eventually(l.t, "publishers go on and everything arrives", 3*time.Minute, func() error {
		if err := l.goesOn(m, n); err != nil {
			return err
		}
		return l.arrived(m)
	})
}

// done ends the publishers and judges.
func (l *ledger) done() {
	l.t.Helper()
	l.endPublishing()

	m := l.mark()
	eventually(l.t, "everything arrives", 3*time.Minute, func() error { return l.arrived(m) })
	if err := l.verdict(); err != nil {
		l.t.Error(err)
	}
	l.t.Log(l.sums())
}

// newEpoch rewrites the topology file under a higher epoch.
func (c *cluster) newEpoch(number int, edit func(text string) string) {
	c.t.Helper()
	text := edit(readFile(c.t, c.topology()))
	text = strings.Replace(text, fmt.Sprintf("number: %d}", number-1), fmt.Sprintf("number: %d}", number), 1)
	next := c.topology() + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(next, c.topology()); err != nil {
		c.t.Fatal(err)
	}
}

// moveRouter gives a router new addresses, and a new name unless it is empty.
func (c *cluster) moveRouter(text, name, newName string) string {
	c.t.Helper()
	at := strings.Index(text, "{name: "+name+",")
	end := at + strings.Index(text[at:], "}")
	n := &clusterNode{name: name, role: "router"}
	c.moved++
	ports := freePorts(c.t, 40+5*c.moved)[35+5*c.moved:] // beyond those that were given before
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", p)
	}
	if newName != "" {
		n.name = newName
	}
	n.admin = next()
	c.nodes[n.name] = n
	line := fmt.Sprintf("{name: %s, quic: %s, peer: %s, gossip: %s, wan: %s, admin: %s", n.name, next(), next(), next(), next(), n.admin)
	return text[:at] + line + text[end:]
}

// TestD3_NewRoutersSendNothingAgain puts routers with new names, addresses and an
// empty gossip in place of a city's routers: cursors are the brokers', so nothing
// is sent a second time.
func TestD3_NewRoutersSendNothingAgain(t *testing.T) {
	c := newCluster(t)
	c.upAll()
	seen := places{}
	acked := c.load("rz-a-1", 4, "7", 300, 0).published(t, 300)
	seen.drain(t, c.nodes["rz-b-1"].client, acked)
	sentBefore := c.mustMetric("rz-a-1", "mqrouter_flow_sent_records_total")
	dupsBefore := c.mustMetric("rz-b-1", "mqrouter_flow_duplicates_total")
	c.newEpoch(2, func(text string) string { return c.moveRouter(text, "rt-a1", "rt-a8") })
	c.newEpoch(3, func(text string) string { return c.moveRouter(text, "rt-a2", "rt-a9") })
	must(t, nil, "pki", "issue", "--dir", c.pki(), "--topology", c.topology(), "--name", "rt-a8")
	must(t, nil, "pki", "issue", "--dir", c.pki(), "--topology", c.topology(), "--name", "rt-a9")
	for _, old := range []string{"rt-a1", "rt-a2"} {
		c.nodes[old].running.kill()
		delete(c.nodes, old)
	}
	c.up("rt-a8")
	c.up("rt-a9")
	c.ready("rt-a8")
	c.ready("rt-a9")
	more := c.load("rz-a-1", 4, "7", 300, 0).published(t, 100)
	seen.drain(t, c.nodes["rz-b-1"].client, more)
	for id, at := range seen {
		if len(at) != 1 {
			t.Errorf("message %s is at %d places: %v", id, len(at), at)
		}
	}
	sent := c.mustMetric("rz-a-1", "mqrouter_flow_sent_records_total") - sentBefore
	dups := c.mustMetric("rz-b-1", "mqrouter_flow_duplicates_total") - dupsBefore
	if again := sent - float64(len(more)); again > 0 || dups > 0 {
		t.Errorf("%v records were sent for %d new ones, %v were duplicates: nothing was in flight when the routers were replaced", sent, len(more), dups)
	}
	c.resentInFlightOnly("rt-a8", "rt-a9")
}

// resentInFlightOnly kills all routers of city a under load: what is sent a
// second time was not settled when they died.
func (c *cluster) resentInFlightOnly(routers ...string) {
	c.t.Helper()
	sentBefore := c.mustMetric("rz-a-1", "mqrouter_flow_sent_records_total")
	landedBefore := c.mustMetric("rz-b-1", "mqrouter_flow_landed_records_total")
	l := c.load("rz-a-1", 8, "7", 300, 0)
	from, _ := l.counts()
	eventually(c.t, "there is load", time.Minute, func() error {
		if n, f := l.counts(); n < from+500 {
			return fmt.Errorf("%d acknowledged, %d failed", n, f)
		}
		return nil
	})
	for _, r := range routers {
		c.nodes[r].running.kill()
	}
	var unsettled uint64
	eventually(c.t, "the origin tells what is not settled", time.Minute, func() error {
		s, err := c.status("rz-a-1")
		for _, f := range s.Flows {
			unsettled += f.Backlog
		}
		return err
	})
	for _, r := range routers {
		c.up(r)
	}
	l.settled(c, "rz-b-1", places{})
	sent := c.mustMetric("rz-a-1", "mqrouter_flow_sent_records_total") - sentBefore
	landed := c.mustMetric("rz-b-1", "mqrouter_flow_landed_records_total") - landedBefore
	c.t.Logf("%v records sent again, %d were not settled when the routers died", sent-landed, unsettled)
	if sent-landed > float64(unsettled) {
		c.t.Errorf("%v records were sent again; only %d were not settled", sent-landed, unsettled)
	}
}

// TestD4_AFrozenRouterIsReplacedAndComesBack freezes each router of the origin's
// city until its members drop it: the other carries everything on, and what the
// thawed one still sends is doubled nowhere.
func TestD4_AFrozenRouterIsReplacedAndComesBack(t *testing.T) {
	c := newCluster(t)
	c.upAll()
	c.members("city", 4, "rz-a-1")
	l := c.crossing(5 * time.Millisecond)
	l.going(100)
	for _, name := range []string{"rt-a1", "rt-a2"} {
		p := c.nodes[name].running.cmd.Process
		p.Signal(syscall.SIGSTOP)
		c.members("city", 3, "rz-a-1", "cz-a-1")
		l.going(100) // while it is frozen
		p.Signal(syscall.SIGCONT)
		c.members("city", 4, "rz-a-1", "cz-a-1", name)
		l.going(100)
	}
	l.done()
}

// TestS5_RoutersThatComeAndGoLeaveNoFlowBehind ends and starts drawn routers under
// load, some killed and some drained: every flow moves on each time, and at the end
// none has a backlog or waits.
func TestS5_RoutersThatComeAndGoLeaveNoFlowBehind(t *testing.T) {
	rnd := attackRand(t)
	c := newCluster(t)
	c.upAll()
	l := c.crossing(5 * time.Millisecond)
	l.publish("b to a", c.nodes["rz-b-1"].client, 5*time.Millisecond, func(int) letter {
		return letter{topic: "transfer", properties: map[string]string{"userId": "1003"}, homes: []string{"rz-a"}, stream: "back"}
	})
	l.consume("rz-a", c.nodes["rz-a-1"].client, "credit", "transfer")
	l.going(20)
	routers := []string{"rt-a1", "rt-a2", "rt-b1", "rt-b2"}
	for range rounds(6, 50) {
		name := routers[rnd.IntN(len(routers))]
		if rnd.IntN(2) == 0 {
			c.kill9(name)
		} else {
			c.nodes[name].running.stop(t, time.Minute)
			c.only(name)
		}
		l.going(20)
	}
	l.done()
	eventually(t, "no flow has a backlog", time.Minute, func() error {
		for _, b := range []string{"rz-a-1", "rz-b-1"} {
			s, err := c.status(b)
			if err != nil {
				return err
			}
			for _, f := range s.Flows {
				if f.Backlog > 0 || f.State != "idle" && f.State != "streaming" {
					return fmt.Errorf("%s: %+v", b, f)
				}
			}
		}
		return nil
	})
}

// TestL10_WhatWasPublishedDuringACutIsForwarded cuts the cities apart, publishes,
// restarts the origin's routers and heals.
func TestL10_WhatWasPublishedDuringACutIsForwarded(t *testing.T) {
	c, net := relayed(t)
	c.upAll()
	l := c.crossing(5 * time.Millisecond)
	l.going(50)
	a, b := []string{"rt-a1", "rt-a2"}, []string{"rt-b1", "rt-b2"}
	net.part(a, b)
	m := l.mark()
	eventually(t, "50 messages are acknowledged during the cut", time.Minute, func() error { return l.goesOn(m, 50) })
	l.endPublishing()
	for _, name := range a {
		c.kill9(name)
	}
	net.heal()
	l.done()
}

// TestS7_ABlackHoledPathIsRedAndRedialled loses what goes from city a to city b,
// while b's packets reach a: links turn red although something still arrives, a
// backlog is shown, and after the heal connections are new and all arrives.
func TestS7_ABlackHoledPathIsRedAndRedialled(t *testing.T) {
	c, net := relayed(t)
	c.upAll()
	l := c.crossing(10 * time.Millisecond)
	l.going(50)
	up := func(want string) error {
		for _, r := range []string{"rt-a1", "rt-a2"} {
			s, err := c.status(r)
			if err != nil {
				return err
			}
			for _, link := range s.Links {
				if (link.State == "up") != (want == "up") {
					return fmt.Errorf("%s: link to %s is %s", r, link.Peer, link.State)
				}
			}
		}
		return nil
	}
	net.lose([]string{"rt-a1", "rt-a2"}, []string{"rt-b1", "rt-b2"})
	eventually(t, "links are red", time.Minute, func() error { return up("red") })
	eventually(t, "the backlog is shown", time.Minute, func() error {
		s, err := c.status("rz-a-1")
		if err != nil {
			return err
		}
		for _, f := range s.Flows {
			if f.Backlog > 10 && f.State != "streaming" && f.State != "idle" {
				return nil
			}
		}
		return fmt.Errorf("flows: %+v", s.Flows)
	})
	m := l.mark()
	eventually(t, "publishes are acknowledged meanwhile", time.Minute, func() error { return l.goesOn(m, 50) })
	net.heal()
	eventually(t, "links are up", time.Minute, func() error { return up("up") })
	l.going(50)
	for _, r := range []string{"rt-a1", "rt-a2"} {
		s, err := c.status(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range s.Links {
			if link.Reconnects == 0 {
				t.Errorf("%s: the link to %s (%s) was not dialled again", r, link.Peer, link.Class)
			}
		}
	}
	l.done()
}

// TestX4_CitiesMeetAgainAfterAPartition parts the cities until each has dropped
// the other's routers, in the long suite until they are forgotten, and heals.
func TestX4_CitiesMeetAgainAfterAPartition(t *testing.T) {
	c, net := relayed(t)
	c.upAll()
	routers := []string{"rt-a1", "rt-a2", "rt-b1", "rt-b2"}
	c.members("wan", 4, routers...)
	l := c.crossing(20 * time.Millisecond)
	l.going(20)
	net.part(routers[:2], routers[2:])
	c.members("wan", 2, routers...)
	if long() {
		hold(3 * time.Minute) // three times as long as gossip tells of the dead
	}
	net.heal()
	healed := time.Now()
	l.going(20)
	t.Logf("traffic crosses %.1f s after the heal", time.Since(healed).Seconds())
	c.members("wan", 4, routers...)
	t.Logf("all see all %.1f s after the heal", time.Since(healed).Seconds())
	l.done()
}

// TestT3_ARouterUnderANewAddressIsBackAtOnce kills a router and starts it under
// its name at other addresses: nobody waits for the old entry to die.
func TestT3_ARouterUnderANewAddressIsBackAtOnce(t *testing.T) {
	c := newCluster(t)
	c.upAll()
	c.members("wan", 4, "rt-a1", "rt-a2", "rt-b2")
	l := c.crossing(10 * time.Millisecond)
	l.going(20)
	c.nodes["rt-b1"].running.kill()
	c.newEpoch(2, func(text string) string { return c.moveRouter(text, "rt-b1", "") })
	c.up("rt-b1")
	c.ready("rt-b1")
	eventually(t, "links to the new address are up", time.Minute, func() error {
		for _, r := range []string{"rt-a1", "rt-a2"} {
			s, err := c.status(r)
			if err != nil {
				return err
			}
			n := 0
			for _, link := range s.Links {
				if link.Peer == "rt-b1" && link.State == "up" {
					n++
				}
			}
			if n < 2 {
				return fmt.Errorf("%s: %+v", r, s.Links)
			}
		}
		return nil
	})
	c.members("wan", 4, "rt-a1", "rt-a2", "rt-b1", "rt-b2")
	c.nodes["rt-b2"].running.kill()
	l.going(50)                                    // over the new address alone
	for _, r := range []string{"rt-a1", "rt-a2"} { // rt-b1 may have met its former self
		if n := c.mustMetric(r, "mqrouter_gossip_conflicts_total"); n > 0 {
			t.Errorf("%s counts %v conflicts of names", r, n)
		}
	}
	l.done()
}
