package timer

import (
	"sync"
	"time"
)

// The bounds of a Clock.
const (
	// Slack is a difference between two readings that is no step: what the
	// adjustment of a running clock and the time between two readings come to. It
	// is far below the accuracy that delayed messages have (100 ms).
	Slack = 20 * time.Millisecond
	// Proof is how long a step of the wall clock must last before it is believed.
	// A time server that is wrong, and a hypervisor that sets the clock of a
	// machine it has just woken, are corrected within seconds; a machine that was
	// suspended delivers this much later than it could.
	Proof = 10 * time.Second
)

// Clock is the time by which delayed messages fall due. Their times are wall
// time, given by clients; a wall clock can be set, so this one runs on the
// monotonic clock and follows the wall clock only where that proves to be right.
//
// While the two differ, the earlier reading counts, so that nothing is early by
// either of them:
//
//   - Set forward (also: the machine was suspended, during which the monotonic
//     clock may stand still): nothing falls due by the new time for Proof, then
//     everything that is due by it does, once.
//   - Set back: from that moment on nothing falls due before the new time says so.
//     After Proof the old time is forgotten.
//   - Set and set back within Proof: as if nothing had happened, but for messages
//     that waited meanwhile.
//
// It is safe for concurrent use. Steps are seen when Now is called, so its owner
// calls it at least once a second while a message waits.
type Clock struct {
	wall func() time.Time

	mu      sync.Mutex
	base    time.Time     // wall time at anchor; guarded by mu, as is all below
	anchor  time.Time     // its monotonic reading counts
	step    time.Duration // the difference that is on trial; 0 = none
	since   time.Time     // monotonic: when the trial began
	adopted uint64
}

// NewClock returns a clock that begins at the wall clock's present reading. wall
// reads it; nil means the system's.
func NewClock(wall func() time.Time) *Clock {
	if wall == nil {
		wall = func() time.Time { return time.Now().Round(0) } // without the monotonic reading
	}
	return &Clock{wall: wall, base: wall(), anchor: time.Now()}
}

// Now returns the time by which messages fall due.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	own, wall := c.base.Add(now.Sub(c.anchor)), c.wall()
	skew := wall.Sub(own)
	switch {
	case skew.Abs() <= Slack:
		c.base, c.anchor, c.step = wall, now, 0
		return wall
	case c.step == 0 || (skew-c.step).Abs() > Slack: // a step, or another one
		c.step, c.since = skew, now
	case now.Sub(c.since) >= Proof:
		c.base, c.anchor, c.step = wall, now, 0
		c.adopted++
		return wall
	}
	if wall.Before(own) {
		return wall
	}
	return own
}

// Trial returns the step that is not believed yet, 0 when there is none, and how
// many steps were.
func (c *Clock) Trial() (step time.Duration, adopted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.step, c.adopted
}
