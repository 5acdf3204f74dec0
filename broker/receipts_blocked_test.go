package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// fewReceipts is the sample with receipts of which about two may wait for a zone.
func fewReceipts(t testing.TB, n int) *zone.Topology {
	return withReceipts(t, n, false, "  - name: receipts\n", "  - name: receipts\n    max_body: 4KiB\n    budget: 8KiB\n")
}

// TestBlockedReceiptsHoldUpNoOthers: a zone of origin is away, and far more receipts for
// it are due than its backlog may have and than one round looks at. Those of another zone
// come at once, also those of messages that are settled later, and what waits is not read
// again and again. When the zone is back it has one receipt for each message, whatever
// was restarted meanwhile.
func TestBlockedReceiptsHoldUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fewReceipts(t, 1), testLimits(), "rz02-a-1", "rz03-a-1", "rz04-a-1")
		defer w.close()
		away, other, to := w.sites["rz02-a"], w.sites["rz03-a"], w.sites["rz04-a"]
		to.tap = &tapLog{}
		to.bounce()
		publish := func(from *site, prefix string, n int) (ids []string) {
			for i := range n {
				ids = append(ids, fmt.Sprint(prefix, i))
				m := from.message("transfer", ids[i], "userId", "65")
				m.Queue = 0
				from.publish(m)
			}
			time.Sleep(time.Minute)
			return ids
		}
		const many = 3*maxReceipts + 7
		first := publish(away, "away", many)
		ids := publish(other, "other", 30)
		away.down()
		unread := ReceiptTopic{Topic: "transfer", To: "receipts", Open: many + 30, Slowest: "transfer-credit"}
		if got := to.Status().ReceiptTopics; !slices.Equal(got, []ReceiptTopic{unread}) {
			t.Errorf("without a receipt: %+v, want %+v", got, unread)
		}
		drained := time.Now()
		if got := to.drain("transfer-credit", "transfer"); len(got) != many+30 {
			t.Fatalf("%d messages arrived, want %d", len(got), many+30)
		}
		time.Sleep(10 * time.Second)
		all := map[string]told{}
		other.receiptsAt(all)
		onceTold(t, all, ReceiptAcked, ids...)
		waiting := to.Status().Receipts
		if len(waiting) != 1 || waiting[0].Topic != "transfer" || waiting[0].Target != "rz02-a" || waiting[0].Messages < many*3/4 || waiting[0].Since.Before(drained) || waiting[0].Since.After(drained.Add(10*time.Second)) {
			t.Errorf("waiting %+v, want nearly all %d for rz02-a, since %v", waiting, many, drained)
		}
		open := ReceiptTopic{Topic: "transfer", To: "receipts", Open: waiting[0].Messages}
		if got := to.Status().ReceiptTopics; !slices.Equal(got, []ReceiptTopic{open}) {
			t.Errorf("without a receipt: %+v, want %+v", got, open)
		}
		to.tap.reads.Store(0)
		ids = publish(other, "later", 30)
		to.drain("transfer-credit", "transfer")
		time.Sleep(time.Minute)
		other.receiptsAt(all)
		onceTold(t, all, ReceiptAcked, ids...)
		if n := to.tap.reads.Load(); n > many/2 {
			t.Errorf("%d entries of the log were read for 30 messages", n)
		}
		if got := to.Status().Receipts; !slices.Equal(got, waiting) {
			t.Errorf("waiting %+v, want %+v", got, waiting)
		}
		to.crash()
		away.up()
		time.Sleep(10 * time.Minute)
		all = map[string]told{}
		away.receiptsAt(all)
		onceTold(t, all, ReceiptAcked, first...)
		if got := to.Status(); len(got.Receipts) != 0 || got.Counts.Receipts != many+60 {
			t.Errorf("waiting %+v, %d had a receipt, want %d", got.Receipts, got.Counts.Receipts, many+60)
		}
	})
}

// TestReceiptsWaitingAgreeWithAModel puts messages into the memory of what waits, and
// takes and drops some.
func TestReceiptsWaitingAgreeWithAModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 7))
	const base, most = 70_001, 20_000
	w := &receiptWaits{base: base, lanes: map[string]*receiptLane{}}
	model := map[uint64]string{}
	for range 3000 {
		target := fmt.Sprint("g", rng.IntN(3))
		switch n := 1 + rng.IntN(100); rng.IntN(4) {
		case 0, 1:
			from := base + rng.Uint64N(most)
			x := blockedReceipt{marks: []consumer.Range{{From: from, To: from + rng.Uint64N(100)}}}
			x.refused.Target = target
			w.put(x)
			for o := from; o < x.marks[0].To; o++ {
				if model[o] == "" {
					model[o] = target
				}
			}
		case 2:
			if w.lanes[target] == nil {
				continue
			}
			var want []uint64
			for _, o := range sortedKeys(model) {
				if model[o] == target && len(want) < n {
					want = append(want, o)
					delete(model, o)
				}
			}
			if got := w.take(target, n); !slices.Equal(got, want) {
				t.Fatalf("took %v, want %v", got, want)
			}
		case 3:
			below := base - 10 + rng.Uint64N(most/4)
			w.drop(below)
			for o := range model {
				if o < below {
					delete(model, o)
				}
			}
		}
		if w.all.Count() != uint64(len(model)) || len(model) == 0 != (len(w.lanes) == 0) {
			t.Fatalf("%d offsets in %d lanes, want %d", w.all.Count(), len(w.lanes), len(model))
		}
	}
	for o := uint64(base - 5); o < base+most+200; o++ {
		if waits := w.nextOut(o, o+1) != o; waits != (model[o] != "") {
			t.Fatalf("offset %d waits: %v", o, waits)
		}
	}
}

