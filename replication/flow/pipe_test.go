package flow

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func TestPipeCarriesFramesInOrderAndCopiesThem(t *testing.T) {
	a, b := Pipe()
	buf := []byte{0}
	for i := range byte(5) {
		buf[0] = i
		if err := a.Send(t.Context(), wire.Frame{Type: wire.TypeBatch, Session: 9, Class: zone.ClassBulk, Payload: buf}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(wire.CodeDraining); err != nil {
		t.Fatal(err)
	}
	for i := range byte(5) {
		f, err := b.Recv(t.Context())
		if err != nil || f.Payload[0] != i || f.Session != 9 {
			t.Fatalf("frame %d: %+v, %v", i, f, err)
		}
	}
	var closed *wire.ClosedError
	if _, err := b.Recv(t.Context()); !errors.As(err, &closed) || closed.Code != wire.CodeDraining || closed.Local {
		t.Errorf("after the end: %v", err)
	}
	if err := b.Send(t.Context(), wire.Frame{}); !errors.As(err, &closed) || closed.Code != wire.CodeDraining {
		t.Errorf("send after the end: %v", err)
	}
	if _, err := a.Recv(t.Context()); !errors.As(err, &closed) || !closed.Local {
		t.Errorf("own end: %v", err)
	}
	if err := b.Close(wire.CodeOK); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestPipeWaitsButNotLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n := 0
		for ; a.Send(ctx, wire.Frame{}) == nil; n++ {
		}
		if n != pipeDepth {
			t.Errorf("%d frames fit, want %d", n, pipeDepth)
		}
		for range n {
			if _, err := b.Recv(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Recv(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("receiving with a context that has ended: %v", err)
		}
	})
}

func TestOutgoingJoinsWhatCannotLeave(t *testing.T) {
	o := &outgoing{wake: make(chan struct{}, 1)}
	for n := range uint64(1000) {
		o.ack(1, zone.ClassBulk, &wire.Ack{Through: n + 1, Outcomes: []wire.Outcome{{First: n + 1, Through: n + 1, Outcome: 2}}, Credit: wire.Credit{Number: n}})
		o.control(wire.TypeProbeReply, 1, zone.ClassBulk, (&wire.ProbeReply{Nonce: n}).Append(nil))
	}
	if len(o.queue) > 3 {
		t.Fatalf("%d frames wait", len(o.queue))
	}
	through := uint64(0)
	for {
		f, ok := o.next()
		if !ok {
			break
		}
		switch f.frame.Type {
		case wire.TypeAck:
			if f.ack.Outcomes[0].First != through+1 || len(f.ack.Outcomes) != 1 {
				t.Errorf("outcomes %+v after %d", f.ack.Outcomes, through)
			}
			through = f.ack.Through
		case wire.TypeProbeReply:
			if p, _ := wire.ParseProbeReply(f.frame.Payload); p.Nonce != 999 {
				t.Errorf("reply to probe %d", p.Nonce)
			}
		}
	}
	if through != 1000 {
		t.Errorf("told up to %d", through)
	}
}
