package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// txSample is the sample with topics of kind transaction: pay stays in its zone,
// transfer goes by shard, member to all cities.
func txSample(t testing.TB, terms string, edits ...string) *zone.Topology {
	t.Helper()
	kind := "kind: transaction\n    transaction: " + terms
	return sample(t, append([]string{
		"  - name: orders\n", "  - name: pay\n    " + kind + "\n    route: local\n\n  - name: orders\n",
		"  - name: transfer\n", "  - name: transfer\n    " + kind + "\n",
		"  - name: member\n", "  - name: member\n    " + kind + "\n",
		"topics: [orders]", "topics: [orders, pay]",
	}, edits...)...)
}

const (
	// quickTerms suit tests on simulated time.
	quickTerms = "{immunity: 6s, interval: 30s, checks: 3}"
	// lateTerms keep check-back out of tests on real time.
	lateTerms = "{immunity: 1h, interval: 1h}"
)

// half publishes a half message and returns its transaction id.
func (s *station) half(topic zone.Topic, id string, properties ...string) string {
	s.t.Helper()
	r := s.publish(s.message(topic, id, properties...))[0]
	if r.Level != LevelHalf || r.TransactionID == "" {
		s.t.Fatalf("half message %s: %+v", id, r)
	}
	return r.TransactionID
}

func (s *station) end(topic zone.Topic, id string, r Resolution) Kind {
	s.t.Helper()
	err := s.EndTransaction(s.t.Context(), topic, id, r)
	if err != nil && KindOf(err) == 0 {
		s.t.Fatalf("end transaction: %v is no error of this package", err)
	}
	return KindOf(err)
}

// wantKind fails unless the call was answered so; 0 is success.
func wantKind(t testing.TB, what string, got, want Kind) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestHalfMessageIsNowhereBeforeItsCommit(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms), testLimits())
	local, far, all := s.half("pay", "local"), s.half("transfer", "far", "userId", "u99"), s.half("member", "all")
	nowhere := func(when string) {
		t.Helper()
		if got := s.drain(billing, "pay"); len(got) != 0 {
			t.Fatalf("%s: delivered %v", when, got)
		}
		if st := s.Status(); len(st.Outgoing) != 0 {
			t.Fatalf("%s: flows %+v", when, st.Outgoing)
		}
	}
	nowhere("before the commit")
	wantKind(t, "an unknown resolution", s.end("pay", local, ResolutionUnknown), 0)
	s.restart()
	nowhere("after a restart")
	if err := s.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.restart()
	nowhere("after a restart from a snapshot")
	if st := s.Status(); len(st.Transactions) != 3 {
		t.Errorf("pending %+v", st.Transactions)
	}
	for id, topic := range map[string]zone.Topic{local: "pay", far: "transfer", all: "member"} {
		wantKind(t, "commit", s.end(topic, id, ResolutionCommit), 0)
	}
	wantOnce(t, s.drain(billing, "pay"), []string{"local"})
	targets := map[string]uint64{}
	for _, o := range s.Status().Outgoing {
		targets[o.Flow.Target] = max(targets[o.Flow.Target], o.Head)
	}
	if len(targets) != 2 {
		t.Errorf("numbers by target: %v, want one on the flow of the shard's owner and one on the channel", targets)
	}
	for target, head := range targets {
		if head != 1 {
			t.Errorf("the flow to %s has %d numbers", target, head)
		}
	}
	if st := s.Status(); len(st.Transactions) != 0 || st.Decided.Committed != 3 {
		t.Errorf("status %+v, %+v", st.Transactions, st.Decided)
	}
}

func TestFirstDecisionWinsAndIsRemembered(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms), testLimits())
	kept, gone := s.half("pay", "kept"), s.half("pay", "gone")
	wantKind(t, "commit", s.end("pay", kept, ResolutionCommit), 0)
	wantKind(t, "rollback", s.end("pay", gone, ResolutionRollback), 0)
	for _, when := range []string{"at once", "after a restart", "after a restart from a snapshot"} {
		wantKind(t, when+": the same commit", s.end("pay", kept, ResolutionCommit), 0)
		wantKind(t, when+": the same rollback", s.end("pay", gone, ResolutionRollback), 0)
		wantKind(t, when+": unknown", s.end("pay", gone, ResolutionUnknown), 0)
		wantKind(t, when+": rollback of what is committed", s.end("pay", kept, ResolutionRollback), KindDecided)
		wantKind(t, when+": commit of what is rolled back", s.end("pay", gone, ResolutionCommit), KindDecided)
		if err := s.snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.restart()
	}
	wantOnce(t, s.drain(billing, "pay"), []string{"kept"})
	if d := s.Status().Decided; d != (transaction.Totals{Committed: 1, RolledBack: 1}) {
		t.Errorf("totals %+v", d)
	}
}

