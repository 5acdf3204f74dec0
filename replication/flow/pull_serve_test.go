package flow

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// landings is a Source of one flow that landed here.
type landings struct {
	Source
	state OriginState
	items []Item
}

func (l *landings) Origin(record.FlowID) (OriginState, bool) { return l.state, true }
func (l *landings) Topology() *zone.Topology                 { return nil }
func (l *landings) Read(_ Leg, from uint64, _, _ int, dst []Item) ([]Item, error) {
	return append(dst, l.items[from-1:]...), nil
}
func (l *landings) FingerprintAt(record.FlowID, uint64) (Fingerprint, bool) {
	return Fingerprint{}, false
}
func (l *landings) Wait(record.FlowID, uint64) <-chan struct{} { return make(chan struct{}) }
func (l *landings) LegsChanged() <-chan struct{}               { return nil }
func (l *landings) Legs() []Leg                                { return nil }

func landedItem(t *testing.T, n uint64, hops uint8, residency ...zone.City) Item {
	t.Helper()
	b, err := record.AppendRecord(nil, &record.Record{Type: record.TypeMessage, Topic: "t", Residency: residency, Stored: time.Now(), Born: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return Item{Number: n, Record: b, Lineage: 7, Hops: hops, Path: []zone.City{"A", "B"}}
}

// TestHolderGivesOutOnlyWhatItHolds: what a city settled without landing it, what
// has passed too many cities and what may not pass all that were named ends the
// session as not held, and nothing is told of it in place of the record.
func TestHolderGivesOutOnlyWhatItHolds(t *testing.T) {
	ch := record.FlowID{Origin: "a", Incarnation: 5, Target: "ch", Channel: true, Class: zone.ClassUrgent}
	own := record.FlowID{Origin: "d", Incarnation: 6, Target: "ch", Channel: true, Class: zone.ClassUrgent}
	marks := []Mark{{Epoch: 1, ID: 7, First: 1}}
	good := OriginState{Oldest: 1, Head: 1, Lineage: marks, Landed: true}
	for name, c := range map[string]struct {
		state OriginState
		item  Item
		pull  wire.Open
		code  wire.Code // of the end; OK = the record comes
	}{
		"a record":                          {state: good, item: landedItem(t, 1, 1)},
		"a record of the cities named":      {state: good, item: landedItem(t, 1, 1, "B", "D"), pull: wire.Open{Residency: []zone.City{"B", "D"}}},
		"a record that may not pass them":   {state: good, item: landedItem(t, 1, 1, "B", "D"), pull: wire.Open{Residency: []zone.City{"B", "D", "X"}}, code: wire.CodeNotHeld},
		"a restricted record, none named":   {state: good, item: landedItem(t, 1, 1, "B", "D"), code: wire.CodeNotHeld},
		"too many hops":                     {state: good, item: landedItem(t, 1, 3), code: wire.CodeNotHeld},
		"parked here":                       {state: good, item: Item{Number: 1, Skip: true, Reason: record.ReasonTooLarge, Lineage: 7}, code: wire.CodeNotHeld},
		"lost here":                         {state: good, item: Item{Number: 1, Skip: true, Gap: true, Reason: record.ReasonBudget, Lineage: 7}, code: wire.CodeNotHeld},
		"trimmed here":                      {state: OriginState{Oldest: 2, Head: 1, Lineage: marks, Landed: true}, code: wire.CodeNotHeld},
		"a flow that begins here":           {state: OriginState{Oldest: 1, Head: 1, Lineage: marks}, code: wire.CodeHeld},
		"a lineage that is not here yet":    {state: good, pull: wire.Open{Lineage: []wire.Mark{{Epoch: 2, ID: 8, First: 1}}}, code: wire.CodeHeld},
		"a class that is not that of flows": {state: good, pull: wire.Open{Want: record.FlowID{Class: zone.ClassBulk}}, code: wire.CodeMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, err := NewOutbox(OutboxOptions{Source: &landings{state: c.state, items: []Item{c.item}}, City: "B", Rand: rand.New(rand.NewPCG(1, 2))})
				if err != nil {
					t.Fatal(err)
				}
				c.pull.Flow, c.pull.City, c.pull.Group, c.pull.OriginCity, c.pull.Role, c.pull.Oldest = own, "B", "b", "D", wire.OpenPull, 1
				if c.pull.Want == (record.FlowID{}) {
					c.pull.Want = ch
				}
				near, far := Pipe()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					done <- o.ServePull(ctx, far, wire.Frame{Type: wire.TypeOpen, Session: 9, Class: zone.ClassUrgent, Payload: c.pull.Append(nil)})
				}()
				got := askedFor(t, near, ch)
				cancel()
				<-done
				if got != c.code {
					t.Errorf("ended with %s, want %s", got, c.code)
				}
			})
		})
	}
}

