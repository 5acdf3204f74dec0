package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// trio are the nodes of the only broker group of newTrio, and its voters.
var trio = []string{"rz-1", "rz-2", "rz-3"}

const takeover = "take over"

// newTrio is a zone with one group of three nodes, each a process of its own, and
// topics of several kinds with consumer groups for every client.
func newTrio(t *testing.T) *cluster {
	c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*clusterNode{}}
	ports := freePorts(t, 4*len(trio)+4)
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", p)
	}
	var nodes []string
	for i, name := range trio {
		n := &clusterNode{name: name, role: "broker", admin: next(), client: next()}
		c.nodes[name] = n
		nodes = append(nodes, fmt.Sprintf("{name: %s, room: r%d, client: %s, peer: %s, gossip: %s, admin: %s}", name, i+1, n.client, next(), next(), n.admin))
	}
	var b strings.Builder
	cz := &clusterNode{name: "cz-1", role: "broker", admin: next(), client: next()}
	c.nodes[cz.name] = cz
	fmt.Fprintf(&b, "deployment: trio\nepoch: {term: 1, number: 1}\nshards: {count: 10, by: last-digits, owners: {rz: 0-9}}\n"+
		"cities:\n  - name: city\n    coordinator: {driver: raft, voters: [%s]}\n    zones:\n"+
		"      - {name: rz, kind: RZone, standby: none, groups: [{name: rz-g, nodes: [%s]}]}\n"+
		"      - {name: cz, kind: CZone, groups: [{name: cz-g, nodes: [{name: cz-1, client: %s, peer: %s, gossip: %s, admin: %s}]}]}\n",
		strings.Join(trio, ", "), strings.Join(nodes, ", "), cz.client, next(), next(), cz.admin)
	fmt.Fprintf(&b, "topics:\n  - {name: orders, route: local, queues: 2}\n  - {name: %s, route: local, kind: fifo}\n"+
		"  - {name: %s, route: local, kind: transaction, transaction: {immunity: 5s, interval: 1s, checks: 100}}\nconsumer_groups:\n", fifoTopic, transactionTopic)
	for _, l := range languages {
		for _, kind := range []string{"push", "simple", "fifo", "payments"} {
			fmt.Fprintf(&b, "  - {name: %s, topics: [orders, %s, %s], fifo: %t}\n", groupName(l, takeover, kind), fifoTopic, transactionTopic, kind == "fifo")
		}
	}
	if err := os.WriteFile(c.topology(), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "topology", "validate", c.topology())
	must(t, nil, "pki", "init", "--deployment", "trio", "--dir", c.pki())
	must(t, nil, "pki", "issue", "--dir", c.pki(), "--topology", c.topology(), "--all")
	c.upAll()
	return c
}

// inSync waits until all nodes of newTrio are, and returns the master.
func (c *cluster) inSync() (master string) {
	c.t.Helper()
	type status struct {
		Node   string        `json:"node"`
		Member *admin.Member `json:"member"`
	}
	eventually(c.t, "three nodes are in sync", 2*time.Minute, func() error {
		out, err := mqrouter(c.t, []string{"MQROUTER_ADMIN=" + c.nodes["cz-1"].admin}, "status", "-o", "json")
		if err != nil {
			return err
		}
		for _, s := range decode[[]status](c.t, out) {
			if s.Member != nil && s.Member.Role == "master" && len(s.Member.InSync) == len(trio) {
				master = s.Node
				return nil
			}
		}
		return errors.New("no master, or not all are in sync")
	})
	return master
}

