package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// flowTo returns a channel's flow to a city as `mqrouter status` tells it.
func flowTo(t *testing.T, env []string, channel, city string) (admin.Flow, error) {
	t.Helper()
	out, _ := mqrouter(t, env, "status", "-o", "json") // fails while a node is down
	var all []admin.Status
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return admin.Flow{}, err
	}
	for _, s := range all {
		for _, f := range s.Flows {
			if f.Target == channel && f.City == city && s.Node == "rz-a-1" {
				return f, nil
			}
		}
	}
	return admin.Flow{}, fmt.Errorf("no flow of %s to %s", channel, city)
}

// TestBudgetsOfADeadCity fills the budgets of a city whose broker is down, with
// each of the three choices, and reads what became of it from status, as an
// operator would; then the city comes back.
func TestBudgetsOfADeadCity(t *testing.T) {
	c := newCluster(t)
	var topics strings.Builder
	topics.WriteString("\ntopics:\n")
	for _, end := range []string{"refuse", "gap", "compact"} {
		fmt.Fprintf(&topics, "  - {name: m-%s, budget: 64KiB, at_budget: %s, max_body: 16KiB, route: {broadcast: city}}\n", end, end)
	}
	text := strings.Replace(readFile(t, c.topology()), "\ntopics:\n", topics.String(), 1)
	if err := os.WriteFile(c.topology(), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for name := range c.nodes {
		if name != "cz-b-1" {
			c.up(name)
		}
	}
	for _, name := range []string{"rz-a-1", "cz-a-1"} {
		c.ready(name)
	}
	env := []string{"MQROUTER_ADMIN=" + c.nodes["rz-a-1"].admin}
	const n = 200
	send := func(end string, i int) error {
		p, err := rocketmqclient.NewProducer(t.Context(), rocketmqclient.Config{Endpoint: c.nodes["rz-a-1"].client, RequestTimeout: 5 * time.Second}, "m-"+end)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for ; i < n; i++ {
			m := &rocketmqclient.Message{Topic: "m-" + end, Body: make([]byte, 1<<10), Keys: []string{fmt.Sprint("k", i%8)},
				Properties: map[string]string{"mqr.op": "set", "mqr.version": fmt.Sprint(i + 1)}}
			if _, err := p.Send(context.WithoutCancel(t.Context()), m); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}
		return nil
	}
	if err := send("refuse", 0); err == nil || !strings.Contains(err.Error(), "budget") {
		t.Fatalf("a full budget that is to refuse: %v", err)
	}
	if err := errors.Join(send("gap", 0), send("compact", 0)); err != nil {
		t.Fatalf("a full budget that is to make room: %v", err)
	}
	for end, ok := range map[string]func(f admin.Flow) bool{
		"refuse":  func(f admin.Flow) bool { return f.Lost == 0 && f.Compacted == 0 && f.Backlog > 30 },
		"gap":     func(f admin.Flow) bool { return f.Lost > 100 && f.Untold == f.Lost && f.Backlog == n },
		"compact": func(f admin.Flow) bool { return f.Lost == 0 && f.Compacted > 100 && f.Backlog == n },
	} {
		eventually(t, "status tells of "+end, time.Minute, func() error {
			f, err := flowTo(t, env, "m-"+end, "city-b")
			if err == nil && (!ok(f) || len(f.Budgets) != 1 || f.Budgets[0].End != end || f.Budgets[0].Limit != 64<<10) {
				err = fmt.Errorf("%+v", f)
			}
			return err
		})
	}
	if out, _ := mqrouter(t, env, "status"); !strings.Contains(out, "of m-refuse (refuse)") || !strings.Contains(out, "of m-gap (gap)") {
		t.Fatalf("status does not tell how full the budgets are:\n%s", out)
	}
	c.up("cz-b-1")
	c.ready("cz-b-1")
	for _, end := range []string{"refuse", "gap", "compact"} {
		eventually(t, "the city catches up on "+end, time.Minute, func() error {
			f, err := flowTo(t, env, "m-"+end, "city-b")
			if err == nil && (f.Backlog > 0 || f.Untold > 0) {
				err = fmt.Errorf("%+v", f)
			}
			return err
		})
	}
	if err := send("refuse", n-5); err != nil {
		t.Fatalf("after the backlog has drained: %v", err)
	}
}
