package ship

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// follows opens a session as a replica that has all of the log, takes whatever comes and
// says something as often as every; 0: never. ended gets what Serve returns.
func follows(t *testing.T, l *Leader, log *simLog, every time.Duration) (ended chan error, stop func()) {
	t.Helper()
	mine, theirs := flow.Pipe()
	end := log.End()
	f := wire.Follow{Group: simGroup, Node: "b", Epoch: 3, Incarnation: log.Incarnation(), Lineage: log.Lineage(), Synced: end, End: end}
	ended = make(chan error, 1)
	go func() {
		ended <- l.Serve(t.Context(), "b", theirs, wire.Frame{Type: wire.TypeFollow, Payload: f.Append(nil)})
	}()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			if _, err := mine.Recv(t.Context()); err != nil {
				return
			}
		}
	}()
	if every > 0 {
		go func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(every):
				}
				a := wire.ShipAck{Written: end, Synced: end, Credit: 1 << 20}
				_ = mine.Send(t.Context(), wire.Frame{Type: wire.TypeShipAck, Payload: a.Append(nil)})
			}
		}()
	}
	return ended, func() {
		_ = mine.Close(wire.CodeShutdown)
		<-over
	}
}

// A replica that nobody waits for any more, whose line is dead or whose machine stands
// still, does not keep its session for ever; one that says something now and then does.
func TestASilentReplicasSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := lonely(t)
		began := time.Now()
		ended, stop := follows(t, l, log, 0)
		select {
		case err := <-ended:
			if !errors.Is(err, errMute) {
				t.Errorf("the session ended with %v", err)
			}
		case <-time.After(2 * l.o.Limits.Mute):
			t.Error("the session does not end")
		}
		if took, most := time.Since(began), l.o.Limits.Mute; took <= most || took > most+3*tick {
			t.Errorf("after %v, want %v", took, most)
		}
		stop()
		time.Sleep(time.Second)
		if r := l.Status().Replicas; len(r) != 1 || r[0].Phase != PhaseAbsent {
			t.Errorf("it is still %+v", r)
		}
		ended, stop = follows(t, l, log, l.o.Limits.Mute-time.Second)
		time.Sleep(10 * l.o.Limits.Mute)
		select {
		case err := <-ended:
			t.Errorf("a slow one's session ended: %v", err)
		default:
		}
		stop()
		<-ended
	})
}
