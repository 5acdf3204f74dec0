package broker

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

func TestPublishedMessageIsReceivedAsItWas(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	m := s.message("orders", "m1", "b", "2", "a", "1")
	m.Tag, m.Keys, m.MessageGroup = "t", []string{"k1", "k2"}, "g"
	m.TraceContext, m.BornHost = "00-trace", "host"
	m.Digest = record.Digest{Type: 1, Checksum: "CAFE"}
	m.Encoding, m.Body = 2, []byte{0, 1, 2, 255}
	r := s.publish(m)[0]
	if r.Level != LevelStored || r.Offset != 0 {
		t.Fatalf("result %+v, want stored at offset 0", r)
	}
	list := s.receive("orders-billing", "orders", 10, time.Minute)
	if len(list) != 1 {
		t.Fatalf("%d messages, want 1", len(list))
	}
	d := list[0]
	var got record.Record
	if err := d.Record.Decode(&got); err != nil {
		t.Fatal(err)
	}
	switch {
	case got.MessageID != "m1", got.Tag != "t", len(got.Keys) != 2, got.MessageGroup != "g",
		got.TraceContext != "00-trace", got.BornHost != "host", got.Digest != m.Digest, got.Encoding != 2,
		!bytes.Equal(got.Body, m.Body), !got.Born.Equal(m.Born), d.Attempt != 1, d.Queue != r.Queue, d.Offset != r.Offset:
		t.Fatalf("received %+v in %+v", got, d)
	}
	if len(got.Properties) != 2 || got.Properties[0] != (record.Property{Key: "a", Value: "1"}) {
		t.Fatalf("properties %v", got.Properties)
	}
	s.ack("orders-billing", d)
	if again := s.receive("orders-billing", "orders", 10, time.Minute); len(again) != 0 {
		t.Fatalf("an acknowledged message came again")
	}
}

func TestReceiveWaitsForAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		got := make(chan []Delivery)
		go func() {
			list, _ := s.Receive(t.Context(), ReceiveRequest{Group: "orders-billing", Topic: "orders",
				Filter: Filter{All: true}, Max: 1, Invisible: time.Minute, Wait: time.Hour})
			got <- list
		}()
		synctest.Wait()
		s.publish(s.message("orders", "m1"))
		if list := <-got; len(list) != 1 {
			t.Fatalf("%d messages, want 1", len(list))
		}
		began := time.Now()
		list, err := s.Receive(t.Context(), ReceiveRequest{Group: "orders-billing", Topic: "orders",
			Filter: Filter{All: true}, Max: 1, Invisible: time.Minute, Wait: 20 * time.Second})
		if len(list) != 0 || err != nil || time.Since(began) != 20*time.Second {
			t.Fatalf("%d messages, %v after %s; want none after 20s", len(list), err, time.Since(began))
		}
		s.Close()
	})
}

// A graceful restart saves the progress of deliveries.
func TestD2_GracefulRestartRepeatsNothing(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	ids := s.publishN("orders", "m", 500)
	got := map[string]int{}
	for range 5 {
		list := s.receive("orders-billing", "orders", 60, time.Hour)
		for _, d := range list {
			got[string(d.Record.MessageID())]++
		}
		s.ack("orders-billing", list...)
		s.restart()
	}
	for id, n := range s.drain("orders-billing", "orders") {
		got[id] += n
	}
	wantOnce(t, got, ids)
}

// TestCrashKeepsEveryAcknowledgedPublish is invariant I1.
func TestCrashKeepsEveryAcknowledgedPublish(t *testing.T) {
	rng, topo := rand.New(rand.NewPCG(1, 2)), sample(t)
	for round := range 12 {
		mem := disk.NewMem()
		limits := testLimits()
		limits.SnapshotBytes = 20 << 10
		s := open(t, mem, "rz02-a-1", topo, limits)
		n := 50 + rng.IntN(400)
		ids := s.publishN("orders", "m", n)
		s.receive("orders-billing", "orders", 20, time.Hour) // in hands when the power goes
		crashed := open(t, mem.Crash(rng), "rz02-a-1", topo, limits)
		wantOnce(t, crashed.drain("orders-billing", "orders"), ids)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
		crashed.Close()
		s.Close()
	}
}

