package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// pairGroup is the consumer group of a language and kind of consumer in newPair.
func pairGroup(l language, kind string) string { return groupName(l, "broker restart", kind) }

// newPair is a zone of two brokers, each a process of its own, and a topic with
// consumer groups for every client. The broker of the city's CZone, which has no
// part in it, is not started.
func newPair(t *testing.T) *cluster {
	c := &cluster{t: t, dir: t.TempDir(), nodes: map[string]*clusterNode{}}
	ports := freePorts(t, 12)
	var b strings.Builder
	b.WriteString("deployment: pair\nepoch: {term: 1, number: 1}\nshards: {count: 10, by: last-digits, owners: {rz: 0-9}}\n" +
		"cities:\n  - name: city\n    zones:\n      - name: rz\n        kind: RZone\n        standby: none\n        groups:\n")
	for i, slots := range []string{"0-511", "512-1023"} {
		addr := func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[4*i+k]) }
		n := &clusterNode{name: fmt.Sprintf("rz-%d", i+1), role: "broker", admin: addr(0), client: addr(1)}
		c.nodes[n.name] = n
		fmt.Fprintf(&b, "          - {name: g%d, slots: %s, nodes: [{name: %s, client: %s, peer: %s, gossip: %s, admin: %s}]}\n",
			i+1, slots, n.name, n.client, addr(2), addr(3), n.admin)
	}
	fmt.Fprintf(&b, "      - {name: cz, kind: CZone, groups: [{name: cz-g, nodes: [{name: cz-1, client: 127.0.0.1:%d, peer: 127.0.0.1:%d, gossip: 127.0.0.1:%d, admin: 127.0.0.1:%d}]}]}\n",
		ports[8], ports[9], ports[10], ports[11])
	b.WriteString("topics:\n  - {name: orders, route: local, queues: 2}\n")
	for topic, kind := range map[string]string{fifoTopic: "fifo", delayTopic: "delay", liteTopic: "lite", priorityTopic: "priority", transactionTopic: "transaction, transaction: {immunity: 1s, interval: 1s}"} {
		fmt.Fprintf(&b, "  - {name: %s, route: local, kind: %s}\n", topic, kind)
	}
	b.WriteString("consumer_groups:\n")
	for _, l := range languages {
		fmt.Fprintf(&b, "  - {name: %s, topics: [%s, %s, %s], fifo: true}\n", pairGroup(l, "kinds"), fifoTopic, delayTopic, transactionTopic)
		for _, kind := range []string{"push", "simple"} {
			fmt.Fprintf(&b, "  - {name: %s, topics: [orders, %s, %s]}\n", pairGroup(l, kind), liteTopic, priorityTopic)
		}
	}
	if err := os.WriteFile(c.topology(), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, nil, "topology", "validate", c.topology())
	must(t, nil, "pki", "init", "--deployment", "pair", "--dir", c.pki())
	must(t, nil, "pki", "issue", "--dir", c.pki(), "--topology", c.topology(), "--all")
	c.upAll()
	return c
}

// TestOfficialClientsOutliveABroker kills a broker with SIGKILL while the clients
// run, and starts it again: no client is started anew, and every message that its
// producer has an answer for reaches both of its consumers.
func TestOfficialClientsOutliveABroker(t *testing.T) {
	t.Parallel()
	c := newPair(t)
	var stages []*outliving
	for _, l := range languages {
		if !l.there(t) {
			continue
		}
		stages = append(stages, outlive(&stage{T: t, d: startDriver(t, l), at: c.secondOfPair, scenario: "broker restart", leave: true}))
	}
	const each = 8
	all := func(round string, deadline time.Duration) {
		for _, s := range stages {
			s.publish(round, each, deadline)
		}
	}
	all("before", 0)
	c.nodes["rz-1"].running.kill()
	all("while it is down", waitMost) // through the other broker
	c.up("rz-1")
	c.ready("rz-1")
	all("after", waitMost)
	for _, s := range stages {
		s.settle()
	}
}

// outliving is one client's producer and consumers over the death of a broker.
type outliving struct {
	*stage
	producer, push, simple string
	sent                   []string // acknowledged
}

// secondOfPair is where the clients of newPair begin.
func (c *cluster) secondOfPair(int) string { return c.nodes["rz-2"].client }

