package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestOperatorsDecideAboutWaitingMessages lists delayed and half messages, drops,
// commits and rolls back some by order of an operator, and restarts: what is ordered
// holds, and message find says who ordered it and why.
func TestOperatorsDecideAboutWaitingMessages(t *testing.T) {
	dir, offset := filepath.Join(t.TempDir(), "dev"), offsetFor(t)
	d := startDev(t, dir, offset, nil)
	run := func(args ...string) string { return must(t, d.env(), append([]string{"waiting"}, args...)...) }
	for i := range 4 {
		must(t, d.env(), "publish", "--zone", "rz02", "--topic", "reminders", "--property", "memberId=20", "--delay", "1h", fmt.Sprintf("reminder %d", i))
	}
	halves(t, d, 3)
	type message struct {
		Kind      string `json:"kind"`
		Topic     string `json:"topic"`
		MessageID string `json:"message_id"`
	}
	delayed := decode[[]message](t, run("list", "--delayed", "-o", "json"))
	undecided := decode[[]message](t, run("list", "--undecided", "--topic", "payments", "-o", "json"))
	if len(delayed) != 4 || len(undecided) != 3 || delayed[0].Topic != "reminders" || undecided[0].Kind != "undecided" {
		t.Fatalf("waiting: %+v, %+v", delayed, undecided)
	}
	if out := run("drop", "--topic", "reminders", "--preview"); !strings.Contains(out, "reminders") || !strings.Contains(out, "nothing was done") {
		t.Errorf("the preview says\n%s", out)
	}
	if out, err := mqrouter(t, d.env(), "waiting", "drop", "--topic", "reminders", "--reason", "e2e"); err == nil || !strings.Contains(err.Error(), "4 messages dropped for ever") {
		t.Errorf("a drop without --yes: %v\n%s", err, out)
	}
	if out := run("drop", delayed[1].MessageID, "--reason", "ticket 42", "--yes"); !strings.Contains(out, "1 dropped") {
		t.Errorf("the drop of one says\n%s", out)
	}
	if out := run("commit", undecided[0].MessageID, "--reason", "ticket 43", "--yes"); !strings.Contains(out, "1 committed") {
		t.Errorf("the commit says\n%s", out)
	}
	if out := run("rollback", "--topic", "payments", "--reason", "ticket 44", "--yes", "--rate", "100"); !strings.Contains(out, "2 rolled back") {
		t.Errorf("the rollback says\n%s", out)
	}
	d.stop(t, time.Minute)
	d = startDev(t, dir, offset, nil)
	if left := decode[[]message](t, run("list", "-o", "json")); len(left) != 3 || left[0].Topic != "reminders" {
		t.Errorf("after a restart there wait %+v", left)
	}
	for id, says := range map[string]string{
		delayed[1].MessageID:   "dropped by order of",
		undecided[0].MessageID: "committed by order of",
		undecided[1].MessageID: "rolled back by order of",
	} {
		if out := must(t, d.env(), "message", "find", id); !strings.Contains(out, says) || !strings.Contains(out, "ticket 4") {
			t.Errorf("find says\n%s, want %q", out, says)
		}
	}
	type status struct {
		Decided struct {
			Committed  int `json:"committed"`
			RolledBack int `json:"rolled_back"`
		} `json:"decided"`
	}
	committed, rolledBack := 0, 0
	for _, s := range decode[[]status](t, must(t, d.env(), "status", "-o", "json")) {
		committed, rolledBack = committed+s.Decided.Committed, rolledBack+s.Decided.RolledBack
	}
	if committed != 1 || rolledBack != 2 {
		t.Errorf("%d committed and %d rolled back; want 1 and 2", committed, rolledBack)
	}
	d.stop(t, time.Minute)
}

// halves sends half messages, and leaves.
func halves(t *testing.T, d *deployment, n int) {
	t.Helper()
	p, err := rocketmqclient.NewProducer(t.Context(), rocketmqclient.Config{Endpoint: d.addr(8082)}, "payments")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for i := range n {
		m := &rocketmqclient.Message{Topic: "payments", Body: fmt.Appendf(nil, "payment %d", i), Type: pb.MessageType_TRANSACTION, Properties: map[string]string{"payerId": "20"}}
		if res, err := p.Send(t.Context(), m); err != nil || res.Err != nil || res.TransactionID == "" {
			t.Fatalf("half message: %+v, %v", res, err)
		}
	}
}
