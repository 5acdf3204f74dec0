package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDeadLettersAreReplayed has a consumer give messages up, and brings them
// back, some before and some after a restart: each comes once.
func TestDeadLettersAreReplayed(t *testing.T) {
	dir, offset := filepath.Join(t.TempDir(), "dev"), offsetFor(t)
	d := startDev(t, dir, offset, nil)
	impatient(t, d, filepath.Join(dir, "topology.yaml"))
	type letter struct {
		MessageID string `json:"message_id"`
		Group     string `json:"group"`
		Replayed  bool   `json:"replayed"`
		Body      []byte `json:"body"`
	}
	const n = 5
	for i := range n {
		must(t, d.env(), "publish", "--zone", "rz02", "--topic", "orders", "--property", "n=1", fmt.Sprintf("order %d", i))
	}
	must(t, d.env(), "consume", "--zone", "rz02", "--topic", "orders", "--group", "orders-billing", "--no-ack", "--invisible", "10s", "--count", fmt.Sprint(n))
	var letters []letter
	eventually(t, "the messages are dead letters", time.Minute, func() error {
		letters = decode[[]letter](t, must(t, d.env(), "dlq", "show", "--group", "orders-billing", "-o", "json"))
		if len(letters) != n || letters[0].Group != "orders-billing" || letters[0].Replayed {
			return fmt.Errorf("%+v", letters)
		}
		return nil
	})
	if out := must(t, d.env(), "dlq", "list"); !strings.Contains(out, "orders-billing") || !strings.Contains(out, "consumer 5") {
		t.Errorf("dlq list says\n%s", out)
	}
	if out := must(t, d.env(), "dlq", "show", letters[2].MessageID, "--body"); out != string(letters[2].Body) {
		t.Errorf("the body is %q, want %q", out, letters[2].Body)
	}
	if out := must(t, d.env(), "dlq", "replay", "--group", "orders-billing", "--preview"); !strings.Contains(out, "5 would be replayed") {
		t.Errorf("the preview says\n%s", out)
	}
	if out := must(t, d.env(), "dlq", "replay", "--group", "orders-billing", "--property", "n=1", "--id", letters[3].MessageID, "--preview"); !strings.Contains(out, "1 would be replayed") {
		t.Errorf("the preview of one says\n%s", out)
	}
	if out := must(t, d.env(), "dlq", "list", "--property", "n=2"); !strings.Contains(out, "no dead letters") {
		t.Errorf("dlq list with a property that none has says\n%s", out)
	}
	must(t, d.env(), "dlq", "replay", letters[0].MessageID)
	must(t, d.env(), "dlq", "replay", "--group", "orders-billing", "--limit", "1", "--rate", "100")
	d.stop(t, time.Minute)
	d = startDev(t, dir, offset, nil)
	if out := must(t, d.env(), "dlq", "replay", letters[0].MessageID); !strings.Contains(out, "0 replayed, 1 already replayed") {
		t.Errorf("the second replay after a restart says\n%s", out)
	}
	if out := must(t, d.env(), "dlq", "replay", "--group", "orders-billing"); !strings.Contains(out, "3 replayed") {
		t.Errorf("the rest: \n%s", out)
	}
	out := must(t, d.env(), "consume", "--zone", "rz02", "--topic", "orders", "--group", "orders-billing", "--count", fmt.Sprint(n))
	for i := range n {
		if c := strings.Count(out, fmt.Sprintf("order %d\n", i)); c != 1 {
			t.Errorf("order %d came back %d times:\n%s", i, c, out)
		}
	}
	if out := must(t, d.env(), "dlq", "list"); !strings.Contains(out, "no dead letters") {
		t.Errorf("afterwards dlq list says\n%s", out)
	}
	if found := must(t, d.env(), "message", "find", letters[0].MessageID); !strings.Contains(found, "dead letter, replayed in rz02") || !strings.Contains(found, "replayed in rz02, shanghai") {
		t.Errorf("message find says\n%s", found)
	}
	d.stop(t, time.Minute)
}

// impatient has the running deployment give a message up after one attempt.
func impatient(t *testing.T, d *deployment, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.NewReplacer("max_attempts: 16", "max_attempts: 1", "number: 1}", "number: 2}").Replace(string(text))
	if changed == string(text) {
		t.Fatal("the topology has nothing to change")
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
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