func outlive(s *stage) *outliving {
	s.Helper()
	return &outliving{
		stage:    s,
		producer: s.open("producer", map[string]any{"endpoint": s.at(rz01), "topics": []string{"orders"}, "attempts": 3}),
		push:     s.consumer("push", rz01, "orders", s.tag()),
		simple:   s.consumer("simple", rz01, "orders", s.tag()),
	}
}

// publish sends until n messages are acknowledged; errors are the client's to
// report and ours to repeat until the deadline.
func (o *outliving) publish(round string, n int, deadline time.Duration) {
	o.Helper()
	end := time.Now().Add(deadline)
	failed := 0
	for done := 0; done < n; {
		id, err := o.trySend(o.producer, message{topic: "orders", body: round, tag: o.tag()})
		var thrown *clientError
		switch {
		case err == nil:
			o.sent = append(o.sent, id)
			done++
		case !errors.As(err, &thrown) || time.Now().After(end):
			o.Fatalf("%s, %s: %v", o.d.lang.name, round, err)
		default:
			failed++
		}
	}
	o.Logf("%s, %s: %d acknowledged, %d failed", o.d.lang.name, round, n, failed)
}

// settle waits for all that was acknowledged. A message whose answer was lost may
// come as well, and one whose acknowledgement was lost comes twice.
func (o *outliving) settle() {
	o.Helper()
	seenBy := map[string]map[string]bool{"simple": {}, "push": {}}
	complete := func(who string) error {
		for _, id := range o.sent {
			if !seenBy[who][id] {
				return fmt.Errorf("%s client, %s consumer: %s is missing, %d of %d are there", o.d.lang.name, who, id, len(seenBy[who]), len(o.sent))
			}
		}
		return nil
	}
	o.eventually("the simple consumer has all", 2*waitMost, func() error {
		got, err := o.tryReceive(o.simple, 30*time.Second)
		if err != nil {
			return err // until the client has found the broker again
		}
		for _, m := range got {
			if err := o.ack(o.simple, m); err == nil {
				seenBy["simple"][m.MessageID] = true
			}
		}
		return complete("simple")
	})
	o.eventually("the push consumer has all", 2*waitMost, func() error {
		all, _ := o.d.deliveries(o.push)
		for _, d := range all {
			seenBy["push"][d.Message.MessageID] = true
		}
		return complete("push")
	})
}

// TestKindsOutliveBrokers kills every broker with SIGKILL while messages wait: those
// that are due later, those of open transactions, those of message groups and of lite
// topics, and those with priorities all come when the brokers are back, when they should
// and in order. A lite consumer that was there goes on with what it had chosen.
func TestKindsOutliveBrokers(t *testing.T) {
	t.Parallel()
	c := newPair(t)
	var all []*waiting
	for _, l := range languages {
		if l.there(t) {
			all = append(all, leaveWaiting(&stage{T: t, d: startDriver(t, l), at: c.secondOfPair, admin: []string{"MQROUTER_ADMIN=" + c.nodes["rz-1"].admin}, scenario: "broker restart", leave: true}))
		}
	}
	for _, name := range []string{"rz-1", "rz-2"} {
		c.nodes[name].running.kill()
	}
	for _, name := range []string{"rz-1", "rz-2"} {
		c.up(name)
		c.ready(name)
	}
	for _, w := range all {
		w.beginAgain()
	}
	for _, w := range all {
		w.come()
	}
}

// waiting is what a client has sent and nobody received yet.
type waiting struct {
	*stage
	fifo, delayed, halves, ranked []string

	talker, staying string   // a producer and a consumer of lite topics that stay
	read, chats     []string // of the lite topic that was chosen, and of one that was not
}

