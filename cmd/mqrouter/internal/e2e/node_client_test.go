package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// nodeEvent is a line that the Node.js scripts print.
type nodeEvent struct {
	Event     string `json:"event"`
	MessageID string `json:"messageId"`
	Body      string `json:"body"`
	OK        bool   `json:"ok"`
	Error     string `json:"error"`
}

// nodeScript starts one of the scripts in testdata/clients/node.
func nodeScript(t *testing.T, script string, args ...string) *process {
	t.Helper()
	dir := filepath.Join(repoRoot(t), "testdata", "clients", "node")
	p := start(t, script, nil, "node", append([]string{filepath.Join(dir, script)}, args...)...)
	return p
}

func needNode(t *testing.T) {
	t.Helper()
	need(t, "node")
	if _, err := os.Stat(filepath.Join(repoRoot(t), "testdata", "clients", "node", "node_modules", "rocketmq-client-nodejs")); err != nil {
		missing(t, "the npm package rocketmq-client-nodejs (make needs installs it)")
	}
}

// ended waits for a script and returns its events of one kind.
func (p *process) events(t *testing.T, kind string) []nodeEvent {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(3 * time.Minute):
		t.Fatalf("%s did not end", p.name)
	}
	if p.err != nil {
		t.Fatalf("%s: %v\n%s", p.name, p.err, p.output())
	}
	var lines []string
	for line := range strings.Lines(p.output()) {
		if strings.HasPrefix(line, "{") {
			lines = append(lines, line)
		}
	}
	var all []nodeEvent
	for _, e := range jsonLines[nodeEvent](t, strings.Join(lines, "")) {
		if e.Event == kind {
			all = append(all, e)
		}
	}
	return all
}

func ids(events []nodeEvent) []string {
	var all []string
	for _, e := range events {
		all = append(all, e.MessageID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestOfficialNodeClient publishes with the official client in an RZone of
// Shanghai and receives, with both kinds of its consumers, where the route of
// the topic says.
func TestOfficialNodeClient(t *testing.T) {
	needNode(t)
	d := sharedDev(t)
	const rz01 = 8081
	for _, c := range []struct {
		name     string
		topic    string
		property string
		group    string
		at       []int // documented client ports of the zones where it lands
	}{
		{"in the zone", "orders", "", "orders-billing", []int{rz01}},
		{"to another zone of the city", "transfer", "userId=20250025", "transfer-credit", []int{8083}},
		{"to a zone of another city", "transfer", "userId=20250065", "transfer-credit", []int{8087}},
		{"to a named city", "directed", "destination=hangzhou", "directed-worker", []int{8089}},
		{"to the active GZone", "ledger", "", "ledger-book", []int{8084}},
		{"to the CZone of every city", "member", "mqr.op=none", "member-watch", []int{8085, 8089, 8091}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, consumer := range []string{"push.mjs", "simple.mjs"} {
				// The tag is this run's alone: what other tests left in the topic is not for it.
				const count = 10
				tag := fmt.Sprintf("%s-%d", strings.ReplaceAll(c.name, " ", "-"), i)
				var consumers []*process
				for _, port := range c.at {
					p := nodeScript(t, consumer, "--endpoint", d.addr(port), "--topic", c.topic, "--group", c.group, "--tag", tag, "--count", fmt.Sprint(count), "--timeout", "90000")
					consumers = append(consumers, p)
				}
				for _, p := range consumers {
					p.await(t, `"ready"`, time.Minute)
				}
				args := []string{"--endpoint", d.addr(rz01), "--topic", c.topic, "--count", fmt.Sprint(count), "--tag", tag, "--prefix", c.name + " "}
				if c.property != "" {
					args = append(args, "--property", c.property)
				}
				sent := ids(nodeScript(t, "produce.mjs", args...).events(t, "sent"))
				if len(sent) != count {
					t.Fatalf("sent %d messages, want %d", len(sent), count)
				}
				for j, p := range consumers {
					if got := ids(p.events(t, "message")); !slices.Equal(got, sent) {
						t.Errorf("%s at port %d got %v,\nsent %v", consumer, c.at[j], got, sent)
					}
				}
			}
		})
	}
}

// TestNodeConsumerGetsItsMessageBack fails the first deliveries: the message
// comes again after the group's back-off, and is consumed once.
func TestNodeConsumerGetsItsMessageBack(t *testing.T) {
	needNode(t)
	d := sharedDev(t)
	const rz05 = 8090
	p := nodeScript(t, "simple.mjs", "--endpoint", d.addr(rz05), "--topic", "orders", "--group", "orders-billing", "--count", "3", "--nack-attempts", "2", "--timeout", "90000")
	p.await(t, `"ready"`, time.Minute)
	sent := ids(nodeScript(t, "produce.mjs", "--endpoint", d.addr(rz05), "--topic", "orders", "--count", "3").events(t, "sent"))
	deliveries := p.events(t, "message")
	if got := ids(deliveries); !slices.Equal(got, sent) || len(deliveries) < 9 {
		t.Errorf("%d deliveries of %v, want at least 9 of %v", len(deliveries), got, sent)
	}
}
