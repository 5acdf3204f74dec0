package datagram

import "time"

// clockJump is how far the wall clock goes from the monotonic one at once when it is set:
// less than the queue that correction takes for a full path (fec.Options.Queue).
const clockJump = 5 * time.Millisecond

// clock tells whether the wall clock was set while datagrams waited: the kernel writes its
// time on them, and those of before seem to have waited for as long as it was set ahead.
type clock struct {
	at   time.Time
	till time.Time // what has come before is read by then
}

// set reports whether times of the kernel are not to be believed now.
func (c *clock) set(now time.Time) bool {
	if !c.at.IsZero() {
		c.passed(now, now.Round(0).Sub(c.at.Round(0)), now.Sub(c.at))
	}
	c.at = now
	return now.Before(c.till)
}

// passed takes what has passed since the last reading, by both clocks.
func (c *clock) passed(now time.Time, wall, monotonic time.Duration) {
	if (wall - monotonic).Abs() > clockJump {
		c.till = now.Add(longestLag)
	}
}