// TestOfficialClientsOutliveAMaster kills the master of a group with SIGKILL, twice in
// the long run, while clients publish, consume in order and not, and have transactions open. No
// client is started anew. All that was acknowledged arrives, message groups in order,
// transactions as they were decided; what consumers had acknowledged some seconds
// before the kill does not come again.
func TestOfficialClientsOutliveAMaster(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.inSync()
	at := balance(t, c.clients(trio...))
	var all []*takenOver
	for _, l := range languages {
		if l.there(t) {
			all = append(all, beginTakeover(&stage{T: t, d: startDriver(t, l), at: func(int) string { return at }, scenario: takeover, leave: true, patience: waitMost}))
		}
	}
	if len(all) == 0 {
		t.Skip("skipped: every client is missing")
	}
	each := func(f func(*takenOver)) {
		for _, o := range all {
			f(o)
		}
	}
	each(func(o *takenOver) { o.work("before") })
	for round := range rounds(1, 2) {
		each((*takenOver).consumed)
		master := c.inSync()
		hold(5 * time.Second) // acknowledgements are logged within 50 ms
		each((*takenOver).remember)
		each((*takenOver).leaveOpen)
		c.nodes[master].running.kill()
		began := time.Now()
		each(func(o *takenOver) { o.work(fmt.Sprint("after kill ", round+1)) })
		t.Logf("round %d: the master %s was killed; %d clients published again, %.1f s in all", round+1, master, len(all), time.Since(began).Seconds())
		each((*takenOver).consumed)
		each((*takenOver).judge)
		c.up(master)
		c.ready(master)
	}
}

// takenOver is what one language's clients do over the deaths of masters.
type takenOver struct {
	*stage
	producer, push, simple string
	ordered, fifo          string
	payer, payments        string

	sent, numbers, paid []string                  // acknowledged, of each kind; paid were committed
	taken               map[string]bool           // what simple consumers acknowledged
	settled             map[string]bool           // of taken: may not come again
	pushed              map[string]map[string]int // by push consumer, how often what may not come again had come
}

func beginTakeover(s *stage) *takenOver {
	s.Helper()
	producer := func(topic string, fields map[string]any) string {
		fields["endpoint"], fields["topics"], fields["attempts"] = s.at(rz01), []string{topic}, 3
		return s.open("producer", fields)
	}
	group := func(kind string) map[string]any { return map[string]any{"group": groupName(s.d.lang, takeover, kind)} }
	return &takenOver{
		stage:    s,
		producer: producer("orders", map[string]any{}),
		push:     s.consumer("push", rz01, "orders", s.tag()),
		simple:   s.consumer("simple", rz01, "orders", s.tag()),
		ordered:  producer(fifoTopic, map[string]any{}),
		fifo:     s.consumer("push", rz01, fifoTopic, s.tag(), group("fifo")),
		payer:    producer(transactionTopic, map[string]any{"checks": true}),
		payments: s.consumer("simple", rz01, transactionTopic, s.tag(), group("payments")),
		taken:    map[string]bool{}, settled: map[string]bool{}, pushed: map[string]map[string]int{},
	}
}

// goOn repeats what a client refuses for at most some time, and returns how often it did.
func (o *takenOver) goOn(what string, within time.Duration, try func() error) (failed int) {
	o.Helper()
	for deadline := time.Now().Add(within); ; {
		err := try()
		var thrown *clientError
		switch {
		case err == nil:
			return failed
		case !errors.As(err, &thrown) || time.Now().After(deadline):
			o.Fatalf("%s, %s: %v", o.d.lang.name, what, err)
		}
		failed++
		hold(100 * time.Millisecond) // as a program would
	}
}

// work publishes messages of each kind; errors are repeated, each for some time. A busy
// machine changes masters by itself, so there may be some before the first kill, too.
func (o *takenOver) work(round string) {
	o.Helper()
	const n, within = 6, 2 * waitMost
	failed := 0
	send := func(producer string, m message) (id string) {
		failed += o.goOn(round+", send to "+m.topic, within, func() (err error) {
			id, err = o.trySend(producer, m)
			return err
		})
		return id
	}
	group := o.tag() + " account"
	for i := range n {
		o.sent = append(o.sent, send(o.producer, message{topic: "orders", body: fmt.Sprint(round, i), tag: o.tag()}))
		o.numbers = append(o.numbers, send(o.ordered, message{topic: fifoTopic, body: fmt.Sprintf("%s|%d", group, len(o.numbers)), tag: o.tag(), group: group}))
	}
	for i := range 2 {
		var out struct {
			MessageID string
			Tx        int
		}
		m := message{topic: transactionTopic, body: round, tag: o.tag(), properties: map[string]string{"checks": []string{"commit", "rollback"}[i]}}
		failed += o.goOn(round+", send a half message", within, func() error { return o.d.call("half", m.fields(o.payer), &out) })
		failed += o.goOn(round+", end a transaction", within, func() error { return o.end(o.payer, out.Tx, i == 0) })
		if i == 0 {
			o.paid = append(o.paid, out.MessageID)
		}
	}
	if o.d.lang.name == "python" {
		// Its producers do not open their streams again for minutes, so another one is
		// asked about what they left open.
		o.transactional(transactionTopic)
	}
	o.Logf("%s, %s: %d refusals of its clients", o.d.lang.name, round, failed)
}

