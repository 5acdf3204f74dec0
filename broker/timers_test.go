package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// delayed is the sample in which orders and transfer are topics of delayed messages.
func delayed(t testing.TB, edits ...string) *zone.Topology {
	t.Helper()
	return sample(t, append([]string{"  - name: orders\n", "  - name: orders\n    kind: delay\n",
		"  - name: transfer\n", "  - name: transfer\n    kind: delay\n"}, edits...)...)
}

// later makes a message that is due in a while.
func (s *station) later(topic zone.Topic, id string, in time.Duration, properties ...string) Message {
	m := s.message(topic, id, properties...)
	m.DeliverAt = s.clock.Now().Add(in)
	return m
}

// arrival is a message in a queue.
type arrival struct {
	count     int
	deliverAt time.Time
	stored    time.Time // of the first
}

// arrived returns what is in the queues of a topic, whoever consumed it: what a
// message was delivered to.
func (s *station) arrived(topic zone.Topic) map[string]arrival {
	s.t.Helper()
	s.mu.RLock()
	defer s.mu.RUnlock()
	got := map[string]arrival{}
	t := s.state.topics[topic]
	if t == nil {
		return got
	}
	for _, q := range t.queues {
		for i := q.index.First(); i < q.index.Next(); i++ {
			e, err := q.index.Get(i)
			if err != nil {
				s.t.Fatal(err)
			}
			v, err := s.readRecord(e)
			if errors.Is(err, commitlog.ErrTrimmed) {
				continue
			}
			if err != nil {
				s.t.Fatal(err)
			}
			a := got[string(v.MessageID())]
			if a.count++; a.count == 1 {
				a.deliverAt, a.stored = v.DeliverAt(), v.Stored()
			}
			got[string(v.MessageID())] = a
		}
	}
	return got
}

// wantArrived fails unless each id arrived once, and not early.
func (s *station) wantArrived(topic zone.Topic, ids ...string) {
	s.t.Helper()
	got := s.arrived(topic)
	for _, id := range ids {
		if a := got[id]; a.count != 1 {
			s.t.Errorf("message %s arrived %d times, want once", id, a.count)
		} else if a.stored.Before(a.deliverAt) {
			s.t.Errorf("message %s arrived %s early", id, a.deliverAt.Sub(a.stored))
		}
	}
	if len(got) != len(ids) {
		s.t.Errorf("%d messages arrived, want %d", len(got), len(ids))
	}
}

// A delayed message falls due to 100 ms, whatever the delay, and is as it was
// published.
func TestDelayedMessagesArriveInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.TrimEvery = time.Hour
		s := open(t, disk.NewMem(), "rz02-a-1", delayed(t), limits)
		defer func() { s.Close() }()
		delays := []time.Duration{7*time.Millisecond + 1, time.Second, 90 * time.Second, time.Hour - time.Second,
			time.Hour, 25*time.Hour + 1234567*time.Nanosecond, 30 * 24 * time.Hour}
		var ids []string
		for i, d := range delays {
			m := s.later("orders", fmt.Sprint(i), d, "k", "v")
			m.Tag, m.Keys = "t", []string{"a"}
			if r := s.publish(m)[0]; r.Recall == "" || r.Offset != -1 || r.Level != LevelWaiting {
				t.Fatalf("result %+v, want a recall handle and no offset", r)
			}
			ids = append(ids, m.ID)
		}
		began := time.Now()
		for i, d := range delays {
			if far := d - time.Hour; far > 48*time.Hour {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Until(began.Add(far))) // most of the month it is down
				s.start()
			}
			time.Sleep(time.Until(began.Add(d - time.Nanosecond)))
			synctest.Wait()
			if n := len(s.arrived("orders")); n != i {
				t.Fatalf("%d messages %s after their publish, want %d", n, time.Since(began), i)
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if n := len(s.arrived("orders")); n != i+1 {
				t.Fatalf("%d messages 100ms after %s, want %d: %+v", n, d, i+1, s.Status().Timers)
			}
			list := s.receive("orders-billing", "orders", 10, time.Minute)
			if len(list) != 1 {
				t.Fatalf("%d deliveries, want 1", len(list))
			}
			var r record.Record
			if err := list[0].Record.Decode(&r); err != nil {
				t.Fatal(err)
			}
			if r.MessageID != ids[i] || r.Tag != "t" || len(r.Keys) != 1 || len(r.Properties) != 1 || string(r.Body) != "body of "+ids[i] ||
				r.DeliverAt.Sub(began.Add(d)).Abs() >= time.Millisecond || r.Kind != zone.KindDelay {
				t.Fatalf("received %+v", r)
			}
			s.ack("orders-billing", list...)
		}
		s.wantArrived("orders", ids...)
		if st := s.Status().Timers; st.Pending != 0 || st.Buckets > 1 {
			t.Errorf("status %+v, want nothing pending and at most the last hour", st)
		}
	})
}

func TestDeliveryTimesAreJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.MaxTimers = 3
		s := open(t, disk.NewMem(), "rz02-a-1", delayed(t, "    kind: delay\n", "    kind: delay\n    max_delay: 2h\n"), limits)
		defer s.Close()
		try := func(m Message) PublishResult {
			out := make([]PublishResult, 1)
			if err := s.Publish(t.Context(), []Message{m}, out); err != nil {
				t.Fatal(err)
			}
			return out[0]
		}
		if r := try(s.later("orders", "far", 2*time.Hour+time.Millisecond)); KindOf(r.Err) != KindDeliveryTime || !strings.Contains(r.Err.Error(), "2h") {
			t.Errorf("beyond max_delay: %v", r.Err)
		}
		if r := try(s.later("transfer", "not far", 29*24*time.Hour, "userId", "50")); r.Err != nil {
			t.Errorf("below the default of 30 days: %v", r.Err)
		}
		if r := try(s.later("ledger", "normal", time.Second)); KindOf(r.Err) != KindUnsupported {
			t.Errorf("on a topic of another kind: %v", r.Err)
		}
		// What is past, and what has no delivery time, is delivered at once.
		for id, m := range map[string]Message{"past": s.later("orders", "past", -time.Hour), "now": s.message("orders", "now")} {
			if r := try(m); r.Err != nil || r.Recall != "" || r.Offset < 0 || r.Level != LevelStored {
				t.Errorf("%s: %+v", id, r)
			}
		}
		if got := s.arrived("orders"); got["past"].count != 1 || got["now"].count != 1 || got["past"].deliverAt.IsZero() {
			t.Errorf("arrived: %+v", got)
		}
		try(s.later("orders", "two", time.Hour))
		try(s.later("orders", "three", time.Hour))
		var e *Error
		if r := try(s.later("orders", "four", time.Hour)); !errors.As(r.Err, &e) || e.Kind != KindBusy || !e.Retryable() {
			t.Errorf("beyond the limit: %v", r.Err)
		}
		time.Sleep(61 * time.Minute)
		synctest.Wait()
		if r := try(s.later("orders", "four", time.Hour)); r.Err != nil {
			t.Errorf("when there is room again: %v", r.Err)
		}
		s.wantArrived("orders", "past", "now", "two", "three")
	})
}

// A delayed message of a buffered topic is durable before it is acknowledged: its
// handle names where it waits.
func TestDelayedMessagesAreNotBuffered(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", delayed(t, "    kind: delay\n", "    kind: delay\n    durability: buffered\n"), testLimits())
	if r := s.publish(s.later("orders", "a", time.Hour))[0]; r.Level != LevelWaiting || r.Recall == "" {
		t.Fatalf("result %+v, want waiting, with a handle", r)
	}
	if r := s.publish(s.message("orders", "b"))[0]; r.Level != LevelAccepted {
		t.Fatalf("result %+v, want accepted", r)
	}
}

// recall recalls and returns the kind of the error, 0 for success.
func (s *station) recall(topic zone.Topic, handle string) Kind {
	s.t.Helper()
	_, err := s.Recall(s.t.Context(), topic, handle)
	if err != nil && KindOf(err) == 0 {
		s.t.Fatal(err)
	}
	return KindOf(err)
}

func TestRecallTakesAMessageBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", delayed(t), testLimits())
		defer func() { s.Close() }()
		out := s.publish(s.later("orders", "recalled", time.Minute), s.later("orders", "delivered", time.Minute), s.later("orders", "waits", time.Hour))
		id, err := s.Recall(t.Context(), "orders", out[0].Recall)
		if err != nil || id != "recalled" {
			t.Fatalf("recall: %q, %v", id, err)
		}
		s.restart()
		if k := s.recall("orders", out[0].Recall); k != 0 {
			t.Errorf("a repeated recall: %s, want success", k)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if k := s.recall("orders", out[1].Recall); k != KindSettled {
			t.Errorf("a recall after it fell due: %s, want %s", k, KindSettled)
		}
		if k := s.recall("transfer", out[2].Recall); k != KindRecallHandle {
			t.Errorf("a handle of another topic: %s", k)
		}
		flip := []byte(out[2].Recall)
		flip[20] ^= 1
		for _, h := range []string{"", "x", strings.Repeat("A", 5000), string(flip), out[2].Recall + "A", out[2].Recall[:40]} {
			if k := s.recall("orders", h); k != KindRecallHandle {
				t.Errorf("handle %.50q: %s", h, k)
			}
		}
		other := open(t, disk.NewMem(), "rz02-a-1", s.topo, testLimits()) // a store made anew
		defer other.Close()
		if k := other.recall("orders", out[2].Recall); k != KindRecallHandle {
			t.Errorf("a handle of a former store: %s", k)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		s.wantArrived("orders", "delivered", "waits")
		if c := s.Status().Counts; c.Fired != 2 || c.Recalled != 1 {
			t.Errorf("counts %+v", c)
		}
	})
}

