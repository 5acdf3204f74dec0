package e2e

import (
	"encoding/json"
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
	if out := w.mustGroup("status", "rz-a-g"); !strings.Contains(out, "keeps 20 messages of 1 tail") {
		t.Errorf("the status says\n%s", out)
	}
	return list[0].ID
}
