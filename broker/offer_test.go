package broker

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/broker/tails"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// offers reads what of a member's only tail is offered, or is a client's and is not.
func offers(t testing.TB, store *tails.Store) (all []Offered, not map[string]string) {
	t.Helper()
	list, err := store.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("tails: %+v, %v", list, err)
	}
	not = map[string]string{}
	for q := (TailQuery{ID: list[0].ID, Limit: 2, Offered: true}); ; {
		page, err := NewTailReader(store).Read(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Records {
			if r.Not != "" {
				not[string(r.Record.MessageID())] = r.Not
				continue
			}
			all = append(all, r.Offered())
		}
		if q.From, q.After = page.Next, page.After; page.Next == 0 {
			return all, not
		}
	}
}

// offer offers records and returns how often each outcome came.
func (m *memberNode) offer(list []Offered, how OfferOptions) map[OfferOutcome]int {
	m.t.Helper()
	n := map[OfferOutcome]int{}
	for len(list) > 0 {
		k := min(len(list), MaxOffered)
		results, err := m.OfferTail(m.t.Context(), list[:k], how)
		if err != nil {
			m.t.Fatal(err)
		}
		for i, r := range results {
			if n[r.Outcome]++; r.Outcome == OfferRefused || r.Outcome == OfferHeld {
				m.t.Logf("%s: %s: %s", list[i].Record.MessageID(), r.Outcome, r.Text)
			}
		}
		list = list[k:]
	}
	return n
}

