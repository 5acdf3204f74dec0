package e2e

import (
	"context"
	cryptorand "crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/router/link"
)

// userOf finds a user of rz01 whose messages land in the given group of it.
func userOf(t *testing.T, env []string, group string) string {
	t.Helper()
	for user := 1000; user < 1020; user++ {
		out := must(t, env, "topology", "resolve", "--topic", "transfer", "--key", fmt.Sprint(user), "--from", "rz05")
		if strings.Contains(out, "in broker group "+group) {
			return fmt.Sprint(user)
		}
	}
	t.Fatalf("no user of rz01 belongs to %s", group)
	return ""
}

// TestS9_ADeadBrokerOfAZoneStopsOnlyItsOwn kills one of the two brokers of a zone
// again and again: while it is dead, what is for the other one, in the same zone
// and from the same origin, arrives, and so does what is for other zones. When it
// is back, so does the rest.
func TestS9_ADeadBrokerOfAZoneStopsOnlyItsOwn(t *testing.T) {
	d := startProcesses(t, "--restart", "0")
	live, dead := userOf(t, d.env(), "rz01-a"), userOf(t, d.env(), "rz01-b")
	l := newLedger(t)
	publish := func(name, user, home string) {
		l.publish(name, d.addr(8090), 10*time.Millisecond, func(int) letter {
			return letter{topic: "transfer", properties: map[string]string{"userId": user}, homes: []string{home}, stream: name}
		})
	}
	publish("for the living", live, "rz01")
	publish("for another zone", "1065", "rz04")
	publish("for the dead", dead, "rz01")
	l.consume("rz01", d.addr(8081), "transfer-credit", "transfer")
	l.consume("rz04", d.addr(8087), "transfer-credit", "transfer")
	l.going(20)
	const victim = "rz01-b-1"
	end := func() { syscall.Kill(d.pid(victim), syscall.SIGKILL) }
	for range rounds(3, 20) {
		end()
		m := l.mark()
		eventually(t, "publishers go on while it is dead", time.Minute, func() error { return l.goesOn(m, 100) })
		m = l.mark().without("for the dead")
		eventually(t, "what needs other brokers arrives while it is dead", time.Minute, func() error { return l.arrived(m) })
		again := start(t, victim, nil, binary, "broker", "--name", victim, "--topology", filepath.Join(d.dir, "topology.yaml"),
			"--pki", filepath.Join(d.dir, "pki"), "--data-dir", filepath.Join(d.dir, "nodes", victim), "--segment-size", "16MiB")
		l.going(20)
		end = again.kill
	}
	l.done()
}

// TestS6_AReaderFollowsABrokerThatWasAwayForLong keeps the broker that a cache
// reads from away for longer than sessions and connections wait: the reader says
// so, and goes on by itself when it is back. Other caches do not wait for it.
func TestS6_AReaderFollowsABrokerThatWasAwayForLong(t *testing.T) {
	d := startProcesses(t, "--restart", "0")
	set := func(version int) {
		t.Helper()
		must(t, d.env(), "broadcast", "set", "--zone", "rz01", "--key", "away", "--version", fmt.Sprint(version), "--value", fmt.Sprintf("v%d", version))
	}
	get := func(city string, version int) {
		t.Helper()
		must(t, d.env(), "cache", "get", "--city", city, "away", "--version", fmt.Sprint(version), "--wait", "90s")
	}
	set(1)
	for _, city := range cities {
		get(city, 1)
	}
	const victim = "cz-hz-a-1"
	syscall.Kill(d.pid(victim), syscall.SIGKILL)
	set(2)
	get("shanghai", 2)
	get("shenzhen", 2)
	hold(time.Duration(rounds(12, 120)) * time.Second)
	out, _ := mqrouter(t, d.env(), "status", "-o", "json") // it fails: a node does not answer
	for _, s := range decode[[]admin.Status](t, out) {
		if s.Node == "cache-hz" && (s.Cache == nil || s.Cache.State == "following") {
			t.Errorf("the broker of the cache is away for long, and the cache says %+v", s.Cache)
		}
	}
	start(t, victim, nil, binary, "broker", "--name", victim, "--topology", filepath.Join(d.dir, "topology.yaml"),
		"--pki", filepath.Join(d.dir, "pki"), "--data-dir", filepath.Join(d.dir, "nodes", victim), "--segment-size", "16MiB")
	get("hangzhou", 2)
	set(3)
	get("hangzhou", 3)
}

