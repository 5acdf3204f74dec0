package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// tail runs a tail command with the topology in force.
func (w *ward) tail(args ...string) (string, error) {
	w.t.Helper()
	env := []string{"MQROUTER_TOPOLOGY=" + w.topology(), "MQROUTER_ADMIN=" + w.nodes["cz-a-1"].admin}
	return mqrouter(w.t, env, append([]string{"tail"}, args...)...)
}

func (w *ward) mustTail(args ...string) string {
	w.t.Helper()
	out, err := w.tail(args...)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// tailTold checks that rz-a-1 keeps a tail with so many messages of the topic transfer,
// and returns its id.
func (w *ward) tailTold(t *testing.T, messages int) string {
	t.Helper()
	var list []admin.Tail
	if err := json.Unmarshal([]byte(w.mustTail("list", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Node != "rz-a-1" || list[0].Messages != messages || !list[0].Forced || len(list[0].Topics) != 1 || list[0].Topics[0].Topic != "transfer" {
		t.Fatalf("tails: %+v; want one of rz-a-1 with %d messages", list, messages)
	}
	if list[0].Certain < messages-1 { // of the last one it may not have heard that it was committed
		t.Errorf("%d of %d messages are known to have been acknowledged", list[0].Certain, messages)
	}
	var shown []admin.TailMessage
	if err := json.Unmarshal([]byte(w.mustTail("show", list[0].ID, "--limit", "1000", "-o", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	for _, m := range shown {
		if m.Topic != "transfer" || m.Kind != "message" || m.MessageID == "" || string(m.Body) != "only rz-a-1 has this" || m.Not != "" {
			t.Errorf("%+v", m)
		}
	}
	if len(shown) != messages {
		t.Errorf("%d messages are shown", len(shown))
	}
	if out := w.mustGroup("status", "rz-a-g"); !strings.Contains(out, "keeps 20 messages of 1 tail that the group has not: see mqrouter tail list; 20 of them wait to be offered again") {
		t.Errorf("the status says\n%s", out)
	}
	return list[0].ID
}

// consumed has the group credit consume so many messages of transfer, and returns how
// often each came, by id.
func (w *ward) consumed(node string, n int) map[string]int {
	w.t.Helper()
	type received struct {
		MessageID string `json:"message_id"`
	}
	ids := map[string]int{}
	for _, m := range jsonLines[received](w.t, must(w.t, nil, "consume", "--endpoint", w.nodes[node].client, "--topic", "transfer", "--group", "credit",
		"--count", fmt.Sprint(n), "--wait", "1m", "-o", "json")) {
		ids[m.MessageID]++
	}
	return ids
}

// tailCommands are the tail commands of the runbook's blocks, for this tail.
func (w *ward) tailCommands(t *testing.T, id string) (lines []string) {
	t.Helper()
	inside := false
	for line := range strings.Lines(readFile(t, filepath.Join(repoRoot(t), "deploy/runbook.md"))) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			inside = !inside
		} else if inside && strings.HasPrefix(line, "mqrouter tail ") {
			lines = append(lines, strings.ReplaceAll(line, "4-1048640-1050112", id))
		}
	}
	return lines
}

// tailOffered follows the runbook: the tail is offered, and offered again, each message
// comes to consumers once, but for those that they are known to have had, and the tail is
// dropped.
func (w *ward) tailOffered(t *testing.T, id string) {
	t.Helper()
	var shown []admin.TailMessage
	if err := json.Unmarshal([]byte(w.mustTail("show", id, "--limit", "1000", "-o", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{}
	for _, m := range shown {
		if len(m.SettledBy) == 0 {
			want[m.MessageID] = 1
		}
	}
	if had := len(shown) - len(want); had > 15 {
		t.Errorf("%d messages are said to have been settled", had)
	} else {
		t.Logf("consumers are known to have had %d of 15", had)
	}
	bin := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(bin, "mqrouter")); err != nil {
		t.Fatal(err)
	}
	lines := w.tailCommands(t, id)
	if len(lines) < 4 {
		t.Fatalf("the runbook has %q", lines)
	}
	run := &spoken{cluster: w.cluster, env: []string{"MQROUTER_TOPOLOGY=" + w.topology(), "MQROUTER_ADMIN=" + w.nodes["cz-a-1"].admin,
		"PATH=" + bin + ":" + os.Getenv("PATH")}}
	for _, line := range lines[:len(lines)-1] {
		run.run(line)
	}
	if out := w.mustTail("offer", id, "--reason", "once more", "--yes", "-o", "json"); !strings.Contains(out, `"offered before": 20`) {
		t.Errorf("offered again: %s", out)
	}
	var list []admin.Tail
	if err := json.Unmarshal([]byte(w.mustTail("list", "-o", "json")), &list); err != nil || len(list) != 1 {
		t.Fatalf("tails: %+v, %v", list, err)
	}
	if x := list[0]; x.Waiting != 0 || x.Offer == nil || x.Offer.Offered != 20 || x.Offer.Refused != 0 || x.Offer.Why != "once more" {
		t.Errorf("after the offer: %+v", x)
	}
	// What both have was consumed by the old master alone, and "after" by nobody.
	got := w.consumed("rz-a-2", len(want)+2)
	for _, m := range shown {
		if got[m.MessageID] != want[m.MessageID] {
			t.Errorf("%s came %d times; settled before by %v", m.MessageID, got[m.MessageID], m.SettledBy)
		}
	}
	if out, err := mqrouter(t, nil, "consume", "--endpoint", w.nodes["rz-a-2"].client, "--topic", "transfer", "--group", "credit", "--count", "1", "--wait", "2s"); err == nil {
		t.Errorf("one more came: %s", out)
	}
	run.run(lines[len(lines)-1])
	if out := w.mustTail("list"); !strings.Contains(out, "no node keeps a tail") {
		t.Errorf("after its drop: %s", out)
	}
}
