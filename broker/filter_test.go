package broker

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker/filter"
	"github.com/mqrouter/mqrouter/internal/disk"
)

func sqlFilter(t *testing.T, expression string) Filter {
	t.Helper()
	e, err := filter.Compile(expression)
	if err != nil {
		t.Fatal(err)
	}
	return Filter{SQL: e}
}

// TestSQLFilterSettlesWhatItExcludes: as a tag filter does, for the group that asks
// and through a restart; what it lets through stays the group's.
func TestSQLFilterSettlesWhatItExcludes(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	for i := range 6 {
		m := s.message("orders", strconv.Itoa(i), "amount", strconv.Itoa(i*10))
		if i%2 == 1 {
			m.Tag = "odd"
		}
		s.publish(m)
	}
	r := ReceiveRequest{Group: "orders-billing", Topic: "orders", Filter: sqlFilter(t, "amount > 15 AND (TAGS IS NULL OR TAGS <> 'even')"), Max: 10, Invisible: time.Hour}
	list, err := s.Receive(t.Context(), r)
	if err != nil || len(list) != 4 {
		t.Fatalf("%d messages, %v; want those of 20 and more", len(list), err)
	}
	s.ack("orders-billing", list...)
	s.restart()
	if got := s.drain("orders-billing", "orders"); len(got) != 0 {
		t.Fatalf("%v came although excluded or acknowledged", got)
	}
}

// TestSQLFilterEndsWithItsCall: a filter that lets nothing through costs a read of
// the log for each message, and none once its caller has gone.
func TestSQLFilterEndsWithItsCall(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.publishN("orders", "m", 100)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := ReceiveRequest{Group: "orders-billing", Topic: "orders", Filter: sqlFilter(t, "a = 'never'"), Max: 1, Invisible: time.Minute, Wait: time.Hour}
	if _, err := s.Receive(ctx, r); !errors.Is(err, context.Canceled) {
		t.Fatalf("a call that is over: %v", err)
	}
	h := s.handsOf(subKey{"orders-billing", "orders"})
	if left := h.disp.Stats().Fresh; left != 100 {
		t.Fatalf("%d of 100 messages are left: a call that was over went on", left)
	}
	r.Wait = 0
	if list, err := s.Receive(t.Context(), r); err != nil || len(list) != 0 || h.disp.Stats().Fresh != 0 {
		t.Fatalf("%d messages, %v, %d left", len(list), err, h.disp.Stats().Fresh)
	}
}
