package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// small bounds the backlog of transfer to about forty of its messages.
var small = []string{"    queues: 8\n", "    queues: 8\n    max_body: 1KiB\n    budget: 20KiB\n"}

// Messages fall due while their destination is down, for longer than any number of
// tries. They wait for it, whatever restarts, and hold up nobody else.
func TestL4_DueMessagesAreTriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, delayed(t, small...), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		to.down()
		var far, near []string
		for i := range 300 {
			far = append(far, fmt.Sprint("far-", i))
			from.publish(from.later("transfer", far[i], time.Minute+time.Duration(i)*time.Millisecond, "userId", "50"))
		}
		for i := range 60 {
			near = append(near, fmt.Sprint("near-", i))
			from.publish(from.later("orders", near[i], time.Minute+time.Duration(i)*10*time.Second))
		}
		time.Sleep(time.Minute)
		for range 60 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			for id, a := range from.arrived("orders") {
				if late := a.stored.Sub(a.deliverAt); late > 100*time.Millisecond {
					t.Fatalf("message %s, which nothing blocks, is %s late", id, late)
				}
			}
		}
		from.wantArrived("orders", near...)
		st := from.Status().Timers
		if len(st.Blocked) != 1 || st.Blocked[0].Count < 100 || uint64(st.Blocked[0].Count) != st.Pending || !strings.Contains(st.Blocked[0].Why, "rz03-a") {
			t.Fatalf("status %+v, want what is beyond the budget blocked by rz03-a", st)
		}
		from.crash()
		time.Sleep(time.Minute)
		from.bounce()
		time.Sleep(time.Minute)
		to.up()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		to.wantArrived("transfer", far...)
		if st := from.Status().Timers; st.Pending != 0 || len(st.Blocked) != 0 {
			t.Errorf("status %+v, want nothing pending", st)
		}
	})
}

// withoutTransfer is the sample of delayed messages without the topic transfer.
func withoutTransfer(t testing.TB, edits ...string) *zone.Topology {
	t.Helper()
	return sample(t, append([]string{"  - name: orders\n", "  - name: orders\n    kind: delay\n",
		"  - name: transfer\n    queues: 8\n    class: bulk\n    route: {shard: {property: userId}}\n", "",
		"  - name: transfer-credit\n    topics: [transfer]\n", "  - name: transfer-credit\n    topics: [orders]\n"}, edits...)...)
}

// The topic of waiting messages goes away and comes back.
func TestDueMessagesWaitForTheirTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with := func(n int) []string { e := epoch(n); return e[:] }
		s := open(t, disk.NewMem(), "rz02-a-1", delayed(t), testLimits())
		defer func() { s.Close() }()
		s.publish(s.later("transfer", "a", time.Minute, "userId", "25"), s.later("orders", "b", time.Minute))
		if err := s.ApplyTopology(t.Context(), withoutTransfer(t, with(2)...)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + topicGrace - time.Millisecond)
		synctest.Wait()
		s.wantArrived("orders", "b")
		st := s.Status().Timers
		if len(st.Blocked) != 1 || st.Blocked[0].Topic != "transfer" || !strings.Contains(st.Blocked[0].Why, "unknown topic") {
			t.Fatalf("status %+v, want one message blocked", st)
		}
		if err := s.ApplyTopology(t.Context(), delayed(t, with(3)...)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // not after the rest of five seconds
		synctest.Wait()
		s.wantArrived("transfer", "a")
	})
}

// A city is down for longer than the grace of a topic, and then the topic is taken away by
// a slip: what waits for the city is given the whole grace from then on, and no more.
func TestTopicGraceBeginsWhenTheTopicIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with := func(n int) []string { e := epoch(n); return e[:] }
		w := newWorld(t, delayed(t, small...), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		to.down()
		for i := range 300 {
			from.publish(from.later("transfer", fmt.Sprint(i), time.Minute+time.Duration(i)*10*time.Millisecond, "userId", "50"))
		}
		time.Sleep(time.Minute + 2*topicGrace)
		waits := from.Status().Timers.Pending
		if waits == 0 {
			t.Fatalf("nothing is beyond the budget: %+v", from.Status().Timers)
		}
		away := func(n int, d time.Duration) {
			t.Helper()
			if err := from.ApplyTopology(t.Context(), withoutTransfer(t, with(n)...)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(d)
			synctest.Wait()
		}
		for n := 2; n < 8; n += 2 { // slips that are taken back in time do not add up
			away(n, topicGrace-time.Second)
			if got := from.Status().Timers.Pending; got != waits {
				t.Fatalf("%d of %d messages wait yet, before their topic was away for %s", got, waits, topicGrace)
			}
			if err := from.ApplyTopology(t.Context(), delayed(t, append(with(n+1), small...)...)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
		}
		away(8, topicGrace+time.Minute)
		if got := from.Status().Timers.Pending; got != 0 {
			t.Errorf("%d messages wait yet, and their topic is away for good", got)
		}
	})
}

