package link

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/zone"
)

// TestBudgetGivesTheRateAndUrgentFramesGoFirst asks for more than there is, with
// bulk frames and urgent ones in turn: what may be sent in any second is the rate,
// urgent frames have their share at once whatever waits before them, and bulk ones
// have the rest.
func TestBudgetGivesTheRateAndUrgentFramesGoFirst(t *testing.T) {
	const rate = 1 << 20
	b := newBudget(rate)
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	var bulk, urgent int
	bulkAt, urgentAt := start, start // when the next frame of the class may be asked for
	for now := start; now.Before(start.Add(10 * time.Second)); now = now.Add(time.Millisecond) {
		for !bulkAt.After(now) { // one of four sessions asks as soon as the frame before went
			n := 1 + r.IntN(64<<10)
			bulkAt = now.Add(b.take(now, zone.ClassBulk, n))
			bulk += n
		}
		for !urgentAt.After(now) {
			n := 1 + r.IntN(1<<10)
			wait := b.take(now, zone.ClassUrgent, n)
			if wait > 0 {
				t.Fatalf("an urgent frame waits %v", wait)
			}
			urgentAt = now.Add(10 * time.Millisecond) // some 50 kB a second
			urgent += n
		}
	}
	if all := float64(bulk+urgent) / (10 * rate); all < 0.95 || all > 1.02 {
		t.Errorf("%d bytes of bulk and %d of urgent frames in ten seconds: %.2f of the rate", bulk, urgent, all)
	}
}

func TestUrgentFramesLeaveBulkOnesAnEighth(t *testing.T) {
	b := newBudget(1 << 20)
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	end := now.Add(10 * time.Second)
	sent := map[zone.Class]int{}
	next := map[zone.Class]time.Time{}
	for ; now.Before(end); now = now.Add(time.Millisecond) {
		for _, class := range []zone.Class{zone.ClassUrgent, zone.ClassBulk} {
			for !next[class].After(now) {
				next[class] = now.Add(b.take(now, class, 4<<10))
				sent[class] += 4 << 10
			}
		}
	}
	if part := float64(sent[zone.ClassBulk]) / (10 << 20); part < 0.1 || part > 0.16 {
		t.Errorf("bulk frames get %.2f of the rate beside urgent ones that would take it all, want an eighth", part)
	}
}

// TestRateIsObeyedOnTheWire counts what a node with a limit sends over a path
// without loss and one that loses 3 %, with correction: headers, repeats and parity
// included it is what the limit says, and the status names the limit.
func TestRateIsObeyedOnTheWire(t *testing.T) {
	const rate = 1 << 20
	for name, loss := range map[string]float64{"clean": 0, "lossy": 0.03} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 15*time.Millisecond)
				defer w.close()
				x := new(senders)
				change := func(o *Options) {
					corrected(o)
					o.Classes = []zone.Class{zone.ClassBulk}
					o.Limits.Rate = rate
				}
				a := w.start("a", "amsterdam", 11, x.handle, change)
				b := w.start("b", "berlin", 12, x.handle, change)
				a.SetPeers([]Peer{b.peer})
				b.SetPeers([]Peer{a.peer})
				x.from, x.to = a, "b"
				w.until(2*time.Second, "link", func() bool { return bulkUp(a, "b") && bulkUp(b, "a") })
				var wire atomic.Int64
				drop := losing(7, loss)
				w.setDrop(func(p simnet.Packet) bool {
					if p.From.String() == a.peer.Addr {
						wire.Add(int64(len(p.Data)) + 28) // RFC 768, RFC 791
					}
					return drop(p)
				})
				x.start(4, 32<<10)
				defer x.end()
				time.Sleep(5 * time.Second) // the first parity
				before, good := wire.Load(), x.total()
				time.Sleep(10 * time.Second)
				sent, took := float64(wire.Load()-before)/10/rate, float64(x.total()-good)/10/rate
				s := statusOf(a, "b")
				t.Logf("%.3f of the rate on the wire, %.3f goodput; %+v", sent, took, s.Rates)
				if sent > 1.03 || sent < 0.9 {
					t.Errorf("%.3f of the rate on the wire", sent)
				}
				if s.Rates.Bound != BoundRate || s.Connections != 1 {
					t.Errorf("bound by %v with %d connections, want the rate and one", s.Rates.Bound, s.Connections)
				}
				if loss > 0 && s.Rates.Parity == 0 {
					t.Errorf("no parity in %+v", s.Rates)
				}
			})
		})
	}
}