func TestForeignTransactionIDs(t *testing.T) {
	topo := txSample(t, lateTerms)
	s := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits())
	id := s.half("pay", "m")
	other := open(t, disk.NewMem(), "rz02-a-1", topo, testLimits()) // a new store of the same group
	for range 50 {
		other.half("pay", "m")
	}
	wantKind(t, "the id of another store", other.end("pay", id, ResolutionCommit), KindTransaction)
	far := open(t, disk.NewMem(), "rz03-a-1", topo, testLimits())
	wantKind(t, "the id of another zone", s.end("pay", far.half("pay", "m"), ResolutionCommit), KindTransaction)
	wantKind(t, "another topic", s.end("transfer", id, ResolutionCommit), KindTransaction)
	wantKind(t, "no id", s.end("pay", "", ResolutionRollback), KindTransaction)
	forged := s.halves.sealer.Seal(record.Identity{Group: s.self, Incarnation: s.log.Incarnation(), Epoch: s.log.Epoch(), Position: 1 << 40})
	wantKind(t, "an id that was never given out", s.end("pay", forged, ResolutionCommit), KindTransaction)
	if got := s.drain(billing, "pay"); len(got) != 0 {
		t.Errorf("delivered %v", got)
	}
	wantKind(t, "its own", s.end("pay", id, ResolutionCommit), 0)
}

// Any broker of the zone takes the decision, and the owner makes it.
func TestDecisionReachesItsOwner(t *testing.T) {
	topo := txSample(t, lateTerms)
	a, b := open(t, disk.NewMem(), "rz01-a-1", topo, testLimits()), open(t, disk.NewMem(), "rz01-b-1", topo, testLimits())
	id := a.half("pay", "m")
	wantKind(t, "without a way to the owner", b.end("pay", id, ResolutionCommit), KindUnavailable)
	b.SetCaller(zoneOf{"rz01-a": a.Broker})
	wantKind(t, "by another broker", b.end("pay", id, ResolutionCommit), 0)
	wantKind(t, "the opposite, by another broker", b.end("pay", id, ResolutionRollback), KindDecided)
	wantKind(t, "a bad id of the owner", b.end("pay", id[:len(id)-4]+"AAAA", ResolutionRollback), KindTransaction)
	wantOnce(t, a.drain(billing, "pay"), []string{"m"})
	if got := b.drain(billing, "pay"); len(got) != 0 {
		t.Errorf("the other broker delivered %v", got)
	}
	for _, body := range [][]byte{nil, {0}, {1, 'x', 1, 'y', 9}, make([]byte, 100)} {
		if _, err := a.ServeCall(t.Context(), CallEndTransaction, body); KindOf(err) != KindInvalid && KindOf(err) != KindTransaction {
			t.Errorf("call %x: %v", body, err)
		}
	}
}

func TestHalfMessagesAreBounded(t *testing.T) {
	limits := testLimits()
	limits.MaxHalves, limits.MaxTopicHalves = 12, 8
	s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms), limits)
	var ids []string
	for i := range 8 {
		ids = append(ids, s.half("pay", fmt.Sprint(i)))
	}
	refused := func(topic zone.Topic, properties ...string) {
		t.Helper()
		out := make([]PublishResult, 1)
		if err := s.Publish(t.Context(), []Message{s.message(topic, "more", properties...)}, out); err != nil || KindOf(out[0].Err) != KindBusy {
			t.Fatalf("%v, %v", err, out[0].Err)
		}
	}
	refused("pay")
	for i := range 4 {
		s.half("transfer", fmt.Sprint("t", i), "userId", "u01")
	}
	refused("transfer", "userId", "u01")
	out := make([]PublishResult, 20) // one request may not pass the bound either
	var batch []Message
	for i := range out {
		batch = append(batch, s.message("transfer", fmt.Sprint("b", i), "userId", "u01"))
	}
	wantKind(t, "rollback", s.end("pay", ids[0], ResolutionRollback), 0)
	if err := s.Publish(t.Context(), batch, out); err != nil {
		t.Fatal(err)
	}
	stored := 0
	for _, r := range out {
		if r.Err == nil {
			stored++
		}
	}
	if stored != 1 || s.halves.arriving.n.Load() != 0 {
		t.Errorf("%d of a batch were stored where there was room for 1; %d places are taken", stored, s.halves.arriving.n.Load())
	}
}

// What can be committed no more stays as it is until it can, and says why not.
func TestCommitRoutesByTheTopologyInForce(t *testing.T) {
	s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms), testLimits())
	id := s.half("pay", "m", "userId", "u99")
	edit := epoch(2)
	gone := txSample(t, lateTerms, "  - name: pay\n", "  - name: paid\n", "topics: [orders, pay]", "topics: [orders]", edit[0], edit[1])
	if err := s.ApplyTopology(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "commit without the topic", s.end("pay", id, ResolutionCommit), KindTopicUnknown)
	edit = epoch(3)
	moved := txSample(t, lateTerms, "    route: local\n\n  - name: orders\n", "    route: {shard: {property: userId}}\n\n  - name: orders\n", edit[0], edit[1])
	if err := s.ApplyTopology(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "commit under another route", s.end("pay", id, ResolutionCommit), 0)
	st := s.Status()
	if len(st.Outgoing) != 1 || st.Outgoing[0].Head != 1 || st.Outgoing[0].Flow.Target != "rz05-a" {
		t.Errorf("flows %+v, want one number to the owner of the shard", st.Outgoing)
	}
}