// A consumer slower than its invisible time on the last attempt: the message is a
// dead letter, and the late acknowledgement is refused.
func TestQ9_LastAttemptGoesToTheDeadLetterTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t, "max_attempts: 16", "max_attempts: 1"), testLimits())
		defer s.Close()
		s.publish(s.message("orders", "m1", "k", "v"))
		list := s.receive("orders-billing", "orders", 1, 10*time.Second)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if again := s.receive("orders-billing", "orders", 1, time.Minute); len(again) != 0 {
			t.Fatalf("delivered beyond the maximum of attempts")
		}
		err := s.Ack(t.Context(), "orders-billing", "orders", list[0].Handle)
		if KindOf(err) != KindHandle {
			t.Fatalf("late ack: %v, want a handle error", err)
		}
		dead := s.receive("ledger-book", DeadLetterTopic("orders-billing"), 10, time.Minute)
		if len(dead) != 1 {
			t.Fatalf("%d dead letters, want 1", len(dead))
		}
		c, err := ParseCause(dead[0].Record.Cause())
		if err != nil || c.Kind != CauseConsumer || c.Topic != "orders" || c.Attempts != 1 || c.Group != "orders-billing" {
			t.Fatalf("cause %+v, %v", c, err)
		}
		if v, _ := dead[0].Record.Property("k"); string(v) != "v" || string(dead[0].Record.Body()) != "body of m1" {
			t.Fatalf("the copy is not the message")
		}
	})
}

func TestDeadLetterIsIdempotent(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.publish(s.message("orders", "m1"))
	d := s.receive("orders-billing", "orders", 1, time.Hour)[0]
	for range 3 {
		if err := s.DeadLetter(t.Context(), "orders-billing", "orders", d.Handle); err != nil {
			t.Fatal(err)
		}
	}
	s.restart()
	if got := s.drain("orders-billing", DeadLetterTopic("orders-billing")); got["m1"] != 1 {
		t.Fatalf("dead letters %v, want m1 once", got)
	}
	if again := s.receive("orders-billing", "orders", 1, time.Hour); len(again) != 0 {
		t.Fatalf("a dead-lettered message came again")
	}
}

// The write of the dead-letter copy fails: the message is in one of both places.
// TestReceiveOfDeadLettersThatBeginMeanwhile: the first dead letter of a group comes
// while somebody makes a subscription of the topic that it begins.
func TestReceiveOfDeadLettersThatBeginMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tap := openTapped(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		defer s.Close()
		s.publish(s.message("orders", "m1"))
		d := s.receive("orders-billing", "orders", 1, time.Minute)[0]
		first := func(*commitlog.Batch) error {
			tap.appending.Store(nil)
			return s.DeadLetter(t.Context(), "orders-billing", "orders", d.Handle)
		}
		tap.appending.Store(&first)
		if got := s.drain("orders-billing", DeadLetterTopic("orders-billing")); got["m1"] != 1 {
			t.Errorf("the dead letter came %d times, want once", got["m1"])
		}
	})
}

func TestL8_FailedDeadLetterCopyKeepsTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		limits := testLimits()
		limits.SegmentBytes = 64 << 10
		s := open(t, mem, "rz02-a-1", sample(t), limits)
		defer s.Close()
		m := s.message("orders", "m1")
		m.Body = make([]byte, 60<<10)
		s.publish(m)
		d := s.receive("orders-billing", "orders", 1, time.Hour)[0]
		s.fill(mem, m)
		err := s.DeadLetter(t.Context(), "orders-billing", "orders", d.Handle)
		if KindOf(err) != KindDiskFull {
			t.Fatalf("dead letter on a full disk: %v", err)
		}
		mem.SetLimit(0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := s.drain("orders-billing", DeadLetterTopic("orders-billing")); got["m1"] != 1 {
			t.Fatalf("dead letters %v, want m1 once the disk had room", got)
		}
	})
}