// askedFor plays the one who asked: CodeOK when a record came, else why none did.
func askedFor(t *testing.T, s wire.Stream, id record.FlowID) wire.Code {
	t.Helper()
	for {
		f, err := s.Recv(t.Context())
		var end *wire.ClosedError
		switch {
		case errors.As(err, &end):
			return end.Code
		case err != nil:
			t.Fatal(err)
		}
		switch f.Type {
		case wire.TypeRefuse:
			r, _ := wire.ParseRefuse(f.Payload)
			return r.Code
		case wire.TypeOpen:
			o, err := wire.ParseOpen(f.Payload)
			if err != nil || o.Flow != id || o.Role != wire.OpenHolder || o.Cursor != 0 || f.Session != 9 {
				t.Fatalf("open %+v, %v", o, err)
			}
			a := wire.Accept{Group: "d", Incarnation: 1, Next: 1, Credit: wire.Credit{Number: 100, Bytes: 1 << 20}}
			if err := s.Send(t.Context(), wire.Frame{Type: wire.TypeAccept, Session: 9, Class: zone.ClassUrgent, Payload: a.Append(nil)}); err != nil {
				t.Fatal(err)
			}
		case wire.TypeBatch:
			b, err := wire.ParseBatch(f.Payload)
			if err != nil || b.Cursor != 0 || len(b.Path) != 2 || f.Hops != 1 {
				t.Fatalf("batch %+v of %d hops, %v", b, f.Hops, err)
			}
			return wire.CodeOK
		default:
			t.Fatalf("a %s frame", f.Type)
		}
	}
}

// TestOwnerHearsOfWhatOthersServe: the origin's sender takes an Ack of numbers that
// it has not sent, and sends none of them.
func TestOwnerHearsOfWhatOthersServe(t *testing.T) {
	lim := Limits{}.withDefaults()
	now := time.Unix(1e9, 0)
	for _, owner := range []bool{true, false} {
		var s sender
		s.start(now, &lim, 10, 0)
		s.owner = owner
		if _, err := s.accept(now, &wire.Accept{Next: 1}); err != nil {
			t.Fatal(err)
		}
		if n, _ := s.room(); n != 0 {
			t.Fatalf("room for %d without credit", n)
		}
		err := s.ack(now, &wire.Ack{Through: 7})
		if (err == nil) != owner {
			t.Fatalf("owner %v: %v", owner, err)
		}
		if !owner {
			continue
		}
		if p, ok := s.settlement(); !ok || p.Through != 7 || s.next != 8 {
			t.Errorf("settled %+v, next %d", p, s.next)
		}
		if err := s.ack(now, &wire.Ack{Through: 11}); err == nil {
			t.Error("a number beyond the head settled")
		}
	}
}

// TestServerOfLandingsWaitsForItself: a destination that is ahead of who serves it
// settles as that one gets there, with its outcomes.
func TestServerOfLandingsWaitsForItself(t *testing.T) {
	lim := Limits{}.withDefaults()
	now := time.Unix(1e9, 0)
	var s sender
	s.start(now, &lim, 5, 2)
	s.landed = true
	parked := []wire.Outcome{{First: 4, Through: 8, Outcome: record.OutcomeParked, Reason: record.ReasonHops}}
	if _, err := s.accept(now, &wire.Accept{Next: 10, Outcomes: parked, Credit: wire.Credit{Number: 100, Bytes: 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	p, ok := s.settlement()
	if !ok || p.Through != 5 || len(p.Outcomes) != 1 || p.Outcomes[0].Through != 5 {
		t.Fatalf("first %+v", p)
	}
	s.recorded(p.Through)
	if _, ok := s.settlement(); ok {
		t.Fatal("more is settled than there is")
	}
	s.grown(now, 7)
	p, ok = s.settlement()
	if !ok || p.Through != 7 || len(p.Outcomes) != 1 || p.Outcomes[0].First != 6 || p.Outcomes[0].Through != 7 {
		t.Fatalf("then %+v", p)
	}
	s.recorded(p.Through)
	if n, _ := s.room(); n != 0 {
		t.Errorf("room for %d numbers that are settled", n)
	}
	s.grown(now, 12)
	if n, _ := s.room(); n == 0 || s.next != 10 {
		t.Errorf("room for %d from %d on", n, s.next)
	}
}
