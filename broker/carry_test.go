package broker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestOldDeadLetterDoesNotHoldTheLog: a letter that is kept for two weeks is
// carried along, under its offset, through restarts and power cuts, while the log
// around it goes with its own retention; and it goes when its time is over.
func TestOldDeadLetterDoesNotHoldTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotBytes, limits.TrimEvery = 64<<10, 32<<10, 30*time.Minute
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", sample(t), limits)
		const group, letter = "orders-billing", "bury-me"
		s.publish(s.message("orders", "fine"), s.message("orders", letter))
		for _, d := range s.receive(group, "orders", 10, time.Minute) {
			if string(d.Record.MessageID()) != letter {
				s.ack(group, d)
			} else if err := s.DeadLetter(t.Context(), group, "orders", d.Handle); err != nil {
				t.Fatal(err)
			}
		}
		days := func(n int) {
			for i := range n * 8 {
				m := s.message("orders", fmt.Sprint("m", i))
				m.Body = make([]byte, 20<<10)
				s.publish(m)
				s.drain(group, "orders")
				time.Sleep(3 * time.Hour)
			}
		}
		look := func() []DeadLetter {
			list, _, err := s.DeadLetters(t.Context(), DeadLetterQuery{Topic: DeadLetterTopic(group)})
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		var begin uint64
		for round := range 3 {
			days(4)
			if at := uint64(s.log.Begin()); at <= begin {
				t.Fatalf("round %d: the log still begins at %d", round, at)
			} else {
				begin = at
			}
			if held := int64(s.log.Committed() - s.log.Begin()); held > 2<<20 {
				t.Fatalf("round %d: %d bytes of log are held for three days of messages and a letter", round, held)
			}
			list := look()
			if len(list) != 1 || list[0].Offset != 0 || string(list[0].Record.MessageID()) != letter || list[0].Cause.Group != group {
				t.Fatalf("round %d: letters %+v", round, list)
			}
			found, err := s.FindMessage(t.Context(), letter)
			if err != nil || len(found) != 1 || !found[0].Queued || found[0].Offset != 0 || found[0].Cause == nil {
				t.Fatalf("round %d: found %+v, %v", round, found, err)
			}
			if round == 0 {
				s.restart()
				continue
			}
			kept := mem.Crash(rand.New(rand.NewPCG(1, uint64(round))))
			_ = s.Close()
			mem, s.fs = kept, kept
			s.start()
			wantSlots(t, s)
		}
		got := s.receive(group, DeadLetterTopic(group), 10, time.Minute)
		if len(got) != 1 || string(got[0].Record.MessageID()) != letter || got[0].Offset != 0 {
			t.Fatalf("received %d letters", len(got))
		}
		if r, err := s.Replay(t.Context(), ReplayRequest{Topic: DeadLetterTopic(group), Offsets: []uint64{0}}); err != nil || len(r) != 1 || r[0].Err != nil {
			t.Fatalf("replay %+v, %v", r, err)
		}
		days(5)
		if list := look(); len(list) != 0 {
			t.Fatalf("after %v: %+v", limits.DeadLetterRetention, list)
		}
	})
}

// TestCarriedIsReadThroughATrim: a read that looked up where something is, and comes
// to the log when that is carried and trimmed, finds it where it is now.
func TestCarriedIsReadThroughATrim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits()
		limits.SegmentBytes, limits.SnapshotBytes = 64<<10, 32<<10
		limits.TrimEvery = 1000 * time.Hour // only when the test asks
		s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms, shortOrders...), limits)
		defer func() { _ = s.Close() }()
		s.publish(s.message("orders", "letter"))
		for _, d := range s.receive(billing, "orders", 10, time.Minute) {
			if err := s.DeadLetter(t.Context(), billing, "orders", d.Handle); err != nil {
				t.Fatal(err)
			}
		}
		s.half("pay", "half")
		q, h := s.state.topics[DeadLetterTopic(billing)].queues[0], s.state.halves.Pending()[0]
		letterAt, err := q.get(0)
		if err != nil {
			t.Fatal(err)
		}
		halfAt := s.whereHalf(h)
		for round := range 2 { // carried once, and once more
			for i := range 40 {
				m := s.message("orders", fmt.Sprint(round, "-", i))
				m.Body = make([]byte, 20<<10)
				s.publish(m)
				s.drain(billing, "orders")
			}
			time.Sleep(3 * time.Hour) // beyond every retention but that of letters
			s.publish(s.message("orders", fmt.Sprint("end", round)))
			s.drain(billing, "orders")
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := s.log.Begin()
			if err := s.trim(wallNow()); err != nil || s.log.Begin() == before {
				t.Fatalf("round %d: the log begins at %d, trim: %v", round, s.log.Begin(), err)
			}
			if v, err := s.readMessage(q, 0, letterAt); err != nil || !bytes.Equal(v.MessageID(), []byte("letter")) {
				t.Errorf("round %d: letter: %v", round, err)
			}
			if v, err := s.readHalfAt(h, halfAt); err != nil || !bytes.Equal(v.MessageID(), []byte("half")) {
				t.Errorf("round %d: half message: %v", round, err)
			}
			for _, id := range []string{"letter", "half"} {
				found, err := s.findFrom(t.Context(), letterAt.Position, id)
				if err != nil || len(found) != 1 || (id == "letter") != found[0].Queued {
					t.Errorf("round %d: found of %s: %+v, %v", round, id, found, err)
				}
			}
		}
	})
}

// TestRecallFindsWhatIsCarriedMeanwhile: a message that is carried on, for the second
// time, while a recall looks for it still waits, and is recalled.
func TestRecallFindsWhatIsCarriedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tap := openTapped(t, disk.NewMem(), "rz02-a-1", delayed(t), testLimits())
		defer func() { _ = s.Close() }()
		handle := s.publish(s.later("orders", "later", 50*time.Minute))[0].Recall
		carry := func() {
			t.Helper()
			move, _, err := s.straysOf(s.state.timers.list[0], 0, s.log.Committed(), 10)
			if err == nil {
				err = s.carryTimers(t.Context(), move)
			}
			if err != nil || len(move) != 1 {
				t.Fatalf("%d messages carried, %v", len(move), err)
			}
		}
		carry()
		synctest.Wait()
		trim := func() error { carry(); return commitlog.ErrTrimmed }
		tap.before.Store(&trim)
		if k := s.recall("orders", handle); k != 0 {
			t.Errorf("recall of what was carried meanwhile: %s", k)
		}
		time.Sleep(2 * time.Hour)
		if got := s.drain(billing, "orders"); len(got) != 0 {
			t.Errorf("delivered %v", got)
		}
	})
}