// Batches of which a random half is acknowledged, stored long before.
func TestL3_EveryUnackedMessageComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t, "max_attempts: 16", "max_attempts: 1000"), testLimits())
		defer s.Close()
		ids := s.publishN("orders", "m", 300)
		time.Sleep(24 * time.Hour) // stored long before the receive
		acked := map[string]int{}
		for round := 0; len(acked) < len(ids); round++ {
			if round > 200 {
				t.Fatalf("%d of %d after %d rounds", len(acked), len(ids), round)
			}
			for {
				list := s.receive("orders-billing", "orders", 32, 30*time.Second)
				if len(list) == 0 {
					break
				}
				for _, d := range list {
					if rng.IntN(2) == 0 {
						s.ack("orders-billing", d)
						acked[string(d.Record.MessageID())]++
					}
				}
			}
			time.Sleep(time.Minute)
		}
		wantOnce(t, acked, ids)
	})
}

// A topic was taken away and declared again: old handles settle nothing of it.
func TestQ10_HandleOfAFormerTopicIsRefused(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.publishN("orders", "old", 3)
	d := s.receive("orders-billing", "orders", 1, time.Hour)[0]
	e2, e3 := epoch(2), epoch(3)
	without := sample(t, e2[0], e2[1],
		"  - name: orders\n    route: local\n", "",
		"  - name: orders-billing\n    topics: [orders]\n", "  - name: orders-billing\n    topics: [transfer]\n")
	if err := s.ApplyTopology(t.Context(), without); err != nil {
		t.Fatal(err)
	}
	if err := s.ApplyTopology(t.Context(), sample(t, e3[0], e3[1])); err != nil {
		t.Fatal(err)
	}
	s.topo = s.Topology()
	ids := s.publishN("orders", "new", 3)
	if err := s.Ack(t.Context(), "orders-billing", "orders", d.Handle); KindOf(err) != KindHandle {
		t.Fatalf("ack with a handle of the former topic: %v", err)
	}
	s.restart()
	if err := s.Ack(t.Context(), "orders-billing", "orders", d.Handle); KindOf(err) != KindHandle {
		t.Fatalf("ack with a handle of the former topic after a restart: %v", err)
	}
	wantOnce(t, s.drain("orders-billing", "orders"), ids)
}

func TestHandlesAreSealedAndForOneGroup(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.publishN("orders", "m", 1)
	d := s.receive("orders-billing", "orders", 1, time.Hour)[0]
	for name, err := range map[string]error{
		"other group": s.Ack(t.Context(), "transfer-credit", "orders", d.Handle),
		"other topic": s.Ack(t.Context(), "orders-billing", "transfer", d.Handle),
		"damaged":     s.Ack(t.Context(), "orders-billing", "orders", d.Handle[:len(d.Handle)-1]+"A"+"B"),
		"empty":       s.Ack(t.Context(), "orders-billing", "orders", ""),
	} {
		var he *consumer.HandleError
		if KindOf(err) != KindHandle || !errors.As(err, &he) {
			t.Errorf("%s: %v, want a handle error", name, err)
		}
	}
	s.restart() // a handle outlives the process
	s.ack("orders-billing", d)
	if got := s.drain("orders-billing", "orders"); len(got) != 0 {
		t.Fatalf("%v came again", got)
	}
}

