package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestOperatorsFindTheMaster lists and replays dead letters, lists and commits half
// messages and resets a group, at a broker group of three nodes, before and after kill -9
// of its master: no command names a node. Publishers and consumers of the command line
// name the zone, whose first node is down then, and no route names the dead master any more.
// A load and a change of member data that meet the kill go on until they are answered. With
// the coordinator's majority gone as well, the commands say that the group has no master.
func TestOperatorsFindTheMaster(t *testing.T) {
	c := drawReplicated(t, `topics:
  - {name: notes, route: local}
  - {name: pay, kind: transaction, route: local, transaction: {immunity: 1h, interval: 1h, checks: 3}}
  - {name: load, route: local}
  - {name: member, route: {broadcast: city}}
consumer_groups:
  - {name: readers, topics: [notes], max_attempts: 1}
  - {name: payees, topics: [pay]}
`)
	c.upAll()
	whole := func() (master string) {
		t.Helper()
		eventually(t, "all are in sync", 2*time.Minute, func() error {
			m, all, err := c.leads()
			if err == nil && !all {
				err = fmt.Errorf("master %q, and not all in sync", m)
			}
			master = m
			return err
		})
		return master
	}
	leader := whole()
	env := []string{"MQROUTER_ADMIN=" + c.nodes["cz-a-1"].admin}
	run := func(args ...string) string { t.Helper(); return must(t, env, args...) }
	type letter struct {
		Pending int `json:"pending"`
	}
	type waits struct {
		MessageID string `json:"message_id"`
	}
	pending := func() int {
		n := 0
		for _, q := range decode[[]letter](t, run("dlq", "list", "-o", "json")) {
			n += q.Pending
		}
		return n
	}
	halves := func() []waits { return decode[[]waits](t, run("waiting", "list", "--undecided", "-o", "json")) }
	prepare := func(n int) {
		for i := range n {
			run("publish", "--zone", "rz-a", "--topic", "notes", fmt.Sprintf("note %d", i))
		}
		run("consume", "--zone", "rz-a", "--topic", "notes", "--group", "readers", "--no-ack", "--invisible", "10s", "--count", fmt.Sprint(n))
		eventually(t, "the notes are dead letters", time.Minute, func() error {
			if got := pending(); got != n {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
		p, err := rocketmqclient.NewProducer(t.Context(), rocketmqclient.Config{Endpoint: c.nodes[whole()].client}, "pay")
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for range n {
			if res, err := p.Send(t.Context(), &rocketmqclient.Message{Topic: "pay", Body: []byte("pay"), Type: pb.MessageType_TRANSACTION}); err != nil || res.TransactionID == "" {
				t.Fatalf("half message: %+v, %v", res, err)
			}
		}
	}
	operate := func(when string, letters, undecided int) {
		t.Helper()
		if got := pending(); got != letters {
			t.Errorf("%s: %d dead letters, want %d", when, got, letters)
		}
		if out := run("dlq", "replay", "--group", "readers", "--limit", "1"); !strings.Contains(out, "1 replayed") {
			t.Errorf("%s: the replay says %s", when, out)
		}
		run("consume", "--zone", "rz-a", "--topic", "notes", "--group", "readers", "--count", "1", "--wait", "1m")
		list := halves()
		if len(list) != undecided {
			t.Fatalf("%s: %d half messages wait, want %d", when, len(list), undecided)
		}
		if out := run("waiting", "commit", list[0].MessageID, "--reason", "e2e", "--yes"); !strings.Contains(out, "1 committed") {
			t.Errorf("%s: the commit says %s", when, out)
		}
		run("consume", "--zone", "rz-a", "--topic", "pay", "--group", "payees", "--count", "1", "--wait", "1m")
		if out := run("message", "find", list[0].MessageID); !strings.Contains(out, "committed by order of") {
			t.Errorf("%s: find says %s", when, out)
		}
		if out := run("group", "reset", "readers", "--topic", "notes", "--to", "latest", "--yes"); !strings.Contains(out, "messages come again") {
			t.Errorf("%s: the reset says %s", when, out)
		}
	}
	prepare(4)
	operate("with all nodes", 4, 4)
	load := start(t, "bench publish", env, binary, "bench", "publish", "--zone", "rz-a", "--topic", "load", "--publishers", "4", "--batch", "2", "--rate", "200", "--duration", "8s", "-o", "json")
	eventually(t, "the load runs", time.Minute, func() error {
		if n := c.stored(leader, "load"); n < 20 {
			return fmt.Errorf("%d messages", n)
		}
		return nil
	})
	c.nodes[leader].running.kill()
	run("broadcast", "set", "--zone", "rz-a", "--key", "member:1", "--version", "1", "--value", "told while nobody leads")
	next := ""
	eventually(t, "another leads", time.Minute, func() error {
		for _, name := range members {
			if name == leader {
				continue
			}
			if st, err := c.status(name); err == nil && st.Member != nil && st.Member.Role == "master" {
				next = name
				return nil
			}
		}
		return errors.New("nobody does")
	})
	if names := routed(t, c.nodes[next].client, "notes"); slices.Contains(names, leader) || !slices.Contains(names, next) {
		t.Errorf("%s is master, %s was killed, and the route names %v", next, leader, names)
	}
	operate("after kill -9 of the master", 3, 3)
	goesOn(t, load)
	run("publish", "--zone", "rz-a", "--topic", "notes", "with the first node or another down")
	c.nodes[next].running.kill()
	for _, args := range [][]string{{"dlq", "list"}, {"waiting", "list"}, {"group", "reset", "readers", "--topic", "notes", "--to", "latest", "--yes"}} {
		eventually(t, strings.Join(args, " ")+" says that there is no master", time.Minute, func() error {
			out, err := mqrouter(t, env, args...)
			if err == nil || !strings.Contains(err.Error(), "broker group rz-a-g has no master that answers") {
				return fmt.Errorf("%q: %w", out, err)
			}
			return nil
		})
	}
}

// stored is how many messages of a topic a broker holds.
func (c *cluster) stored(node, topic string) (n uint64) {
	st, err := c.status(node)
	if err != nil {
		return 0
	}
	for _, q := range st.Topics {
		if q.Name == topic {
			n += q.Next - q.First
		}
	}
	return n
}

// goesOn judges a load during which the master was killed: requests were made again, and
// every message was acknowledged in the end.
func goesOn(t *testing.T, load *process) {
	t.Helper()
	select {
	case <-load.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the load does not end")
	}
	type result struct {
		Messages, Repeated, Failed uint64
		FirstFail                  string `json:"first_failure"`
	}
	out := load.output()
	if load.err != nil || !strings.Contains(out, "[") {
		t.Fatalf("%v\n%s", load.err, out)
	}
	got := decode[[]result](t, out[strings.Index(out, "["):])
	if r := got[0]; r.Failed > 0 || r.Repeated == 0 || r.Messages < 100 {
		t.Errorf("%+v\n%s", r, out)
	}
}

// routed returns the brokers that the route of a topic names.
func routed(t *testing.T, endpoint, topic string) (names []string) {
	t.Helper()
	c, err := rocketmqclient.NewPullConsumer(t.Context(), rocketmqclient.Config{Endpoint: endpoint}, "readers", topic)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	queues, err := c.Queues(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		names = append(names, q.Broker)
	}
	return names
}