// TestQ3_AHandleOutlivesTheBrokersProcess acknowledges with a handle that was
// given before the broker was killed, first thing after it is back (Q5).
func TestQ3_AHandleOutlivesTheBrokersProcess(t *testing.T) {
	c := newCluster(t)
	const b = "rz-a-1"
	c.only(b)
	must(t, nil, "publish", "--endpoint", c.nodes[b].client, "--topic", "transfer", "--property", "userId=1003", "keep my handle")
	consumer := newConsumer(t, c.nodes[b].client)
	defer consumer.Close()
	var got []*rocketmqclient.Received
	eventually(t, "the message is received", time.Minute, func() (err error) {
		if got, err = consumer.Receive(t.Context(), 1, 5*time.Minute); err == nil && len(got) != 1 {
			err = errors.New("nothing yet")
		}
		return err
	})
	c.kill9(b)
	eventually(t, "the handle is accepted", time.Minute, func() error {
		err := consumer.Ack(t.Context(), got...)
		var refused *rocketmqclient.StatusError
		if errors.As(err, &refused) {
			t.Fatalf("the broker refuses a handle that it gave: %v", err)
		}
		return err
	})
	settled := func() error {
		s, err := c.status(b)
		if err != nil {
			return err
		}
		for _, g := range s.Consumers {
			if g.Lag > 0 || g.InFlight > 0 {
				return fmt.Errorf("acknowledged, and yet %+v", g)
			}
		}
		return nil
	}
	eventually(t, "the acknowledgement counts", time.Minute, settled)
	c.nodes[b].running.stop(t, 20*time.Second)
	c.only(b)
	eventually(t, "the acknowledgement is durable", time.Minute, settled)
}