// One of fifty messages of a batch cannot be delivered: the others are, once, and it
// is later.
func TestD5_OneBlockedDueMessageHoldsNoneUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, delayed(t, small...), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		to.down()
		first := 0
		for ; ; first++ { // until its backlog is full
			out := make([]PublishResult, 1)
			if err := from.Publish(t.Context(), []Message{from.message("transfer", fmt.Sprint("first-", first), "userId", "50")}, out); err != nil {
				t.Fatal(err)
			}
			if KindOf(out[0].Err) == KindBudget {
				break
			}
		}
		var local []string
		var msgs []Message
		for i := range 50 {
			user := "25" // here
			if i == 37 {
				user = "50"
			} else {
				local = append(local, fmt.Sprint(i))
			}
			m := from.later("transfer", fmt.Sprint(i), time.Minute, "userId", user)
			m.DeliverAt = msgs0(msgs, m)
			msgs = append(msgs, m)
		}
		from.publish(msgs...)
		time.Sleep(time.Minute + 100*time.Millisecond)
		synctest.Wait()
		from.wantArrived("transfer", local...)
		if st := from.Status().Timers; st.Pending != 1 || len(st.Blocked) != 1 {
			t.Fatalf("status %+v, want one pending", st)
		}
		to.up()
		time.Sleep(time.Minute)
		synctest.Wait()
		from.wantArrived("transfer", local...)
		if got := to.arrived("transfer"); got["37"].count != 1 || len(got) != first+1 {
			t.Errorf("%d messages arrived, 37 %d times; want %d and once", len(got), got["37"].count, first+1)
		}
	})
}

// msgs0 gives a message the delivery time of the first.
func msgs0(msgs []Message, m Message) time.Time {
	if len(msgs) > 0 {
		return msgs[0].DeliverAt
	}
	return m.DeliverAt
}

// A recall of a blocked message is good: it is not delivered yet.
func TestBlockedMessageCanBeRecalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topo := delayed(t, small...)
		s := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
		defer s.Close()
		var handles []string
		for i := range 200 {
			handles = append(handles, s.publish(s.later("transfer", fmt.Sprint(i), time.Minute+time.Duration(i)*time.Millisecond, "userId", "50"))[0].Recall)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		before := s.Status()
		if before.Timers.Pending == 0 {
			t.Fatal("nothing is blocked")
		}
		recalled := 0
		for _, h := range handles {
			if s.recall("transfer", h) == 0 {
				recalled++
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := s.Status().Timers; uint64(recalled) != before.Timers.Pending || st.Pending != 0 || len(st.Blocked) != 0 {
			t.Errorf("%d recalled of %d blocked; status %+v", recalled, before.Timers.Pending, st)
		}
	})
}

// TestLostTimerIndexIsMadeAnew: the log was trimmed, so the fold cannot be made from
// its beginning; every message that waits is in it nonetheless.
func TestLostTimerIndexIsMadeAnew(t *testing.T) {
	for name, how := range map[string]func(t *testing.T, fs disk.FS, index string){
		"lost":     func(t *testing.T, fs disk.FS, index string) { spoil(t, fs, index, remove(t, fs)) },
		"all lost": func(t *testing.T, fs disk.FS, index string) { spoil(t, fs, "", remove(t, fs)) },
		"header": func(t *testing.T, fs disk.FS, index string) {
			spoil(t, fs, index, func(f string) { damage(t, fs, f, 9) })
		},
		"cut short": func(t *testing.T, fs disk.FS, index string) {
			spoil(t, fs, index, resize(t, fs, func(n int64) int64 { return n / 2 }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := disk.NewMem()
				limits := testLimits()
				limits.SegmentBytes, limits.SnapshotEvery, limits.TrimEvery = 16<<10, time.Hour, 1000*time.Hour
				s := open(t, mem, "rz02-a-1", delayed(t), limits)
				defer func() { s.Close() }()
				var ids []string
				for i := range 400 {
					in := time.Duration(1+i%50) * 4 * time.Minute
					if i < 300 {
						in = time.Duration(1+i) * time.Millisecond // most have gone when the log is trimmed
					} else {
						ids = append(ids, fmt.Sprint(i))
					}
					s.publish(s.later("orders", fmt.Sprint(i), in+time.Second))
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				r := s.publish(s.later("orders", "recalled", 2*time.Hour))[0]
				if k := s.recall("orders", r.Recall); k != 0 {
					t.Fatal(k)
				}
				s.drain("orders-billing", "orders")
				s.flushProgress(t.Context())
				for range 2 {
					s.publish(s.message("orders", "x"))
					s.drain("orders-billing", "orders")
					s.flushProgress(t.Context())
					if err := s.snapshot(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.trim(time.Now().Add(1000 * time.Hour)); err != nil || s.log.Begin() == 0 {
					t.Fatalf("nothing was trimmed: %v", err)
				}
				wantSlots(t, s)
				begin := s.log.Begin()
				want := inLog(t, s, begin)
				list := s.state.timers.list
				index := indexName(list[1].id)
				if len(list) < 4 {
					t.Fatalf("%d buckets", len(list))
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				kept := copyOf(t, mem)
				how(t, kept, index)
				s.fs = kept
				s.start()
				if s.healed == 0 {
					t.Error("no index was counted as made anew")
				}
				wantEntries(t, s, begin, want)
				time.Sleep(5 * time.Hour)
				synctest.Wait()
				got := s.arrived("orders")
				for _, id := range ids {
					if got[id].count != 1 {
						t.Errorf("message %s arrived %d times", id, got[id].count)
					}
				}
				if got["recalled"].count != 0 {
					t.Error("what was recalled arrived")
				}
			})
		})
	}
}

// A damaged entry in the middle of an index is shown, and costs its message alone.
func TestDamagedTimerEntryHoldsNoneUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := disk.NewMem()
		s := open(t, mem, "rz02-a-1", delayed(t), testLimits())
		defer func() { s.Close() }()
		var ids []string
		for i := range 3000 {
			ids = append(ids, fmt.Sprint(i))
		}
		for chunk := range slices.Chunk(ids, 500) {
			var msgs []Message
			for _, id := range chunk {
				msgs = append(msgs, s.later("orders", id, 10*time.Hour))
			}
			s.publish(msgs...)
		}
		index := indexName(s.state.timers.list[0].id)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		spoil(t, mem, index, func(f string) { damage(t, mem, f, 512+20*1234+3) })
		s.start()
		time.Sleep(11 * time.Hour)
		synctest.Wait()
		s.wantArrived("orders", slices.Delete(slices.Clone(ids), 1234, 1235)...)
		if st := s.Status().Timers; st.Pending != 1 || len(st.Blocked) != 1 || !strings.Contains(st.Blocked[0].Why, "damaged") {
			t.Errorf("status %+v, want one that cannot be read", st)
		}
	})
}