// TestWaitingReceiptsFollowTheTopology: the zone of origin stays away and the budget of
// its receipts is raised, receipts end, and the store's messages go.
func TestWaitingReceiptsFollowTheTopology(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fewReceipts(t, 1), testLimits(), "rz02-a-1", "rz04-a-1")
		defer w.close()
		away, to := w.sites["rz02-a"], w.sites["rz04-a"]
		const many = maxReceipts + 500
		for i := range many {
			away.publish(away.message("transfer", fmt.Sprint(i), "userId", "65"))
		}
		time.Sleep(time.Minute)
		away.down()
		to.drain("transfer-credit", "transfer")
		time.Sleep(10 * time.Second)
		waits := func() (n uint64) {
			for _, x := range to.Status().Receipts {
				n += x.Messages
			}
			return n
		}
		if waits() < many/2 {
			t.Fatalf("%d wait", waits())
		}
		if err := to.ApplyTopology(t.Context(), withReceipts(t, 2, false)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if c := to.Status().Counts; waits() != 0 || c.Receipts != many {
			t.Fatalf("%d wait, %d had a receipt, want none and %d", waits(), c.Receipts, many)
		}
	})
}

// TestReceiptsThatCannotBeWrittenWaitForTheirTime: a disk fails when receipts that waited
// for room are written. They are not tried again at once, until all were, but later; then
// each message gets one.
func TestReceiptsThatCannotBeWrittenWaitForTheirTime(t *testing.T) {
	const n = 500
	alone := Limits{SegmentBytes: 1 << 20, ProgressDelay: time.Hour} // the broker's own loop does nothing
	s, tap := openTapped(t, disk.NewMem(), "rz02-a-1", withReceipts(t, 1, false), alone)
	l, q := blockedReceipts(s, n, 1)
	bad := func() error { return errTaken }
	tap.before.Store(&bad)
	w := l.waits[q]
	if more, failed := l.giveWaiting(t.Context(), q, w); more || !failed {
		t.Errorf("more: %v, failed: %v", more, failed)
	}
	if left := w.all.Count(); left != n-maxReceiptBatch {
		t.Errorf("%d wait, want %d", left, n-maxReceiptBatch)
	}
	for more := true; more; {
		_, more = l.round(t.Context())
	}
	if len(l.waits) != 0 {
		t.Errorf("%d wait", w.all.Count())
	}
	s.wantReceipts(n)
}

// blockedReceipts publishes messages of one queue that a group has settled, and has a
// loop believe that every one, or every second and so on, waits for room.
func blockedReceipts(s *station, n uint64, every uint64) (*receiptLoop, receiptQueue) {
	for i := uint64(0); i < n; i += min(n, 1000) {
		msgs := make([]Message, min(n, 1000))
		for k := range msgs {
			msgs[k] = s.message("orders", fmt.Sprint(i+uint64(k)))
			msgs[k].Queue = 0
		}
		s.publish(msgs...)
	}
	l := &receiptLoop{b: s.Broker, waits: map[receiptQueue]*receiptWaits{}}
	q := receiptQueue{s.state.topics["orders"], 0, "receipts"}
	w := &receiptWaits{lanes: map[string]*receiptLane{}}
	l.waits[q] = w
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range n {
		if o%every != 0 {
			s.state.progress.Settle(receiptGroup, "orders", 0, o)
			continue
		}
		x := blockedReceipt{marks: []consumer.Range{{From: o, To: o + 1}}}
		x.refused.Target = "away"
		w.put(x)
	}
	s.state.progress.SettleAll(billing, "orders", 0, []consumer.Range{{To: n}})
	return l, q
}

// BenchmarkReceiptsBesideBlocked looks through a queue of 200,000 messages of which all,
// or every other one, wait for room; the rest have their receipts.
func BenchmarkReceiptsBesideBlocked(b *testing.B) {
	for name, every := range map[string]uint64{"all": 1, "every other": 2} {
		b.Run(name, func(b *testing.B) {
			const n = 200_000
			s := open(b, disk.NewMem(), "rz02-a-1", withReceipts(b, 1, false), Limits{SegmentBytes: 64 << 20})
			l, q := blockedReceipts(s, n, every)
			b.ReportAllocs()
			for b.Loop() {
				if l.giveDue(b.Context(), q) {
					b.Fatal("some could not be given")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/offset")
		})
	}
}
