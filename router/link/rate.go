package link

import (
	"context"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/router/link/fec"
	"github.com/mqrouter/mqrouter/zone"
)

// rateBurst is how much of its rate a node may have saved up while it sent less:
// what a timer of the operating system may be late, so that none of it is lost.
const rateBurst = 10 * time.Millisecond

// urgentShare is the part of the rate that urgent frames may take: what is left
// keeps the probes of bulk links alive, and what they carry moving.
const urgentShare = 7.0 / 8

// budget is what may be sent to one node in a second, by all links with it. Frames
// are charged before they are written, in the order of asking; what goes beside
// them (headers, acknowledgements, repeats, parity) is charged when it has been
// counted, so that the sum obeys the rate over about a second. Urgent frames never
// wait for bulk ones.
type budget struct {
	rate float64 // bytes a second

	mu          sync.Mutex
	all, urgent time.Time // guarded by mu; when what was taken has been sent at the rate, and at its urgent share
	parity      uint64    // guarded by mu; fec.Status.Extra that was charged
}

func newBudget(rate int64) *budget {
	if rate <= 0 {
		return nil
	}
	return &budget{rate: float64(rate)}
}

// take takes n bytes for a frame and returns how long to wait before it is sent.
func (b *budget) take(now time.Time, class zone.Class, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	least := now.Add(-rateBurst)
	before := spend(&b.all, least, float64(n)/b.rate)
	if class == zone.ClassUrgent {
		before = spend(&b.urgent, least, float64(n)/(b.rate*urgentShare))
	}
	return max(before.Sub(now), 0)
}

// spend moves a clock on by some seconds, from no earlier than least; it returns
// where it was.
func spend(clock *time.Time, least time.Time, seconds float64) time.Time {
	if clock.Before(least) {
		*clock = least
	}
	was := *clock
	*clock = was.Add(time.Duration(seconds * float64(time.Second)))
	return was
}

// charge takes n bytes that have been sent beside frames; n below 0 gives back.
func (b *budget) charge(now time.Time, n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	spend(&b.all, now.Add(-rateBurst), n/b.rate)
}

// chargeParity charges what correction has added since it was last told. The links
// with a node share its stream, and whichever is sampled first tells it.
func (b *budget) chargeParity(now time.Time, st *fec.Status) {
	b.mu.Lock()
	added := st.Extra - b.parity
	if st.Extra < b.parity { // a later start of the peer: another stream
		added = st.Extra
	}
	b.parity = st.Extra
	b.mu.Unlock()
	b.charge(now, float64(added))
}

// pace waits until a frame of n bytes may be sent. It returns the context's error
// when that ends first; the connection's end is left to the write to find.
func (c *conn) pace(ctx context.Context, n int) error {
	b := c.link.budget
	if b == nil {
		return nil
	}
	wait := b.take(time.Now(), c.link.key.Class, n)
	if wait <= 0 {
		return nil
	}
	start := time.Now()
	t := time.NewTimer(wait)
	defer t.Stop()
	defer func() { c.throttled.Add(int64(time.Since(start))) }()
	select {
	case <-t.C:
		return nil
	case <-c.qc.Context().Done():
		return nil
	case <-ctx.Done():
		b.charge(time.Now(), -float64(n))
		return ctx.Err()
	}
}
