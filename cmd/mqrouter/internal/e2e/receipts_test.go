package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	"github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestPublisherLearnsThatItsMessagesWereConsumed in another city, over a restart, from
// receipts that it pulls, of which there is one for each message.
func TestPublisherLearnsThatItsMessagesWereConsumed(t *testing.T) {
	dir, offset := filepath.Join(t.TempDir(), "dev"), offsetFor(t)
	d := startDev(t, dir, offset, nil)
	changeTopology(t, d, filepath.Join(dir, "topology.yaml"),
		"number: 1}", "number: 2}",
		"  - name: transfer\n", "  - name: transfer\n    receipts: transfer-receipts\n",
		"  - name: directed\n", "  - name: transfer-receipts\n    at_budget: gap\n    route: local\n  - name: directed\n",
		"  - name: transfer-credit\n", "  - name: transfer-told\n    topics: [transfer-receipts]\n  - name: transfer-credit\n")
	const n = 5
	for i := range n {
		must(t, d.env(), "publish", "--zone", "rz02", "--topic", "transfer", "--property", "userId=1065", fmt.Sprintf("transfer %d", i))
	}
	must(t, d.env(), "consume", "--zone", "rz04", "--topic", "transfer", "--group", "transfer-credit", "--count", fmt.Sprint(n))
	d.stop(t, time.Minute)
	d = startDev(t, dir, offset, nil)

	// A consumer that pulls finds the receipts, and its offset outlives a restart.
	told := map[string]int{}
	pulled := pullAll(t, d, func(body []byte) {
		var r broker.Receipt
		if err := json.Unmarshal(body, &r); err != nil || r.Topic != "transfer" || r.Zone != "rz04" || r.City != "hangzhou" {
			t.Fatalf("receipt %s: %v", body, err)
		}
		for _, raw := range r.Messages {
			var m broker.ReceiptMessage
			if err := json.Unmarshal(raw, &m); err != nil || m.Outcome != broker.ReceiptAcked || !slices.Equal(m.Groups, []broker.ReceiptGroup{{Group: "transfer-credit", Outcome: broker.ReceiptAcked}}) {
				t.Fatalf("receipt %s: %v", raw, err)
			}
			told[m.ID]++
		}
	}, func() bool { return len(told) == n })
	for id, times := range told {
		if times != 1 {
			t.Errorf("message %s has %d receipts", id, times)
		}
		if out := must(t, d.env(), "message", "find", id); !strings.Contains(out, "rz04") {
			t.Errorf("message find %s says\n%s", id, out)
		}
	}
	d.stop(t, time.Minute)
	d = startDev(t, dir, offset, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := newPuller(ctx, t, d)
	defer c.Close()
	for q, want := range pulled {
		if got, err := c.Offset(ctx, q.find(ctx, t, c)); err != nil || got != want {
			t.Errorf("queue %+v: offset %d, %v after a restart, want %d", q, got, err, want)
		}
	}
	d.stop(t, time.Minute)
}

// queueKey names a queue over restarts.
type queueKey struct {
	broker string
	id     int32
}

func (k queueKey) find(ctx context.Context, t *testing.T, c *rocketmqclient.PullConsumer) rocketmqclient.Queue {
	t.Helper()
	queues, err := c.Queues(ctx, "transfer-receipts")
	i := slices.IndexFunc(queues, func(q rocketmqclient.Queue) bool { return q.Broker == k.broker && q.ID == k.id })
	if err != nil || i < 0 {
		t.Fatalf("queues %+v, %v", queues, err)
	}
	return queues[i]
}

func newPuller(ctx context.Context, t *testing.T, d *deployment) *rocketmqclient.PullConsumer {
	t.Helper()
	c, err := rocketmqclient.NewPullConsumer(ctx, rocketmqclient.Config{Endpoint: d.addr(8083)}, "transfer-told", "transfer-receipts")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pullAll reads the receipts in zone rz02 from the beginning until enough says so, sets
// the group's offsets behind them, and returns these.
func pullAll(t *testing.T, d *deployment, use func(body []byte), enough func() bool) map[queueKey]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := newPuller(ctx, t, d)
	defer c.Close()
	queues, err := c.Queues(ctx, "transfer-receipts")
	if err != nil || len(queues) == 0 {
		t.Fatalf("queues %v, %v", queues, err)
	}
	next := map[queueKey]int64{}
	for !enough() {
		for _, q := range queues {
			k := queueKey{q.Broker, q.ID}
			got, err := c.Pull(ctx, q, next[k], 32, "transfer", 100*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range got.Messages {
				use(m.Body)
			}
			next[k] = got.Next
		}
	}
	for _, q := range queues {
		k := queueKey{q.Broker, q.ID}
		if err := c.SetOffset(ctx, q, next[k]); err != nil {
			t.Fatal(err)
		}
		if end, err := c.FindOffset(ctx, q, rocketmqpb.QueryOffsetPolicy_END, time.Time{}); err != nil || end != next[k] {
			t.Errorf("queue %+v ends at %d, %v; read up to %d", k, end, err, next[k])
		}
		var refused *rocketmqclient.StatusError
		if _, err := c.Pull(ctx, q, next[k]+1, 1, "", 0); !errors.As(err, &refused) || refused.Code != rocketmqpb.Code_ILLEGAL_OFFSET {
			t.Errorf("a pull behind the end: %v", err)
		}
	}
	return next
}

// changeTopology edits the file of a running deployment and waits until all nodes
// follow it.
func changeTopology(t *testing.T, d *deployment, file string, oldnew ...string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(string(text), oldnew[i]) {
			t.Fatalf("the topology has no %q", oldnew[i])
		}
		text = []byte(strings.Replace(string(text), oldnew[i], oldnew[i+1], 1))
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	type status struct {
		Topology struct {
			Epoch string `json:"epoch"`
		} `json:"topology"`
	}
	eventually(t, "the topology is followed", time.Minute, func() error {
		for _, s := range decode[[]status](t, must(t, d.env(), "status", "-o", "json")) {
			if s.Topology.Epoch != "1.2" {
				return errors.New(s.Topology.Epoch)
			}
		}
		return nil
	})
}