func TestTagFilterSettlesWhatItExcludes(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	for i, tag := range []string{"a", "b", "", "a"} {
		m := s.message("orders", string(rune('0'+i)))
		m.Tag = tag
		s.publish(m)
	}
	list, err := s.Receive(t.Context(), ReceiveRequest{Group: "orders-billing", Topic: "orders",
		Filter: Filter{Tags: []string{"a", "z"}}, Max: 10, Invisible: time.Hour})
	if err != nil || len(list) != 2 {
		t.Fatalf("%d messages, %v; want the two with tag a", len(list), err)
	}
	s.ack("orders-billing", list...)
	s.restart()
	if got := s.drain("orders-billing", "orders"); len(got) != 0 {
		t.Fatalf("%v came although excluded or acknowledged", got)
	}
}

func TestPublishRefusals(t *testing.T) {
	topo := sample(t, "  - name: orders\n    route: local\n", "  - name: orders\n    route: local\n  - name: fifo\n    kind: fifo\n    route: local\n")
	s := open(t, disk.NewMem(), "rz05-a-1", topo, testLimits())
	big := s.message("member", "m")
	big.Body = make([]byte, 1<<20+1)
	delayed := s.message("orders", "m")
	delayed.DeliverAt = time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		m    Message
		kind Kind
	}{
		"no topic":        {Message{ID: "m"}, KindTopicUnknown},
		"no user":         {s.message("transfer", "m"), KindUnroutable},
		"bad destination": {s.message("directed", "m", "destination", "mars"), KindUnroutable},
		"residency":       {s.message("audit", "m"), KindResidency},
		"too large":       {big, KindTooLarge},
		"fifo, no group":  {s.message("fifo", "m"), KindInvalid},
		"delayed":         {delayed, KindUnsupported},
		"no id":           {s.message("orders", ""), KindInvalid},
	} {
		out := make([]PublishResult, 2)
		if err := s.Publish(t.Context(), []Message{c.m, s.message("orders", "good-"+name)}, out); err != nil {
			t.Fatal(err)
		}
		if KindOf(out[0].Err) != c.kind {
			t.Errorf("%s: %v, want %s", name, out[0].Err, c.kind)
		}
		if out[1].Err != nil || out[1].Level != LevelStored {
			t.Errorf("%s: the good message beside it: %+v", name, out[1])
		}
	}
}

func TestReceiveRefusals(t *testing.T) {
	s := open(t, disk.NewMem(), "cz-sh-a-1", sample(t), testLimits())
	for name, c := range map[string]struct {
		group zone.ConsumerGroup
		topic zone.Topic
		kind  Kind
	}{
		"unknown group":      {"nobody", "orders", KindGroupUnknown},
		"unknown topic":      {"orders-billing", "nothing", KindTopicUnknown},
		"not subscribed":     {"orders-billing", "member", KindGroupUnknown},
		"topic of elsewhere": {"ledger-book", "ledger", KindTopicUnknown},
		"cache":              {"member-cache", "member", KindUnsupported},
		"no group":           {"", "orders", KindInvalid},
	} {
		_, err := s.Receive(t.Context(), ReceiveRequest{Group: c.group, Topic: c.topic, Filter: Filter{All: true}, Max: 1})
		if KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %s", name, err, c.kind)
		}
	}
}

func TestUnknownGroupStartsAtTheNewest(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t, "unknown_groups: refuse", "unknown_groups: newest"), testLimits())
	s.publishN("orders", "before", 5)
	if got := s.drain("visitor", "orders"); len(got) != 0 {
		t.Fatalf("an undeclared group got %v from before it came", got)
	}
	ids := s.publishN("orders", "after", 5)
	s.restart()
	wantOnce(t, s.drain("visitor", "orders"), ids)
}

func TestClosedBrokerRefuses(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second Close: %v", err)
	}
	_, err := s.Receive(context.Background(), ReceiveRequest{Group: "orders-billing", Topic: "orders", Max: 1})
	if KindOf(err) != KindClosed {
		t.Fatalf("receive: %v", err)
	}
	if err := s.Publish(context.Background(), []Message{{}}, make([]PublishResult, 1)); KindOf(err) != KindClosed {
		t.Fatalf("publish: %v", err)
	}
}