// A topic whose messages may be lost for a moment does not lose half messages.
func TestHalfMessagesAreDurableWhateverTheTopicAsks(t *testing.T) {
	mem := disk.NewMem()
	s := open(t, mem, "rz02-a-1", txSample(t, lateTerms, "  - name: pay\n", "  - name: pay\n    durability: buffered\n"), testLimits())
	id := s.half("pay", "m")
	kept := mem.Crash(rand.New(rand.NewPCG(7, 7)))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.fs = kept
	s.start()
	wantKind(t, "commit", s.end("pay", id, ResolutionCommit), 0)
	wantOnce(t, s.drain(billing, "pay"), []string{"m"})
}

// Half messages that nobody decides hold no log back: they are carried along, under
// their ids.
func TestOldHalfMessagesAreCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{SegmentBytes: 64 << 10, FlowHorizon: time.Minute, TrimEvery: 24 * time.Hour, SnapshotEvery: time.Hour}
		s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms, shortOrders...), limits)
		ids := map[string]string{"a": s.half("pay", "a"), "b": s.half("transfer", "b", "userId", "u01"), "c": s.half("pay", "c")}
		begin := s.log.Begin()
		for round := range 3 {
			for i := range 400 {
				m := s.message("orders", fmt.Sprint(round, "-", i))
				m.Body = make([]byte, 500)
				s.publish(m)
			}
			s.drain(billing, "orders")
			time.Sleep(3 * time.Hour) // beyond every retention
			for range 3 {
				if err := s.snapshot(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.publish(s.message("orders", fmt.Sprint("x", round)))
				s.drain(billing, "orders")
			}
			if err := s.trim(wallNow()); err != nil {
				t.Fatal(err)
			}
			if now := s.log.Begin(); now <= begin {
				t.Fatalf("round %d: the log still begins at %d", round, now)
			} else {
				begin = now
			}
			s.restart()
			if got := len(s.state.halves.Pending()); got != 3 {
				t.Fatalf("round %d: %d half messages", round, got)
			}
		}
		found, err := s.FindMessage(t.Context(), "a")
		if err != nil || len(found) != 1 || found[0].Half == nil || found[0].Half.State != "waits for its decision" {
			t.Errorf("found %+v, %v", found, err)
		}
		wantKind(t, "commit", s.end("pay", ids["a"], ResolutionCommit), 0)
		wantKind(t, "rollback", s.end("pay", ids["c"], ResolutionRollback), 0)
		wantKind(t, "commit of another topic", s.end("transfer", ids["b"], ResolutionCommit), 0)
		wantOnce(t, s.drain(billing, "pay"), []string{"a"})
	})
}

// The fold has the last word: whatever was appended, the first decision in the log
// counts, and nothing else that came for the same half message does anything.
func TestFoldTakesTheFirstDecisionInTheLog(t *testing.T) {
	for name, first := range map[string]Resolution{"commit": ResolutionCommit, "rollback": ResolutionRollback} {
		t.Run(name, func(t *testing.T) {
			s := open(t, disk.NewMem(), "rz02-a-1", txSample(t, lateTerms), testLimits())
			id := s.half("pay", "m")
			identity, err := s.halves.sealer.Open(id)
			if err != nil {
				t.Fatal(err)
			}
			h := s.state.halves.Get(keyOfHalf(identity))
			var all op
			for _, r := range []Resolution{first, ResolutionCommit, ResolutionRollback, ResolutionCommit} {
				var o op
				if r == ResolutionCommit {
					err = s.prepareCommit(t.Context(), h, identity, &o, Order{})
				} else {
					err = s.prepareRollback(h, &o, Order{})
				}
				if err != nil {
					t.Fatal(err)
				}
				all.batch.Entries = append(all.batch.Entries, o.batch.Entries...)
			}
			if err := s.appendWait(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			for i, p := range all.places {
				if p.ok != (i == 0) {
					t.Errorf("decision %d counts: %v", i, p.ok)
				}
			}
			var want []string
			if first == ResolutionCommit {
				want = []string{"m"}
			}
			wantOnce(t, s.drain(billing, "pay"), want)
			s.restart()
			wantOnce(t, s.drain(billing, "pay"), nil)
			if st := s.Status(); st.Counts.LateCommits == 0 || st.Decided.Repeated != 3 {
				t.Errorf("counts %+v, %+v", st.Counts, st.Decided)
			}
		})
	}
}
