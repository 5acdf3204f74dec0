package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

func TestBufferedTopicIsAnsweredAsAccepted(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t, "  - name: orders\n", "  - name: orders\n    durability: buffered\n"), testLimits())
	r := s.publish(s.message("orders", "m"))
	if r[0].Level != LevelAccepted || r[0].Offset != -1 {
		t.Fatalf("result %+v, want accepted without an offset", r[0])
	}
	// In one call with a synced topic it waits like that one.
	r = s.publish(s.message("orders", "n"), s.message("transfer", "x", "userId", "20"))
	if r[0].Level != LevelStored || r[1].Level != LevelStored {
		t.Fatalf("results %+v", r)
	}
	s.restart()
	wantOnce(t, s.drain("orders-billing", "orders"), []string{"m", "n"})
}

// A log that came back shorter than a snapshot makes the snapshot void, and
// nothing new is skipped.
func TestX6_ProgressNeverOutlivesItsLog(t *testing.T) {
	mem := disk.NewMem()
	s := open(t, mem, "rz02-a-1", sample(t), testLimits())
	first := s.publishN("orders", "first", 20)
	s.drain("orders-billing", "orders")
	s.restart()
	shorter := mem.Crash(rand.New(rand.NewPCG(1, 1)))
	s.publishN("orders", "lost", 80)
	s.drain("orders-billing", "orders")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := s.snapshotNames()
	if err != nil {
		t.Fatal(err)
	}
	data, err := s.readFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	s.fs = shorter
	s.Broker.fs = shorter
	if err := s.writeFile(names[0], data); err != nil {
		t.Fatal(err)
	}
	s.start()
	ids := s.publishN("orders", "new", 50)
	got := s.drain("orders-billing", "orders")
	for _, id := range first {
		delete(got, id) // may be repeated: their acknowledgements were given up with the log
	}
	wantOnce(t, got, ids)
}

// TestFailedSyncStopsPublishing: nothing is acknowledged after a failed fsync.
func TestFailedSyncStopsPublishing(t *testing.T) {
	faulty := disk.NewFaulty(disk.NewMem())
	s := open(t, faulty, "rz02-a-1", sample(t), testLimits())
	s.publish(s.message("orders", "m"))
	boom := errors.New("boom")
	faulty.Set(func(op disk.Op, name string) error {
		if op == disk.OpSync && strings.Contains(name, "/log/") {
			return boom
		}
		return nil
	})
	out := make([]PublishResult, 1)
	for range 2 {
		if err := s.Publish(t.Context(), []Message{s.message("orders", "n")}, out); KindOf(err) != KindStopped {
			t.Fatalf("publish: %v, want stopped", err)
		}
	}
	if st := s.Status(); st.Held == "" {
		t.Fatal("the status does not say why nothing is stored")
	}
	if got := s.receive("orders-billing", "orders", 10, time.Minute); len(got) != 1 {
		t.Fatalf("%d messages after the log stopped, want the one that is durable", len(got))
	}
	faulty.Set(nil)
	_ = s.Close() // says that progress was lost
	s.start()
	if got := s.drain("orders-billing", "orders"); got["m"] != 1 {
		t.Fatalf("%v after a restart", got)
	}
}

func TestRenewedDeliveryComesBackWhenItsClientIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		defer s.Close()
		alive := make(chan bool, 1)
		alive <- true
		s.SetLiveness(func(string, uint64) bool { v := <-alive; alive <- v; return v })
		s.publish(s.message("orders", "m"))
		list, err := s.Receive(t.Context(), ReceiveRequest{Group: "orders-billing", Topic: "orders", Filter: Filter{All: true},
			Max: 1, Invisible: 10 * time.Second, Renew: true, ClientID: "c"})
		if err != nil || len(list) != 1 {
			t.Fatal(len(list), err)
		}
		time.Sleep(time.Hour)
		if again := s.receive("orders-billing", "orders", 1, time.Minute); len(again) != 0 {
			t.Fatal("delivered to another one although its client lives")
		}
		<-alive
		alive <- false
		s.ClientsGone([]string{"c"})
		time.Sleep(2 * time.Second)
		again := s.receive("orders-billing", "orders", 1, time.Minute)
		if len(again) != 1 || again[0].Attempt != 2 {
			t.Fatalf("%d messages after its client went", len(again))
		}
	})
}

func TestChangeInvisibleReplacesTheHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
		defer s.Close()
		s.publish(s.message("orders", "m"))
		d := s.receive("orders-billing", "orders", 1, time.Minute)[0]
		handle, err := s.ChangeInvisible(t.Context(), "orders-billing", "orders", d.Handle, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Ack(t.Context(), "orders-billing", "orders", d.Handle); KindOf(err) != KindHandle {
			t.Fatalf("ack with the replaced handle: %v", err)
		}
		time.Sleep(6 * time.Second)
		again := s.receive("orders-billing", "orders", 1, time.Minute)
		if len(again) != 1 || again[0].Attempt != 2 {
			t.Fatalf("%d messages after the delay", len(again))
		}
		if err := s.Ack(t.Context(), "orders-billing", "orders", handle); KindOf(err) != KindHandle {
			t.Fatalf("ack with the handle of the delivery before: %v", err)
		}
		s.ack("orders-billing", again...)
	})
}

func TestMaxBytesStopsButLetsOneThrough(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	for _, id := range []string{"a", "b", "c"} {
		m := s.message("orders", id)
		m.Body = make([]byte, 1000)
		s.publish(m)
	}
	for _, want := range []int{1, 2} {
		list, err := s.Receive(t.Context(), ReceiveRequest{Group: "orders-billing", Topic: "orders", Filter: Filter{All: true},
			Max: 10, MaxBytes: 100 + (want-1)*2000, Invisible: time.Minute})
		if err != nil || len(list) != want {
			t.Fatalf("%d messages, %v; want %d", len(list), err, want)
		}
	}
}

func TestTimeOfAStandardMessageID(t *testing.T) {
	got, ok := idTime("01" + "AABBCCDDEEFF" + "1234" + "00015180" + "00000001")
	if want := time.Date(2021, 1, 2, 0, 0, 0, 0, time.UTC); !ok || !got.Equal(want) {
		t.Fatalf("%s, %v; want %s", got, ok, want)
	}
	for _, id := range []string{"", "x", strings.Repeat("z", 34), "01" + strings.Repeat("g", 32)} {
		if _, ok := idTime(id); ok {
			t.Errorf("%q has a time", id)
		}
	}
}

func TestFindMessageFollowsADeadLetter(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	s.publish(s.message("orders", "m"), s.message("orders", "other"))
	for _, d := range s.receive("orders-billing", "orders", 10, time.Hour) {
		if string(d.Record.MessageID()) == "m" {
			if err := s.DeadLetter(t.Context(), "orders-billing", "orders", d.Handle); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, err := s.FindMessage(t.Context(), "m")
	if err != nil || len(found) != 2 {
		t.Fatalf("%+v, %v; want message and copy", found, err)
	}
	if g := found[0].Groups; found[0].Topic != "orders" || len(g) != 1 || !g[0].Settled {
		t.Errorf("message %+v", found[0])
	}
	if c := found[1].Cause; found[1].Topic != DeadLetterTopic("orders-billing") || c == nil || c.Group != zone.ConsumerGroup("orders-billing") || !found[1].Queued {
		t.Errorf("copy %+v", found[1])
	}
}

// TestUnknownCommittedRecordStopsTheBroker: the fold never guesses.
func TestUnknownCommittedRecordStopsTheBroker(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", sample(t), testLimits())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(context.Background()) }()
	e, err := s.control(record.TypeHalf, nil)
	if err != nil {
		t.Fatal(err)
	}
	var fe *FoldError
	if err := s.appendWait(t.Context(), &op{batch: commitlog.Batch{Entries: []commitlog.Entry{e}}}); !errors.As(err, &fe) {
		t.Fatalf("append: %v, want a fold error", err)
	}
	if err := <-ran; !errors.As(err, &fe) {
		t.Fatalf("run: %v, want the fold error", err)
	}
	if _, err := Open(t.Context(), s.options()); !errors.As(err, &fe) {
		t.Fatalf("open: %v, want the fold error again", err)
	}
}

func FuzzSnapshot(f *testing.F) {
	s := open(f, disk.NewMem(), "rz02-a-1", sample(f), testLimits())
	s.publish(s.message("orders", "a"), s.message("transfer", "b", "userId", "50"))
	f.Add(s.fold()[snapshotHead:])
	store := s.indexes
	f.Fuzz(func(t *testing.T, body []byte) {
		b := append([]byte(snapshotMagic), snapshotVersion, 0, 0, 0, 0, 0)
		b = append(b, body...)
		binary.LittleEndian.PutUint32(b[snapshotHead-4:], crc32.Checksum(body, castagnoli))
		_, _ = newState("rz02-a", s.state.store, store).decode("fuzz", b)
	})
}