// TestFoldOfDelayedMessagesFromScratchEqualsSnapshotAndTail: whatever waits, fired,
// was recalled and carried, folding it all gives the bytes that snapshot and tail give.
func TestFoldOfDelayedMessagesFromScratchEqualsSnapshotAndTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, limits := disk.NewMem(), testLimits()
		limits.SnapshotBytes = 10 << 10
		s := open(t, mem, "rz02-a-1", delayed(t), limits)
		defer func() { s.Close() }()
		for round := range 5 {
			var msgs []Message
			for i := range 100 {
				msgs = append(msgs, s.later("orders", fmt.Sprint(round, i), time.Duration(i)*3*time.Minute, "userId", "50"))
			}
			out := s.publish(msgs...)
			time.Sleep(time.Hour)
			for i := 90; i < 100; i += 3 {
				if k := s.recall("orders", out[i].Recall); k != 0 {
					t.Fatal(k)
				}
			}
			var move []stray
			for _, k := range s.buckets() {
				got, _, err := s.straysOf(k, 0, s.log.Committed(), 5)
				if err != nil {
					t.Fatal(err)
				}
				move = append(move, got...)
			}
			if err := s.carryTimers(t.Context(), move); err != nil {
				t.Fatal(err)
			}
			s.restart()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		kept := mem.Crash(rand.New(rand.NewPCG(1, 1)))
		a := open(t, mem, s.node, s.topo, limits)
		want := scrub(t, a, nil)
		removeSnapshots(t, kept)
		b := open(t, kept, s.node, s.topo, limits)
		if got := scrub(t, b, nil); string(got) != string(want) {
			t.Error("fold from scratch differs from snapshot and tail")
		}
		if st := b.Status(); st.Timers.Pending == 0 || st.Counts.Recalled == 0 || st.Counts.Fired == 0 {
			t.Errorf("the story has no delayed messages: %+v", st.Counts)
		}
		a.Close()
		b.Close()
	})
}

// TestDueMessagesKeepToTheBudget lets far more fall due at once than the backlog of a
// destination that is away may have.
func TestDueMessagesKeepToTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, delayed(t, small...), testLimits(), "rz02-a-1", "rz03-a-1")
		defer w.close()
		from, to := w.sites["rz02-a"], w.sites["rz03-a"]
		to.down()
		var ids []string
		for i := range 500 {
			ids = append(ids, fmt.Sprint(i))
			m := from.later("transfer", ids[i], time.Minute, "userId", "50")
			m.DeliverAt = m.DeliverAt.Truncate(time.Minute)
			from.publish(m)
		}
		time.Sleep(2 * time.Minute)
		var held int64
		for _, o := range from.Status().Outgoing {
			held += o.BacklogBytes
		}
		if held < 20<<10 || held > 21<<10 {
			t.Errorf("%d bytes of backlog, want 20 KiB and the last message", held)
		}
		to.up()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		to.wantArrived("transfer", ids...)
	})
}
