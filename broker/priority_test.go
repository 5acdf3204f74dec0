package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestPriorityGoesFirst publishes to a topic of four levels: the highest first, what
// is above them with them, equal ones as stored; retries stay in their level, also
// over a restart, and a dead letter keeps the priority.
func TestPriorityGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := sample(t,
			"  - name: orders\n    route: local\n", "  - name: orders\n    route: local\n  - name: urgent\n    kind: priority\n    queues: 4\n    route: local\n",
			"consumer_groups:\n", "consumer_groups:\n  - {name: urgent-worker, topics: [urgent], max_attempts: 2}\n")
		s := open(t, disk.NewMem(), "rz05-a-1", topo, testLimits())
		urgent := func(n int32, id string) Message {
			m := s.message("urgent", fmt.Sprintf("%d%s", n, id))
			m.Priority = n
			return m
		}
		bad := urgent(-1, "a")
		out := make([]PublishResult, 1)
		if err := s.Publish(t.Context(), []Message{bad}, out); err != nil || KindOf(out[0].Err) != KindInvalid {
			t.Fatalf("negative priority: %v, %v", err, out[0].Err)
		}
		s.publish(urgent(0, "a"), urgent(3, "a"), urgent(1, "a"), urgent(9, "a"), urgent(1, "b"))
		got := wantIDs(t, s.receive("urgent-worker", "urgent", 9, time.Minute), "3a 9a 1a 1b 0a")
		s.ack("urgent-worker", got[0], got[1], got[3])
		if p := got[1].Record.Priority(); p != 9 {
			t.Errorf("priority %d came as %d", 9, p)
		}
		s.restart()
		s.publish(urgent(0, "b"), urgent(1, "c"), urgent(2, "a"))
		time.Sleep(time.Minute)
		got = wantIDs(t, s.receive("urgent-worker", "urgent", 9, time.Minute), "2a 1a 1c 0a 0b")
		s.ack("urgent-worker", got[0], got[2], got[4])
		time.Sleep(2 * time.Minute)
		wantIDs(t, s.receive("urgent-worker", "urgent", 9, time.Minute), "")
		dead := wantIDs(t, s.receive("urgent-worker", DeadLetterTopic("urgent-worker"), 9, time.Minute), "1a 0a")
		if p := dead[0].Record.Priority(); p != 1 {
			t.Errorf("the dead letter has priority %d, want 1", p)
		}
	})
}
