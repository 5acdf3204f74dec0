package flow

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// gate is a dialler to one inbox whose way may be lost. It counts attempts.
type gate struct {
	mu    sync.Mutex
	lost  bool // guarded by mu
	dials int  // guarded by mu
	inbox *Inbox
	wg    sync.WaitGroup
	ctx   context.Context
}

type noRoute struct{}

func (noRoute) Error() string       { return "no route" }
func (noRoute) WireCode() wire.Code { return wire.CodeNoRoute }

func (g *gate) Open(context.Context, Leg, uint64) (wire.Stream, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dials++
	if g.lost {
		return nil, noRoute{}
	}
	a, b := Pipe()
	g.wg.Go(func() { _ = g.inbox.Serve(g.ctx, b) })
	return a, nil
}

func (g *gate) set(lost bool) (dials int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	dials = g.dials
	g.lost, g.dials = lost, 0
	return dials
}

// TestLegsWithoutARouteWaitForOneThatTries: however many legs have lost their
// way, the dials do not grow with them, and when the way is back all go on at
// once.
func TestLegsWithoutARouteWaitForOneThatTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const legs = 100
		rng := rand.New(rand.NewPCG(1, 2))
		ctx, cancel := context.WithCancel(t.Context())
		src, sink := newMemSource(rng), newMemSink(rng, "b")
		var all []Leg
		for i := range legs {
			id := record.FlowID{Origin: "a", Incarnation: 1, Target: "b", Class: zone.ClassBulk, Lane: uint8(i)}
			all = append(all, Leg{Flow: id, City: "x", Group: "b"})
			src.addFlow(id, all[i])
		}
		src.restart()
		done := make(chan struct{})
		go func() { defer close(done); sink.run(ctx) }()
		in, err := NewInbox(InboxOptions{Sink: sink, City: "x"})
		if err != nil {
			t.Fatal(err)
		}
		g := &gate{inbox: in, ctx: ctx, lost: true}
		out, err := NewOutbox(OutboxOptions{Source: src, Dialer: g, City: "y", Rand: rng})
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error, 1)
		go func() { ran <- out.Run(ctx) }()
		for i, leg := range all {
			src.publish(leg.Flow, "ok", 10+i)
		}
		time.Sleep(10 * time.Second)
		g.set(true)
		const span = 100
		time.Sleep(span * time.Second)
		// One leg tries each 250 ms in the mean, the others each 7.5 s at the most.
		if n := g.set(false); n > span*(8+legs/5) || n < span {
			t.Errorf("%d dials in %d s", n, span)
		}
		time.Sleep(1500 * time.Millisecond)
		for _, leg := range all {
			if n := src.settled(leg); n != 1 {
				t.Errorf("leg %d did not go on within 1.5 s of its way's return", leg.Flow.Lane)
			}
		}
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		g.wg.Wait()
		<-done
	})
}

func TestVerifierSpreadsAndComesAtOnce(t *testing.T) {
	now := time.Unix(1000, 0)
	var idle []Leg
	for i := range 10 {
		idle = append(idle, Leg{City: zone.City(fmt.Sprint("c", i%2)), Group: "g", Flow: record.FlowID{Lane: uint8(i)}})
	}
	half := func(d time.Duration) time.Duration { return d / 2 }
	var v verifier
	ask := func(after time.Duration, some int) int {
		return len(v.plan(now.Add(after), idle, time.Minute, some, half))
	}
	for i, c := range []struct {
		after time.Duration
		some  int
		want  int
	}{{0, 16, 0}, {29 * time.Second, 16, 0}, {30 * time.Second, 4, 4}, {31 * time.Second, 16, 6}, {32 * time.Second, 16, 0}} {
		if n := ask(c.after, c.some); n != c.want {
			t.Errorf("step %d: %d legs are asked, want %d", i, n, c.want)
		}
	}
	d := destination{"c1", "g"}
	for range 2 {
		if v.met(d, store{1, 1}) {
			t.Error("the store that was met first is no news")
		}
	}
	if !v.met(d, store{1, 2}) || ask(33*time.Second, 16) != 5 {
		t.Error("another start of the store does not bring its legs at once")
	}
	if !v.met(d, store{2, 1}) || ask(34*time.Second, 2) != 2 || ask(35*time.Second, 16) != 3 {
		t.Error("another store does not bring its legs, piece by piece")
	}
	idle = nil
	if ask(time.Hour, 16) != 0 || len(v.due) != 0 {
		t.Error("legs that are gone are kept in mind")
	}
}
