package peer

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// TestPeerThatDripsDoesNotHoldUpTheStop has a peer that takes a piece of what was
// sent to it just before each write's patience ends, for as long as anything is
// left.
func TestPeerThatDripsDoesNotHoldUpTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, func(ctx context.Context, s *Session) {
			if _, err := s.Recv(ctx); err != nil {
				return
			}
			for s.Send(ctx, wire.Frame{Type: wire.TypeBatch, Payload: make([]byte, 64<<10)}) == nil { //nolint:revive // until it is reset
			}
		}, nil)
		c := p.greeted(t)
		if _, err := c.Write(rawFrame(t, wire.Frame{Type: wire.TypeOpen, Session: 1, Class: zone.ClassBulk})); err != nil {
			t.Fatal(err)
		}
		dripping := make(chan struct{})
		go func() {
			defer close(dripping)
			buf := make([]byte, writeChunk)
			for {
				if _, err := io.ReadFull(c, buf); err != nil {
					return
				}
				time.Sleep(patienceFactor*p.l.o.Timing.Write - 100*time.Millisecond)
			}
		}()
		probing := make(chan struct{})
		go func() {
			defer close(probing)
			probe := wire.Probe{}
			for { // it lives, as far as it can be seen
				if _, err := c.Write(rawFrame(t, wire.Frame{Type: wire.TypeProbe, Class: zone.ClassControl, Payload: probe.Append(nil)})); err != nil {
					return
				}
				time.Sleep(p.l.o.Timing.Probe)
			}
		}()
		time.Sleep(5 * time.Second) // the buffers are full
		start := time.Now()
		if err := p.l.Close(); err != nil {
			t.Error(err)
		}
		if took, most := time.Since(start), (2*patienceFactor+2)*p.l.o.Timing.Write; took > most {
			t.Errorf("the stop took %v; want at most %v", took, most)
		}
		_ = c.Close()
		<-dripping
		<-probing
		p.close(t)
	})
}
