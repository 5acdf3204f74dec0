package datagram

import "time"

// Bounds of what may wait in the socket.
const (
	standingFor   = 100 * time.Millisecond // in which all have waited
	standingLag   = 10 * time.Millisecond  // for so long at least: then the reader is too slow for what comes
	standingLeast = 16                     // readings that tell
	markFor       = 10 * time.Millisecond  // as long packets are marked then
)

// standing tells whether a queue stands in the socket: a reader that waits for a
// processor now and then finds some that are late, one that is too slow finds no other
// (the least delay of an interval is the queue, as in CoDel, RFC 8289). It is pure.
type standing struct {
	at    time.Time // start of the interval
	least time.Duration
	count int
	till  time.Time // packets are marked until then
}

// add takes how long a datagram has waited to be read.
func (s *standing) add(now time.Time, lag time.Duration) {
	if age := now.Sub(s.at); age >= standingFor {
		if age < 2*standingFor && s.count >= standingLeast && s.least >= standingLag {
			s.till = now.Add(markFor)
		}
		s.at, s.least, s.count = now, lag, 0
	}
	s.least = min(s.least, lag)
	s.count++
}

// marks reports whether packets that are handed on now are marked.
func (s *standing) marks(now time.Time) bool { return now.Before(s.till) }