func wantOffered(t testing.TB, what string, got, want map[OfferOutcome]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// lostTopology has local topics of all kinds.
func lostTopology(t testing.TB, edits ...string) *zone.Topology {
	return sample(t, append([]string{
		"  - name: orders\n    route: local\n", "  - name: orders\n    route: local\n" +
			"  - {name: pay, kind: transaction, transaction: {immunity: 1h, interval: 1h}, route: local}\n" +
			"  - {name: ids, idempotent: 10m, route: local}\n" +
			"  - {name: steps, kind: fifo, route: local}\n" +
			"  - {name: later, kind: delay, route: local}\n" +
			"  - {name: levels, kind: priority, queues: 4, route: local}\n" +
			"  - {name: chat, kind: lite, route: local, lite: {topics: 2, ttl: 1h, subscriptions: 20}}\n",
		"topics: [orders]", "topics: [orders, pay, ids, later, levels]",
		"consumer_groups:\n", "consumer_groups:\n  - {name: steps-worker, fifo: true, topics: [steps]}\n" +
			"  - {name: chatters, topics: [chat]}\n",
	}, edits...)...)
}

// partFrom has a master do what both does with its group and what lost does alone, and
// another member take over. The tail is set aside.
func partFrom(t *testing.T, topo *zone.Topology, both, lost func(a *memberNode)) *parted {
	t.Helper()
	da, db := disk.NewMem(), disk.NewMem()
	a := openMember(t, da, topo, testLimits())
	a.promote(1)
	first := newLink(a)
	a.answers()
	both(a)
	first.close()
	copyStore(t, a, db)
	b := openMember(t, db, topo, testLimits())
	l := newLink(a, b)
	a.publish(a.message("orders", "both"))
	l.close()
	p := &parted{b: b, common: a.Log().End(), faults: disk.NewFaulty(da)}
	l = newLink(a)
	lost(a)
	a.publish(a.message("orders", "the mark of the others"))
	l.close()
	a.Depose()
	a.Close()
	b.promote(2)
	l = newLink(b)
	t.Cleanup(l.close)
	b.answers()
	p.c = openMember(t, p.faults, topo, testLimits())
	p.c.caughtUp(p.c.Log().Committed())
	p.store = p.c.tails
	if err := p.c.SetTailAside(t.Context(), p.common); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestATailIsOfferedOnce: each message that was lost comes once, however often its tail is
// offered and in whatever parts; what the group has does not come again.
func TestATailIsOfferedOnce(t *testing.T) {
	p := partWays(t, zone.DurabilityAllInSync, true, 2)
	if err := p.c.SetTailAside(t.Context(), p.common); err != nil {
		t.Fatal(err)
	}
	list, _ := offers(t, p.store)
	l := newLink(p.b)
	wantOffered(t, "a preview", p.b.offer(list, OfferOptions{Dry: true}), map[OfferOutcome]int{OfferStored: 6})
	wantOffered(t, "every second one", p.b.offer([]Offered{list[1], list[3], list[5]}, OfferOptions{}), map[OfferOutcome]int{OfferStored: 3})
	wantOffered(t, "all, twice", p.b.offer(append(list, list...), OfferOptions{}), map[OfferOutcome]int{OfferStored: 3, OfferAgain: 9})
	if g := &p.b.state.again; g.ranges != 1 {
		t.Errorf("a tail that was offered whole is remembered as %d ranges", g.ranges)
	}
	got := p.b.drain("orders-billing", "orders")
	for _, id := range []string{"lost-0", "lost-1", "lost-2", "lost-3", "lost-4", "the mark of the others", "after", "both"} {
		if got[id] != 1 {
			t.Errorf("%s came %d times", id, got[id])
		}
	}
	p.b.Depose()
	l.close()
	p.b.restart()
	p.b.promote(3)
	l = newLink(p.b)
	defer l.close()
	p.b.answers()
	wantOffered(t, "after a restart", p.b.offer(list, OfferOptions{}), map[OfferOutcome]int{OfferAgain: 6})
}

// TestOffersTravelAsTheyAre: what a member offers is what its master gets, and every part
// of it is refused.
func TestOffersTravelAsTheyAre(t *testing.T) {
	p := partWays(t, zone.DurabilityAllInSync, true, 2)
	if err := p.c.SetTailAside(t.Context(), p.common); err != nil {
		t.Fatal(err)
	}
	list, _ := offers(t, p.store)
	list[0].Again.Groups = []zone.ConsumerGroup{"a", "b"}
	list[1].Again.Sent, list[1].Route, list[1].Certain = 7, &Route{Target: "x", Channel: true, Class: zone.ClassUrgent, Lane: 3}, false
	for _, how := range []OfferOptions{{}, {Dry: true}, {Reroute: true}} {
		b := appendOffers(list, how)
		back, told, err := parseOffers(b)
		if err != nil || told != how || !reflect.DeepEqual(back, list) {
			t.Fatalf("%+v came as %+v, %+v, %v", list, back, told, err)
		}
		for n := range b {
			if _, _, err := parseOffers(b[:n]); err == nil {
				t.Fatalf("%d of %d bytes are taken", n, len(b))
			}
		}
	}
	if n := OfferBatch(list); n != len(list) {
		t.Errorf("a call takes %d of %d", n, len(list))
	}
	var big []Offered
	for range 2 * MaxOffered {
		big = append(big, list[0])
	}
	if n := OfferBatch(big); n != MaxOffered {
		t.Errorf("a call takes %d", n)
	}
	l := newLink(p.b)
	defer l.close()
	results, err := Offer(t.Context(), callerOf(p.b.ServeCall), "rz02-a", list[2:], OfferOptions{})
	if err != nil || len(results) != 4 || results[0].Outcome != OfferStored || results[3].Text == "" {
		t.Errorf("results: %+v, %v", results, err)
	}
}

// callerOf reaches one broker.
type callerOf func(ctx context.Context, kind CallKind, body []byte) ([]byte, error)

func (c callerOf) Call(ctx context.Context, _ zone.Group, kind CallKind, body []byte) ([]byte, error) {
	return c(ctx, kind, body)
}

// TestOnlyRecordsThatTheGroupLostAreOffered: records of other stores, of the broker
// itself, and what stands in the group's log are not taken.
func TestOnlyRecordsThatTheGroupLostAreOffered(t *testing.T) {
	p := partWays(t, zone.DurabilityAllInSync, true, 2)
	if err := p.c.SetTailAside(t.Context(), p.common); err != nil {
		t.Fatal(err)
	}
	l := newLink(p.b)
	defer l.close()
	all, _ := offers(t, p.store)
	change := func(f func(*record.Record)) Offered {
		t.Helper()
		x := all[0]
		var r record.Record
		if err := x.Record.Decode(&r); err != nil {
			t.Fatal(err)
		}
		f(&r)
		b, err := record.AppendRecord(nil, &r)
		if err != nil {
			t.Fatal(err)
		}
		record.Stamp(b, r.Identity.Incarnation, r.Identity.Epoch, r.Identity.Position)
		if x.Record, err = record.Parse(b); err != nil {
			t.Fatal(err)
		}
		return x
	}
	kept := all[0]
	kept.Again.Lineage = p.b.Log().Lineage()[0].ID
	kept.Again.Position = p.common - 1
	kept.Record = change(func(r *record.Record) { r.Identity.Position = p.common - 1 }).Record
	for name, c := range map[string]struct {
		x    Offered
		want OfferOutcome
	}{
		"another store": {change(func(r *record.Record) { r.Identity.Incarnation = 99 }), OfferRefused},
		"another group": {change(func(r *record.Record) { r.Identity.Group = "x" }), OfferRefused},
		"another place": {change(func(r *record.Record) { r.Identity.Position++ }), OfferRefused},
		"no message":    {change(func(r *record.Record) { r.Type = record.TypeProgress }), OfferRefused},
		"no topic":      {change(func(r *record.Record) { r.Topic = "gone" }), OfferRefused},
		"what is kept":  {kept, OfferKept},
	} {
		t.Run(name, func(t *testing.T) {
			wantOffered(t, name, p.b.offer([]Offered{c.x}, OfferOptions{}), map[OfferOutcome]int{c.want: 1})
		})
	}
	if _, err := p.b.OfferTail(t.Context(), nil, OfferOptions{}); KindOf(err) != KindInvalid {
		t.Errorf("nothing: %v", err)
	}
	if _, err := p.c.OfferTail(t.Context(), all[:1], OfferOptions{}); KindOf(err) != KindNotMaster {
		t.Errorf("at a replica: %v", err)
	}
}

// TestEachKindOfALostMessageIsOffered: messages of every kind, and decisions about what
// the group has kept, are offered as what they were.
func TestEachKindOfALostMessageIsOffered(t *testing.T) {
	var keptHalf, rolledHalf, recalled string
	later := func(m *memberNode, id string, in time.Duration) Message {
		return m.later("later", id, in)
	}
	p := partFrom(t, lostTopology(t), func(a *memberNode) {
		keptHalf, rolledHalf = a.half("pay", "kept"), a.half("pay", "rolled")
		recalled = a.publish(later(a, "recalled", time.Hour))[0].Recall
	}, func(a *memberNode) {
		a.publish(a.message("orders", "plain"))
		a.half("pay", "open")
		done := a.half("pay", "done")
		gone := a.half("pay", "gone")
		for id, r := range map[string]Resolution{done: ResolutionCommit, gone: ResolutionRollback, keptHalf: ResolutionCommit, rolledHalf: ResolutionRollback} {
			wantKind(t, "decision", a.end("pay", id, r), 0)
		}
		r := a.publish(later(a, "waits", time.Hour), later(a, "taken back", time.Hour), later(a, "past", -time.Second))
		wantKind(t, "recall", a.recall("later", r[1].Recall), 0)
		wantKind(t, "recall", a.recall("later", recalled), 0)
		for i := range 3 {
			a.publish(a.step("acct", i))
		}
		m := a.message("levels", "urgent")
		m.Priority = 3
		a.publish(m)
		a.publish(a.lite("one", 0), a.lite("two", 0))
	})
	p.b.publish(p.b.lite("other", 0)) // one lite topic more may live
	list, not := offers(t, p.store)
	wantNot := map[string]string{"done": "it was committed", "gone": "it was rolled back", "taken back": "it was recalled", "": "its half message is in this tail"}
	for id, why := range wantNot {
		if !strings.HasPrefix(not[id], why) {
			t.Errorf("%q is not offered since %q; want %q", id, not[id], why)
		}
	}
	if len(not) != len(wantNot) {
		t.Errorf("not offered: %v", not)
	}
	// plain, mark, open, done, kept, rolled and recalled, recall of "taken back" that is decided,
	// waits, past, three steps, urgent, one of two lite topics.
	wantOffered(t, "all", p.b.offer(list, OfferOptions{}), map[OfferOutcome]int{OfferStored: 14, OfferDecided: 1, OfferRefused: 1})
	wantOffered(t, "again", p.b.offer(list, OfferOptions{}), map[OfferOutcome]int{OfferAgain: 12, OfferDecided: 3, OfferRefused: 1})
	if got := p.b.drain("orders-billing", "pay"); !maps.Equal(got, map[string]int{"done": 1, "kept": 1}) {
		t.Errorf("transactions: %v", got)
	}
	if got := p.b.drain("orders-billing", "later"); !maps.Equal(got, map[string]int{"past": 1}) {
		t.Errorf("what was due: %v", got)
	}
	if n := p.b.timersPending(); n != 1 {
		t.Errorf("%d messages wait for their time", n)
	}
	p.b.mu.RLock()
	open := p.b.state.halves.LenOf("pay")
	p.b.mu.RUnlock()
	if open != 1 {
		t.Errorf("%d half messages wait for their decision", open)
	}
	var order []string
	for len(order) < 3 {
		d := p.b.receive("steps-worker", "steps", 1, time.Minute)
		if len(d) != 1 || d[0].Record.Flags()&record.FlagLate == 0 {
			t.Fatalf("after %v: %+v", order, d)
		}
		order = append(order, string(d[0].Record.MessageID()))
		p.b.ack("steps-worker", d...)
	}
	if !slices.Equal(order, []string{"acct-0", "acct-1", "acct-2"}) {
		t.Errorf("a message group comes as %v", order)
	}
	if d := p.b.receive("orders-billing", "levels", 1, time.Minute); len(d) != 1 || d[0].Queue != 3 {
		t.Errorf("a priority: %+v", d)
	}
	folded := p.b.folded()
	s := newState(p.b.self, p.b.state.store, p.b.indexes)
	if _, err := s.decode("again", folded); err != nil || !reflect.DeepEqual(s.again, p.b.state.again) {
		t.Errorf("a snapshot tells of %+v, %v", s.again, err)
	}
}

// TestWhatWasPublishedAgainIsNotOffered: of an idempotent topic the id that the record
// itself has counts.
func TestWhatWasPublishedAgainIsNotOffered(t *testing.T) {
	p := partFrom(t, lostTopology(t), func(*memberNode) {}, func(a *memberNode) {
		a.publish(a.message("ids", "again"), a.message("ids", "lost"), a.message("ids", "other"))
	})
	other := p.b.message("ids", "other")
	other.Body = []byte("of something else")
	p.b.publish(p.b.message("ids", "again"), other)
	list, _ := offers(t, p.store)
	wantOffered(t, "a preview", p.b.offer(list, OfferOptions{Dry: true}), map[OfferOutcome]int{OfferStored: 2, OfferDuplicate: 1, OfferRefused: 1})
	wantOffered(t, "all", p.b.offer(list, OfferOptions{}), map[OfferOutcome]int{OfferStored: 2, OfferDuplicate: 1, OfferRefused: 1})
	wantOffered(t, "all again", p.b.offer(list, OfferOptions{}), map[OfferOutcome]int{OfferAgain: 3, OfferRefused: 1})
	if r := p.b.send(p.b.message("ids", "lost")); r.Err != nil || r.Offset < 0 {
		t.Errorf("a late repetition of its publisher: %+v", r)
	}
	if got := p.b.drain("orders-billing", "ids"); !maps.Equal(got, map[string]int{"again": 1, "lost": 1, "other": 1}) {
		t.Errorf("consumers got %v", got)
	}
}

// TestWhatAGroupHadSettledIsNotItsAgain: a consumer group gets what it had not settled
// in the old lineage; others get all.
func TestWhatAGroupHadSettledIsNotItsAgain(t *testing.T) {
	topo := lostTopology(t, "consumer_groups:\n", "consumer_groups:\n  - {name: orders-audit, topics: [orders]}\n")
	consumed := map[string]bool{}
	p := partFrom(t, topo, func(a *memberNode) {
		a.publishN("orders", "before", 3)
		a.drain("orders-billing", "orders")
		a.drain("orders-audit", "orders")
	}, func(a *memberNode) {
		a.publishN("orders", "lost", 9)
		list := a.receive("orders-billing", "orders", 5, time.Hour)
		a.ack("orders-billing", list...)
		for _, d := range list {
			consumed[string(d.Record.MessageID())] = true
		}
		a.flushProgress(t.Context())
	})
	list, _ := offers(t, p.store)
	for _, x := range list {
		had := slices.Contains(x.Again.Groups, "orders-billing")
		if id := string(x.Record.MessageID()); had != consumed[id] || slices.Contains(x.Again.Groups, "orders-audit") {
			t.Errorf("%s was settled by %v; consumed: %v", id, x.Again.Groups, consumed[id])
		}
	}
	wantOffered(t, "all", p.b.offer(list, OfferOptions{}), map[OfferOutcome]int{OfferStored: 10})
	billing, audit := p.b.drain("orders-billing", "orders"), p.b.drain("orders-audit", "orders")
	for i := range 9 {
		id := fmt.Sprintf("lost-%d", i)
		want := 1
		if consumed[id] {
			want = 0
		}
		if billing[id] != want || audit[id] != 1 {
			t.Errorf("%s: billing had it %d times, want %d; audit %d", id, billing[id], want, audit[id])
		}
	}
}
