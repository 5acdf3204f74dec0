package broker

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// txTold is what a producer knows about one of its transactions.
type txTold struct {
	id       string     // transaction id
	tried    Resolution // the first decision that was sent; 0 = none
	accepted Resolution // the decision that was answered OK; 0 = none
}

// TestTransactionsSurviveAPowerCutAfterEveryOperation cuts the power after every change of the disk
// of a short story of transactions. Whatever it keeps: a half message that was
// acknowledged is there, a decision that was answered stands, nothing is delivered
// that nobody committed, and nothing twice.
func TestTransactionsSurviveAPowerCutAfterEveryOperation(t *testing.T) {
	type moment struct {
		op    int
		kept  *disk.Mem
		known map[string]txTold
	}
	var mu sync.Mutex
	var moments []moment
	known := map[string]txTold{}
	mem, cuts, topo := disk.NewMem(), rng(3), txSample(t, lateTerms)
	limits := Limits{SegmentBytes: 16 << 10}
	mem.AfterOp(func(op int) {
		mu.Lock()
		defer mu.Unlock()
		if op > 40 && op%2 != 0 {
			return
		}
		moments = append(moments, moment{op, mem.Crash(cuts), maps.Clone(known)})
	})
	note := func(name string, change func(*txTold)) {
		mu.Lock()
		defer mu.Unlock()
		x := known[name]
		change(&x)
		known[name] = x
	}
	s := open(t, mem, "rz02-a-1", topo, limits)
	for round := range 4 {
		for i := range 6 {
			name := fmt.Sprint(round, "-", i)
			id := s.half("pay", name)
			note(name, func(x *txTold) { x.id = id })
			if i%3 == 2 {
				continue // left undecided
			}
			r := Resolution(1 + i%2)
			note(name, func(x *txTold) { x.tried = r })
			wantKind(t, "decision", s.end("pay", id, r), 0)
			note(name, func(x *txTold) { x.accepted = r })
		}
		if round%2 == 0 {
			if err := s.snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		s.restart()
	}
	mem.AfterOp(nil)
	s.Close()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d power cuts", len(moments))
	for _, m := range moments {
		after := open(t, m.kept, "rz02-a-1", topo, limits)
		checkTxTold(t, fmt.Sprint("after operation ", m.op), after, m.known)
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkTxTold compares a broker with what its producer was told. It decides what is
// pending: every second one is committed.
func checkTxTold(t *testing.T, when string, s *station, known map[string]txTold) {
	t.Helper()
	want := map[string]bool{} // message id -> delivered
	other := map[Resolution]Resolution{ResolutionCommit: ResolutionRollback, ResolutionRollback: ResolutionCommit}
	for name, x := range known {
		switch {
		case x.id == "": // its send was not answered
		case x.accepted != 0:
			want[name] = x.accepted == ResolutionCommit
			if got := s.end("pay", x.id, x.accepted); got != 0 {
				t.Fatalf("%s: %s: the decision that was accepted, again: %v", when, name, got)
			}
			if got := s.end("pay", x.id, other[x.accepted]); got != KindDecided {
				t.Fatalf("%s: %s: the opposite of the decision that was accepted: %v", when, name, got)
			}
		case x.tried != 0: // it stands or it does not; the opposite tells which
			got := s.end("pay", x.id, other[x.tried])
			if got != 0 && got != KindDecided {
				t.Fatalf("%s: %s: a decision after one without an answer: %v", when, name, got)
			}
			want[name] = (x.tried == ResolutionCommit) == (got == KindDecided)
		default:
			want[name] = len(want)%2 == 0
			r := ResolutionRollback
			if want[name] {
				r = ResolutionCommit
			}
			if got := s.end("pay", x.id, r); got != 0 {
				t.Fatalf("%s: %s: the decision of a half message that was acknowledged: %v", when, name, got)
			}
		}
	}
	got := s.drain(billing, "pay")
	for name, delivered := range want {
		if n := got[name]; n > 1 || (n == 1) != delivered {
			t.Fatalf("%s: %s was delivered %d times, want %v", when, name, n, delivered)
		}
		delete(got, name)
	}
	for name, n := range got { // a send or commit whose answer was lost
		if known[name].id != "" || n > 1 {
			t.Fatalf("%s: %s was delivered %d times", when, name, n)
		}
	}
}

// txModel is the simple truth about transactions: what producers were told, and
// what consumers may see.
type txModel struct {
	t       *testing.T
	rng     *rand.Rand
	mem     *disk.Mem
	s       *station
	a       *asker
	next    int
	known   map[string]txTold
	got     map[string]int  // deliveries, of all lives
	unsure  map[string]bool // acknowledged lately: a power cut may repeat these
	repeats map[string]bool // acknowledged before a power cut that may have lost that
	seed    uint64
}

func (m *txModel) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *txModel) step() {
	switch n := m.rng.IntN(100); {
	case n < 30:
		name := fmt.Sprint(m.next)
		m.next++
		if id := m.s.half("pay", name); m.rng.IntN(5) > 0 {
			m.known[name] = txTold{id: id}
		} else { // the answer is lost: only checks know it
			m.known[name] = txTold{}
		}
	case n < 65:
		m.decide()
	case n < 80:
		m.consume()
	case n < 90:
		time.Sleep(time.Duration(m.rng.IntN(4000)) * time.Millisecond)
	case n < 94:
		if err := m.s.snapshot(m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
	case n < 97:
		m.s.restart()
		m.a.connect()
		clear(m.unsure)
	default:
		m.crash()
	}
}

// decide sends a decision of a random transaction, often one that was decided. One
// in four answers is lost.
func (m *txModel) decide() {
	synctest.Wait()
	asked := m.a.known()
	for name, x := range m.known { // in random order
		id := x.id
		if id == "" {
			if id = asked[name]; id == "" {
				continue
			}
		}
		r := Resolution(1 + m.rng.IntN(2))
		if x.tried == 0 {
			x.tried = r
		}
		ctx, lost := m.t.Context(), m.rng.IntN(4) == 0
		if lost {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			cancel()
		}
		err := m.s.EndTransaction(ctx, "pay", id, r)
		switch {
		case err == nil && (x.accepted != 0 && x.accepted != r):
			m.fail("%s: decision %d after %d was accepted", name, r, x.accepted)
		case err == nil:
			x.accepted = r
		case KindOf(err) == KindDecided && x.accepted == r:
			m.fail("%s: decision %d was accepted, and is refused now: %v", name, r, err)
		case KindOf(err) == KindDecided && x.accepted == 0: // something before has counted
			x.tried = ResolutionCommit // it may be delivered, if it was not parked
		case KindOf(err) != KindDecided && !lost:
			m.fail("%s: %v", name, err)
		case lost && x.accepted == 0 && r == ResolutionCommit:
			x.tried = ResolutionCommit
		}
		m.known[name] = x
		return
	}
}

func (m *txModel) consume() {
	list := m.s.receive(billing, "pay", 1+m.rng.IntN(20), time.Hour)
	for _, d := range list {
		name := string(d.Record.MessageID())
		x, ok := m.known[name]
		switch {
		case !ok:
			m.fail("%s was never sent", name)
		case x.tried != ResolutionCommit && x.accepted != ResolutionCommit:
			m.fail("%s was delivered, and nobody committed it: %+v", name, x)
		case x.accepted == ResolutionRollback:
			m.fail("%s was delivered after it was rolled back", name)
		}
		if m.got[name]++; m.got[name] > 1 && !m.repeats[name] {
			m.fail("%s was delivered %d times", name, m.got[name])
		}
		m.unsure[name] = true
	}
	m.s.ack(billing, list...)
}

func (m *txModel) crash() {
	kept := m.mem.Crash(m.rng)
	if err := m.s.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.mem, m.s.fs = kept, kept
	m.s.start()
	m.a.connect()
	maps.Copy(m.repeats, m.unsure)
	clear(m.unsure)
}

func (m *txModel) finish() {
	time.Sleep(3 * time.Minute) // everything undecided is parked
	synctest.Wait()
	m.consume()
	for range 200 {
		m.consume()
	}
	for name, x := range m.known {
		if x.accepted == ResolutionCommit && m.got[name] == 0 {
			m.fail("%s was committed and never delivered", name)
		}
	}
	if st := m.s.Status(); len(st.Transactions) != 0 {
		m.fail("still pending: %+v", st.Transactions)
	}
}

// TestTransactionsAgreeWithAModel runs random sends, decisions, lost answers,
// checks, restarts and power cuts.
func TestTransactionsAgreeWithAModel(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			mem := disk.NewMem()
			s := open(t, mem, "rz02-a-1", txSample(t, "{immunity: 2s, interval: 3s, checks: 4}"), Limits{SegmentBytes: 32 << 10})
			m := &txModel{t: t, rng: rng(seed), mem: mem, s: s, a: s.producers(), seed: seed, known: map[string]txTold{},
				got: map[string]int{}, unsure: map[string]bool{}, repeats: map[string]bool{}}
			for range 600 {
				m.step()
			}
			m.finish()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Nothing of a half message crosses to another zone or city before its commit, and
// it lands once after it, through power cuts of its origin.
func TestNothingLandsElsewhereBeforeTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, txSample(t, lateTerms), testLimits(), "rz02-a-1", "rz03-a-1", "cz-sh-a-1", "cz-hz-a-1", "cz-sz-a-1")
		defer w.close()
		from := w.sites["rz02-a"]
		w.links.crossed()
		type sent struct{ topic, name, id string }
		var all []sent
		for i := range 30 {
			x := sent{"transfer", fmt.Sprint("t", i), ""}
			if i%2 == 0 {
				x.topic, x.name = "member", fmt.Sprint("m", i)
			}
			x.id = from.half(zone.Topic(x.topic), x.name, "userId", "1050")
			all = append(all, x)
		}
		var far, cities []string
		for i, x := range all {
			if i%3 == 0 {
				from.crash()
			}
			w.settled()
			if n := w.links.crossed(); len(n) != 0 && len(far)+len(cities) == 0 {
				t.Fatalf("before any commit crossed %v", n)
			}
			if i%5 == 4 {
				wantKind(t, "rollback", from.end(zone.Topic(x.topic), x.id, ResolutionRollback), 0)
				continue
			}
			if i%5 == 3 {
				continue // left undecided
			}
			wantKind(t, "commit", from.end(zone.Topic(x.topic), x.id, ResolutionCommit), 0)
			wantKind(t, "commit again", from.end(zone.Topic(x.topic), x.id, ResolutionCommit), 0)
			if x.topic == "member" {
				cities = append(cities, x.name)
			} else {
				far = append(far, x.name)
			}
		}
		w.settled()
		wantOnce(t, w.sites["rz03-a"].drain("transfer-credit", "transfer"), far)
		for _, g := range []zone.Group{"cz-sh-a", "cz-hz-a", "cz-sz-a"} {
			wantOnce(t, w.sites[g].drain("member-watch", "member"), cities)
		}
		if got := from.drain("transfer-credit", "transfer"); len(got) != 0 {
			t.Errorf("at the origin were delivered %v", got)
		}
	})
}
