package link

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// TestAnAnswerThatCannotBeIsNotMeasured: what a peer makes up is neither progress nor a
// round trip longer than the connection has lived.
func TestAnAnswerThatCannotBeIsNotMeasured(t *testing.T) {
	const age, ago = time.Second, 30 * time.Millisecond
	for name, c := range map[string]struct {
		reply wire.ProbeReply
		want  time.Duration // 0 = it is not taken
	}{
		"the answer":                {wire.ProbeReply{Nonce: 5, SentAt: uint64(age - ago)}, ago},
		"of the connection's start": {wire.ProbeReply{Nonce: 5, SentAt: 0}, age},
		"answered before":           {wire.ProbeReply{Nonce: 4, SentAt: uint64(age - ago)}, 0},
		"never asked":               {wire.ProbeReply{Nonce: 6, SentAt: uint64(age - ago)}, 0},
		"of the future":             {wire.ProbeReply{Nonce: 5, SentAt: uint64(age + 1)}, 0},
		"of the far future":         {wire.ProbeReply{Nonce: 5, SentAt: math.MaxUint64}, 0},
		"half of all numbers":       {wire.ProbeReply{Nonce: 5, SentAt: 1<<63 + uint64(2*age)}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &link{events: make(chan message, 1), ended: make(chan struct{})}
			x := &conn{link: l, start: time.Now()}
			x.nonce.Store(5)
			x.replied.Store(4)
			time.Sleep(age)
			x.measure(c.reply)
			if got := time.Duration(x.rtt.Load()); got != c.want || len(l.events) != min(int(c.want), 1) {
				t.Errorf("%s: a round trip of %v, want %v; %d events", name, got, c.want, len(l.events))
			}
		})
	}
}