// leaveWaiting sends what waits for its time, for the end of its transaction, and
// for a consumer.
func leaveWaiting(s *stage) *waiting {
	s.Helper()
	const delay = 20 * time.Second
	w := &waiting{stage: s, fifo: s.interleaved(s.producer(rz01, fifoTopic), 2, 3)}
	producer, transactional := s.producer(rz01, delayTopic), s.transactional(transactionTopic)
	for range 4 {
		w.delayed = append(w.delayed, s.send(producer, message{topic: delayTopic, body: "later", tag: s.tag(), delay: delay}))
		id, _ := s.half(transactional, message{topic: transactionTopic, body: "open", tag: s.tag(), properties: map[string]string{"checks": "unknown,commit"}})
		w.halves = append(w.halves, id)
	}
	ranks := s.producer(rz01, priorityTopic)
	for level := 1; level <= 3; level++ {
		for i := range 4 {
			w.ranked = append(w.ranked, s.send(ranks, message{topic: priorityTopic, body: fmt.Sprint(level, i), tag: s.tag(), priority: &level}))
		}
	}
	w.talker = s.open("producer", map[string]any{"endpoint": s.at(rz01), "topics": []string{liteTopic}, "attempts": 3})
	w.staying = s.chooser(liteTopic, []string{"chosen"}, nil)
	w.read = s.chat(w.talker, 3, "chosen")
	w.chats = s.chat(w.talker, 4, "waiting")
	s.pushed(w.staying, len(w.read))
	return w
}

// beginAgain has something to do for the lite consumer that was there before.
func (w *waiting) beginAgain() {
	w.Helper()
	for i := len(w.read); i < 6; i++ {
		w.eventually("a message to the lite topic that was chosen", waitMost, func() error {
			id, err := w.trySend(w.talker, message{topic: liteTopic, body: fmt.Sprint("chosen ", i), lite: w.own("chosen")})
			if err == nil {
				w.read = append(w.read, id)
			}
			return err
		})
	}
}

// come receives all of it.
func (w *waiting) come() {
	w.Helper()
	w.transactional(transactionTopic) // Python's do not open their streams again for minutes
	consumer := func(group, topic string) string {
		return w.open("simple", map[string]any{"endpoint": w.at(rz01), "group": pairGroup(w.d.lang, group), "topics": map[string]string{topic: w.tag()}, "await": w.soon()["await"]})
	}
	got := w.drain(consumer("kinds", fifoTopic), len(w.fifo))
	w.inOrder("after the restart", got, false)
	w.byPriority(w.drain(consumer("simple", priorityTopic), len(w.ranked)))
	w.same("open transactions", w.take(consumer("kinds", transactionTopic), len(w.halves)), w.halves)
	late := w.take(consumer("kinds", delayTopic), len(w.delayed))
	w.same("delayed", late, w.delayed)
	for _, m := range late {
		w.punctual("after the restart", m, 0, time.Now())
	}
	second := w.chooser(liteTopic, []string{"waiting"}, nil)
	w.same("a lite topic that nobody had chosen", w.pushed(second, len(w.chats)), w.chats)
	w.chatsInOrder(second)
	w.same("a lite topic that was chosen before", w.pushed(w.staying, len(w.read)), w.read)
	w.chatsInOrder(w.staying)
}

// byPriority judges what came to one consumer: all of it, each with its priority, and of
// what waited at one broker the highest first.
func (w *waiting) byPriority(got []seen) {
	w.Helper()
	byID, last := map[string]seen{}, map[string]int{}
	for _, m := range got {
		byID[m.MessageID] = m
		if m.Priority == nil || fmt.Sprint(*m.Priority) != string(m.Body[:1]) {
			w.Errorf("%q came with priority %v", m.Body, m.Priority)
			continue
		}
		out, err := mqrouter(w.T, w.admin, "message", "find", m.MessageID, "-o", "json") // fails, since cz-1 is not there
		places := decode[[]struct{ Node string }](w.T, out)
		if len(places) != 1 {
			w.Fatalf("%s is at %v: %v", m.MessageID, places, err)
		}
		node := places[0].Node
		if before, ok := last[node]; ok && *m.Priority > before {
			w.Errorf("of %s came one of priority %d after one of %d: %s", node, *m.Priority, before, bodies(got))
		}
		last[node] = *m.Priority
	}
	w.same("with priorities", byID, w.ranked)
}

// chatsInOrder judges the order of a lite topic. What was acknowledged shortly before the
// kill may come again.
func (w *waiting) chatsInOrder(consumer string) {
	w.Helper()
	next := 0
	for _, m := range w.delivered(consumer) {
		var name string
		var n int
		if _, err := fmt.Sscan(string(m.Body), &name, &n); err != nil || n > next {
			w.Errorf("%s: %q came where number %d is due, %v: %s", consumer, m.Body, next, err, bodies(w.delivered(consumer)))
			return
		}
		next = max(next, n+1)
	}
}
