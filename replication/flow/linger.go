package flow

import (
	"context"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

const (
	// lingerFor is how long a batch may wait for more records. What it costs is
	// latency that no path gives back.
	lingerFor = time.Millisecond
	// lingerStart and lingerStop are how many batches a wait has to make one of:
	// expected before the first, and on average to go on. The space between keeps
	// a flow from changing its mind with each batch.
	lingerStart, lingerStop = 3, 2.5
	// lingerBytes is the data from which a batch does not wait: what a frame costs
	// beside its records (about 200 bytes with its headers) is nothing then.
	lingerBytes = 16 << 10
	// lingerPart is the weight of one batch in the averages.
	lingerPart = 16
	// lingerIdle is how long after the last batch a flow is an idle one, whose next
	// record has nothing to wait for.
	lingerIdle = 8 * lingerFor
)

// linger decides for one lane whether a batch that is not full waits for more
// records: only while records come so often that several batches become one. A
// lone record never waits, and none twice. Pure; it belongs to the lane.
type linger struct {
	last    time.Time     // the last batch left; zero = none yet
	gap     time.Duration // moving average between batches that were not full; 0 = none yet
	on      bool
	joined  float64   // moving average of how many times more a wait found than it began with
	until   time.Time // end of the wait; zero = none
	had     uint64    // numbers there when the wait began
	through uint64    // numbers up to this one have waited
}

// worth reports whether a batch that is about to leave should wait.
func (g *linger) worth(now time.Time) bool {
	idle := now.Sub(g.last)
	if idle >= lingerIdle {
		g.on = false
	}
	return g.on && idle < 2*lingerFor
}

// begin begins to wait with so many numbers there.
func (g *linger) begin(now time.Time, have uint64) { g.until, g.had = now.Add(lingerFor), have }

// end ends the wait, with so many numbers there, up to head.
func (g *linger) end(have, head uint64) {
	g.until, g.through = time.Time{}, head
	if !g.on {
		return
	}
	g.joined += (float64(have)/float64(max(g.had, 1)) - g.joined) / lingerPart
	if g.joined < lingerStop {
		g.on, g.gap = false, lingerIdle
	}
}

// sent tells that a batch left; whole, that it was full.
func (g *linger) sent(now time.Time, whole bool) {
	gap := min(now.Sub(g.last), lingerIdle)
	g.last = now
	if whole || g.on {
		return
	}
	if g.gap == 0 {
		g.gap = lingerIdle
	}
	g.gap += (gap - g.gap) / lingerPart
	if g.gap*(lingerStart-1) <= lingerFor {
		g.on, g.joined = true, lingerStart
	}
}

// gathers reports whether the next batch is to wait for more records. When it has
// waited, it looks what has come.
func (l *lane) gathers() (bool, error) {
	g, now := &l.linger, time.Now()
	if !g.until.IsZero() {
		if now.Before(g.until) {
			return true, nil
		}
		err := l.look()
		g.end(l.s.unsent(), l.s.head)
		return false, err
	}
	if !l.s.gatherable() || l.s.next <= g.through {
		return false, nil
	}
	if !l.s.crowded() && (l.near || l.leg.Flow.Class != zone.ClassBulk || !g.worth(now)) {
		return false, nil
	}
	g.begin(now, l.s.unsent())
	return true, nil
}

// gatherOrSend sends the next batch, unless it waits for more records. It reports
// whether it sent anything.
func (l *lane) gatherOrSend(ctx context.Context, c *conn) (bool, error) {
	waits, err := l.gathers()
	if waits || err != nil {
		return false, err
	}
	whole := !l.s.gatherable()
	sent, err := l.sendNext(ctx, c)
	if sent {
		l.linger.sent(time.Now(), whole)
	}
	return sent, err
}