// Recalls that race with the delivery: whatever is answered is what happened.
func TestRecallRacesWithDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", delayed(t), testLimits())
		defer s.Close()
		var msgs []Message
		var want []string
		for i := range 500 {
			msgs = append(msgs, s.later("orders", fmt.Sprint(i), time.Minute))
		}
		out := s.publish(msgs...)
		time.Sleep(time.Minute)
		kinds := make([]Kind, len(out))
		for i := range out { // beside the due loop
			kinds[i] = s.recall("orders", out[i].Recall)
		}
		synctest.Wait()
		for i, k := range kinds {
			switch k {
			case 0:
			case KindSettled:
				want = append(want, msgs[i].ID)
			default:
				t.Fatalf("recall: %s", k)
			}
		}
		s.wantArrived("orders", want...)
	})
}

// A delayed message for another city waits where it was published.
func TestDelayedMessageTravelsWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, delayed(t), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		m := from.later("transfer", "m", time.Hour, "userId", "50")
		if r := from.publish(m)[0]; r.Level != LevelWaiting || r.Destination.Group.Name != "rz03-a" {
			t.Fatalf("result %+v", r)
		}
		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		if out := from.Status().Outgoing; len(out) != 0 || len(to.arrived("transfer")) != 0 {
			t.Fatalf("before it is due: %+v", out)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		to.wantArrived("transfer", "m")
		if got := to.arrived("transfer")["m"]; !got.deliverAt.Equal(m.DeliverAt) {
			t.Errorf("delivery time %s, want %s", got.deliverAt, m.DeliverAt)
		}
		list := to.receive("transfer-credit", "transfer", 10, time.Minute)
		if len(list) != 1 {
			t.Fatalf("%d deliveries, want 1", len(list))
		}
		found, err := from.FindMessage(t.Context(), "m")
		if err != nil || len(found) != 2 || found[0].Waits || found[0].DeliverAt.IsZero() || found[1].Flow.Target != "rz03-a" {
			t.Errorf("found %+v, %v", found, err)
		}
	})
}

// A recall reaches the group that holds the message, whichever broker of the zone is
// asked.
func TestRecallAtAnotherBrokerOfTheZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := delayed(t)
		a, b := open(t, disk.NewMem(), "rz01-a-1", topo, testLimits()), open(t, disk.NewMem(), "rz01-b-1", topo, testLimits())
		defer a.Close()
		defer b.Close()
		out := a.publish(a.later("orders", "x", time.Minute), a.later("orders", "y", time.Minute))
		if k := b.recall("orders", out[0].Recall); k != KindUnavailable {
			t.Fatalf("nobody can be asked: %s, want %s", k, KindUnavailable)
		}
		b.SetCaller(zoneOf{"rz01-a": a.Broker})
		if id, err := b.Recall(t.Context(), "orders", out[0].Recall); err != nil || id != "x" {
			t.Fatalf("recall: %q, %v", id, err)
		}
		if k := b.recall("transfer", out[1].Recall); k != KindRecallHandle {
			t.Errorf("of another topic: %s", k)
		}
		other := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
		defer other.Close()
		if k := other.recall("orders", out[1].Recall); k != KindRecallHandle {
			t.Errorf("of another zone: %s", k)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if k := b.recall("orders", out[1].Recall); k != KindSettled {
			t.Errorf("too late: %s, want %s", k, KindSettled)
		}
		a.wantArrived("orders", "y")
	})
}

// TestLateRecallReadsNoOtherMessages recalls a message that fell due, in an hour with
// many that were appended again: what that costs does not grow with them.
func TestLateRecallReadsNoOtherMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 500
		s, counter := openTapped(t, disk.NewMem(), "rz02-a-1", delayed(t), testLimits())
		defer s.Close()
		var msgs []Message
		for i := range others {
			msgs = append(msgs, s.later("orders", fmt.Sprint(i), 50*time.Minute+time.Duration(i)*time.Millisecond))
		}
		out := s.publish(msgs...)
		late := s.publish(s.later("orders", "late", time.Minute))[0].Recall
		bucket := s.state.timers.list[0]
		move, _, err := s.straysOf(bucket, 0, s.log.Committed(), others)
		if err != nil || len(move) != others {
			t.Fatalf("%d messages to be carried, %v", len(move), err)
		}
		if err := s.carryTimers(t.Context(), move); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		counter.reads.Store(0)
		if k := s.recall("orders", late); k != KindSettled {
			t.Fatalf("recall of what fell due: %s", k)
		}
		if n := counter.reads.Load(); n > 0 {
			t.Errorf("the recall read %d entries of the log", n)
		}
		if k := s.recall("orders", out[7].Recall); k != 0 {
			t.Errorf("recall of a carried message: %s", k)
		}
		if n := counter.reads.Load(); n > 1 {
			t.Errorf("the recall of a carried message read %d entries of the log", n)
		}
	})
}