// TestW3_AFullDestinationHoldsOnlyWhatIsForIt fills the destination's disk: it
// takes no more from other cities and says so, the origin keeps and shows what
// waits and serves its own, and all arrives when there is room again.
func TestW3_AFullDestinationHoldsOnlyWhatIsForIt(t *testing.T) {
	c := newCluster(t)
	const a, b = "rz-a-1", "rz-b-1"
	c.small(b)
	c.upAll()
	l := c.crossing(10 * time.Millisecond)
	l.publish("at home", c.nodes[a].client, 10*time.Millisecond, func(int) letter {
		return letter{topic: "transfer", properties: map[string]string{"userId": "1003"}, homes: []string{"rz-a"}}
	})
	l.consume("rz-a", c.nodes[a].client, "credit", "transfer")
	l.going(20)
	filler := filepath.Join(c.data(b), "filler")
	big := letter{topic: "transfer", properties: map[string]string{"userId": "1017"}, homes: []string{"rz-b"}, size: 256 << 10}
	held := func() bool {
		fill(t, filler)
		s, err := c.status(a)
		for _, f := range s.Flows {
			if err == nil && f.State == "held" && strings.Contains(f.Held, "disk") {
				return true
			}
		}
		return false
	}
	deadline := time.Now().Add(time.Minute)
	l.burst(c.nodes[a].client, big, func() bool {
		if time.Now().After(deadline) {
			s, _ := c.status(a)
			t.Fatalf("no flow is held: %+v", s.Flows)
		}
		return held()
	})
	m := l.mark()
	eventually(t, "the origin goes on", time.Minute, func() error {
		if err := l.goesOn(m, 50); err != nil {
			return err
		}
		return l.arrived(m, "rz-b")
	})
	if code := httpCode(t, c.nodes[b].admin, "/readyz/publish"); code != 503 {
		t.Errorf("/readyz/publish of the full destination is %d", code)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	l.going(20)
	l.done()
}

// TestD6_EachCityGetsOneCopyOfABroadcast counts the bytes that arrive in each
// other city, which has two routers and so has the origin's.
func TestD6_EachCityGetsOneCopyOfABroadcast(t *testing.T) {
	d := sharedDev(t)
	received := func(city string) (sum uint64) {
		for _, s := range decode[[]admin.Status](t, must(t, d.env(), "status", "-o", "json")) {
			if s.City == city {
				for _, l := range s.Links {
					sum += l.Received
				}
			}
		}
		return sum
	}
	before := map[string]uint64{}
	for _, city := range cities[1:] {
		before[city] = received(city)
	}
	const changes, size = 300, 8 << 10
	producer, err := rocketmqclient.NewProducer(t.Context(), rocketmqclient.Config{Endpoint: d.addr(8081)}, "member")
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	body := make([]byte, size)
	for i := range changes {
		cryptorand.Read(body)
		if _, err := producer.Send(t.Context(), &rocketmqclient.Message{Topic: "member", Keys: []string{"e2e:copies"}, Body: body,
			Properties: map[string]string{"mqr.op": "set", "mqr.version": fmt.Sprint(i + 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, city := range cities[1:] {
		must(t, d.env(), "cache", "get", "--city", city, "e2e:copies", "--version", fmt.Sprint(changes), "--wait", "1m")
		got := float64(received(city)-before[city]) / (changes * size)
		t.Logf("%s received %.2f bytes for each byte of the changes", city, got)
		if got < 1 || got > 1.6 {
			t.Errorf("%s received %.2f bytes for each byte of the changes: that is not one copy", city, got)
		}
	}
}

// TestT6_ATopologyReachesEveryNodeAndLaggardsAreSeen changes the topology of
// running processes, one of which reads a file of its own: status shows one digest
// everywhere but there.
func TestT6_ATopologyReachesEveryNodeAndLaggardsAreSeen(t *testing.T) {
	c := newCluster(t)
	const laggard = "rt-b2"
	own := filepath.Join(c.dir, "own.yaml")
	copyFile(t, c.topology(), own)
	for name, n := range c.nodes {
		if name != laggard {
			c.up(name)
			continue
		}
		n.running = start(t, name, nil, binary, "router", "--name", name, "--topology", own, "--pki", c.pki())
	}
	digests := func() map[string][]string {
		all := map[string][]string{}
		for name := range c.nodes {
			s, err := c.status(name)
			if err != nil {
				all["no answer"] = append(all["no answer"], name)
				continue
			}
			all[s.Topology.Digest] = append(all[s.Topology.Digest], name)
		}
		return all
	}
	eventually(t, "all have one digest", time.Minute, func() error {
		if d := digests(); len(d) != 1 || d["no answer"] != nil {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
	c.newEpoch(2, func(text string) string {
		return strings.Replace(text, "topics:\n", "topics:\n  - {name: added, route: local}\n", 1)
	})
	eventually(t, "all but the laggard have the new digest", time.Minute, func() error {
		d := digests()
		for _, names := range d {
			if len(names) == 1 && names[0] != laggard {
				return fmt.Errorf("%v", d)
			}
		}
		if len(d) != 2 || d["no answer"] != nil {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
	must(t, nil, "publish", "--endpoint", c.nodes["rz-b-1"].client, "--topic", "added", "a topic of the new epoch")
	out := must(t, nil, "status", "--topology", c.topology())
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 5 || c.nodes[f[2]] == nil || c.nodes[f[2]].role != f[3] {
			continue // no row of a node
		}
		if want := map[bool]string{true: "1.1", false: "1.2"}[f[2] == laggard]; !strings.Contains(line, want) {
			t.Errorf("status does not show epoch %s: %s", want, line)
		}
	}
	copyFile(t, c.topology(), own)
	eventually(t, "the laggard follows", time.Minute, func() error {
		if d := digests(); len(d) != 1 || d["no answer"] != nil {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
}

// TestM1_ConnectionsOfStrangersLeaveNothingBehind opens many short, aborted and
// idle connections to a router's doors; in the long suite a hundred thousand.
func TestM1_ConnectionsOfStrangersLeaveNothingBehind(t *testing.T) {
	if !long() {
		t.Skip("in the long suite; TestStrangersAndGarbageBetweenNodes is its short form")
	}
	c := newCluster(t)
	c.upAll()
	const victim = "rt-b1"
	doors := c.doors(t, victim)
	before := c.toll(victim)
	stranger := *pair(t, c.pki(), "rt-a2")
	for range 200 {
		deadline := time.Now().Add(2 * time.Second)
		inTurns(500, func(i int) {
			if i%5 == 0 {
				overQUIC(doors["quic"], strangerTLS(stranger), nil, deadline)
				return
			}
			abort(doors["quic"])
		})
	}
	c.recovered(victim, before)
	c.crossing(10 * time.Millisecond).going(50)
}

// TestM2_TopicsThatComeAndGoLeaveNothingBehind changes the topics of a running
// deployment over and over, publishing on each across cities.
func TestM2_TopicsThatComeAndGoLeaveNothingBehind(t *testing.T) {
	if !long() {
		t.Skip("in the long suite only")
	}
	c := newCluster(t)
	c.upAll()
	l := c.crossing(20 * time.Millisecond)
	l.going(20)
	good := readFile(t, c.topology())
	before := map[string]toll{}
	for i := range 100 {
		c.newEpoch(i+2, func(string) string {
			text := strings.Replace(good, "number: 1}", fmt.Sprintf("number: %d}", i+1), 1)
			var b strings.Builder
			for k := range 50 {
				fmt.Fprintf(&b, "  - {name: passing-%d-%d, route: {shard: {property: userId}}}\n", i, k)
			}
			return strings.Replace(text, "topics:\n", "topics:\n"+b.String(), 1)
		})
		topic := fmt.Sprintf("passing-%d-0", i)
		eventually(t, "the topic is known", time.Minute, func() error {
			_, err := mqrouter(t, nil, "publish", "--endpoint", c.nodes["rz-a-1"].client, "--topic", topic, "--property", "userId=1007", "x")
			return err
		})
		if i == 10 {
			for name := range c.nodes {
				before[name] = c.toll(name)
			}
		}
	}
	for name := range c.nodes {
		c.recovered(name, before[name])
	}
	l.going(20)
	l.done()
}

// strangerTLS greets with a certificate of the deployment that may not link here.
func strangerTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{peer.ALPN}, Certificates: []tls.Certificate{cert}}
}

// inTurns runs n calls, some at once.
func inTurns(n int, one func(i int)) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, 32)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			one(i)
			<-turns
		})
	}
	wg.Wait()
}

// abort begins a handshake and goes away.
func abort(addr string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if conn, err := quic.DialAddr(ctx, addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{link.ALPN}}, &quic.Config{}); err == nil {
		conn.CloseWithError(0, "")
	}
}
