package call

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/masters"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// refuses is a session with a node that is not the master.
type refuses struct {
	first wire.Frame
	end   error // instead of a refusal
}

func (r *refuses) Send(_ context.Context, f wire.Frame) error {
	r.first = f
	return nil
}

func (r *refuses) Recv(context.Context) (wire.Frame, error) {
	if r.end != nil {
		return wire.Frame{}, r.end
	}
	return masters.Refusal(&r.first, "other", 2, ""), nil
}

func (r *refuses) Close(wire.Code) error { return nil }

// A call that meets a node which is not the master was not looked at: it is made again
// until it finds the master or its caller's time is over.
func TestCallGoesOnUntilItMeetsTheMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Bounds{})
		c := w.caller(2, identity("a", "z"), Options{})
		reach, tries := c.o.Open, 0
		c.o.Open = func(ctx context.Context, to zone.Group, session uint64) (wire.Stream, error) {
			if tries++; tries <= 4 {
				return &refuses{}, nil
			}
			return reach(ctx, to, session)
		}
		began := time.Now()
		got, err := c.Call(t.Context(), "gb", kindEcho, []byte("x"))
		if err != nil || string(got) != "x" || tries != 5 {
			t.Errorf("%q, %v after %d attempts", got, err, tries)
		}
		if took := time.Since(began); took < 150*time.Millisecond || took > 200*time.Millisecond {
			t.Errorf("four refusals cost %v", took)
		}

		tries = -1000
		began = time.Now()
		_, err = c.Call(within(t, 4*time.Second), "gb", kindEcho, nil)
		notAnswered(t, err, false)
		if took := time.Since(began); took != 3750*time.Millisecond {
			t.Errorf("without a master the call ended after %v", took)
		}
		if n := tries + 1000; n < 8 || n > 16 {
			t.Errorf("%d attempts in 4 s", n)
		}
	})
}

// A session that ends may have done what was asked: its call is not made again.
func TestCallThatMayHaveBeenDoneIsNotRepeated(t *testing.T) {
	tries := 0
	c, err := NewClient(Options{Session: func() uint64 { return 1 }, Open: func(context.Context, zone.Group, uint64) (wire.Stream, error) {
		tries++
		return &refuses{end: &wire.ClosedError{Code: wire.CodeNotMaster}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Call(t.Context(), "gb", kindEcho, nil)
	notAnswered(t, err, true)
	var closed *wire.ClosedError
	if tries != 1 || !errors.As(err, &closed) {
		t.Errorf("%v after %d attempts", err, tries)
	}
}
