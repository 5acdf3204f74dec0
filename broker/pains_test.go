package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// One thread takes a batch and needs nearly the whole invisible time for it: each
// acknowledgement comes before its own deadline, so nothing comes twice. Those that
// came too late are the only ones that come again.
func TestQ11_SlowConsumerSeesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		defer s.Close()
		ids := s.publishN("orders", "m", 32)
		got := map[string]int{}
		list := s.receive(billing, "orders", 32, 33*time.Second)
		for _, d := range list {
			time.Sleep(time.Second)
			s.ack(billing, d)
			got[string(d.Record.MessageID())]++
			for _, other := range s.receive(billing, "orders", 32, time.Minute) { // a second consumer of the group
				got[string(other.Record.MessageID())]++
			}
		}
		time.Sleep(time.Hour)
		s.restart()
		for id, n := range s.drain(billing, "orders") {
			got[id] += n
		}
		wantOnce(t, got, ids)
	})
}

// Deadlines count from the receive, not from when the message was stored or from
// what its producer's clock said.
func TestC4_ProducersClocksMoveNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		defer s.Close()
		skews := map[string]time.Duration{"fast": 5 * time.Minute, "slow": -5 * time.Minute, "broken": -50 * 365 * 24 * time.Hour}
		for id, skew := range skews {
			m := s.message("orders", id)
			m.Born = time.Now().Add(skew)
			s.publish(m)
		}
		list := s.receive(billing, "orders", 10, 30*time.Second)
		if len(list) != len(skews) {
			t.Fatalf("%d messages at once, want %d", len(list), len(skews))
		}
		for _, d := range list {
			if want := time.Now().Add(skews[string(d.Record.MessageID())]); d.Record.Born().UnixMilli() != want.UnixMilli() {
				t.Errorf("born %v, sent %v", d.Record.Born(), want)
			}
		}
		time.Sleep(30*time.Second - time.Millisecond)
		if early := s.receive(billing, "orders", 10, time.Minute); len(early) != 0 {
			t.Errorf("%d messages came again before their deadline", len(early))
		}
		time.Sleep(2 * time.Millisecond)
		if again := s.receive(billing, "orders", 10, time.Minute); len(again) != len(skews) {
			t.Errorf("%d messages came again, want %d", len(again), len(skews))
		}
	})
}

// A consumer gives messages back while nothing can be written: they stay, come
// again with their attempts counted, and are settled once there is room.
func TestL9_NegativeAckOnAFullDiskKeepsTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", sample(t), testLimits())
		defer s.Close()
		ids := s.publishN("orders", "m", 10)
		mem.SetLimit(1)
		for round := range 3 {
			list := s.receive(billing, "orders", 32, time.Hour)
			if len(list) != len(ids) {
				t.Fatalf("round %d: %d messages, want %d", round, len(list), len(ids))
			}
			for _, d := range list {
				if d.Attempt != round+1 {
					t.Errorf("attempt %d in round %d", d.Attempt, round)
				}
				if _, err := s.ChangeInvisible(t.Context(), billing, "orders", d.Handle, time.Second); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
		}
		mem.SetLimit(0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantOnce(t, s.drain(billing, "orders"), ids)
		s.restart()
		if again := s.drain(billing, "orders"); len(again) != 0 {
			t.Errorf("after a restart came %v", again)
		}
	})
}