// leaveOpen leaves a transaction to be asked about by the next master.
func (o *takenOver) leaveOpen() {
	o.Helper()
	var out struct{ MessageID string }
	m := message{topic: transactionTopic, body: "open", tag: o.tag(), properties: map[string]string{"checks": "commit"}}
	o.goOn("leave a half message", 2*waitMost, func() error { return o.d.call("half", m.fields(o.payer), &out) })
	o.paid = append(o.paid, out.MessageID)
}

// consumed waits until every consumer has all that was sent until now.
func (o *takenOver) consumed() {
	o.Helper()
	for _, c := range []struct {
		simple string
		want   []string
	}{{o.simple, o.sent}, {o.payments, o.paid}} {
		o.eventually(c.simple+" has all", 3*waitMost, func() error {
			got, err := o.tryReceive(c.simple, 30*time.Second)
			if err != nil {
				return err
			}
			for _, m := range got {
				if o.settled[m.MessageID] {
					o.Errorf("%s, %s: %q came again after its acknowledgement was on all nodes", o.d.lang.name, c.simple, m.Body)
				}
				if err := o.ack(c.simple, m); err == nil {
					o.taken[m.MessageID] = true
				}
			}
			for _, id := range c.want {
				if !o.taken[id] {
					return fmt.Errorf("%s: %s is missing, %d are sent", o.d.lang.name, id, len(c.want))
				}
			}
			return nil
		})
	}
	for consumer, want := range map[string][]string{o.push: o.sent, o.fifo: o.numbers} {
		o.eventually(consumer+" has all", 3*waitMost, func() error {
			got := o.delivered(consumer)
			for _, id := range want {
				if !slices.ContainsFunc(got, func(m seen) bool { return m.MessageID == id }) {
					return fmt.Errorf("%s: %s is missing, %d of %d are there", o.d.lang.name, id, len(got), len(want))
				}
			}
			return nil
		})
	}
}

// times is how often a push consumer consumed each message.
func (o *takenOver) times(consumer string) map[string]int {
	n := map[string]int{}
	for _, m := range o.delivered(consumer) {
		n[m.MessageID]++
	}
	return n
}

// remember notes what may not come again.
func (o *takenOver) remember() {
	o.settled = maps.Clone(o.taken)
	for _, consumer := range []string{o.push, o.fifo} {
		o.pushed[consumer] = o.times(consumer)
	}
}

// judge looks at what push consumers saw since they last were remembered, and at their order.
func (o *takenOver) judge() {
	o.Helper()
	for _, consumer := range []string{o.push, o.fifo} {
		now := o.times(consumer)
		for id, n := range o.pushed[consumer] {
			if now[id] != n {
				o.Errorf("%s, %s: %s came again after its acknowledgement was on all nodes", o.d.lang.name, consumer, id)
			}
		}
	}
	o.inOrder("in order", o.delivered(o.fifo), true)
}

// balance is the address of a balancer in front of nodes: each connection goes on to
// the first that takes it. Clients ask for routes where they were told to begin, for
// as long as they live.
func balance(t *testing.T, nodes []string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { passOn(ctx, near, nodes) })
		}
	})
	t.Cleanup(func() {
		end()
		l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// passOn copies between a client and a node until either ends, or ctx.
func passOn(ctx context.Context, near net.Conn, nodes []string) {
	defer near.Close()
	defer context.AfterFunc(ctx, func() { near.Close() })()
	for _, node := range nodes {
		var d net.Dialer
		far, err := d.DialContext(ctx, "tcp", node)
		if err != nil {
			continue
		}
		defer far.Close()
		var back sync.WaitGroup
		back.Go(func() {
			io.Copy(near, far)
			near.Close()
		})
		io.Copy(far, near)
		far.Close()
		back.Wait()
		return
	}
}
