package fec

import "time"

// markFor is how long packets are marked after a loss for want of room, so that
// each connection of the peer's that sends gets a mark. It is less than the round
// trip of a path on which correction pays, and QUIC slows down once in a round trip.
const markFor = 10 * time.Millisecond

// crowd tells whether what a peer sends is too much: a queue stands on the way, or
// this end's socket has no room. It is pure.
type crowd struct {
	bound time.Duration // a queue above it is congestion
	delay delayMeter
	queue time.Duration
	full  bool // the queue was above the bound, and not under half of it since
	falls coincidence

	socket  uint32 // datagrams that the socket dropped, as it counts
	counted bool   // socket is known
	own     uint32 // of them, those since the stream began
	strain  time.Time
	mark    time.Time // till when packets are marked
}

// add takes a packet with the number and the time of the sender's clock, in ticks, that
// it was sent with.
func (c *crowd) add(now time.Time, number uint32, arrived, sent uint16) {
	c.falls.add(now, number, arrived-sent)
	c.queue = c.delay.add(now, number, arrived, sent, c.bound)
	if c.queue > c.bound {
		c.full = true
	} else if c.queue < c.bound/2 {
		c.full = false
	}
}

// overflowed takes how many datagrams the socket has dropped.
func (c *crowd) overflowed(now time.Time, total uint32) {
	if c.counted && c.socket != total {
		c.own += total - c.socket
		c.strain = now.Add(strain)
	}
	c.counted, c.socket = true, total
}

// on reports whether what is lost now is lost for want of room.
func (c *crowd) on(now time.Time) bool {
	return c.full || now.Before(c.strain) || c.falls.holds(now)
}

// lost notes that packets are missing. The connection that they belong to finds
// that out by itself or is told with the repaired ones; the others would go on, and
// a peer with many would take what one with few gives up.
func (c *crowd) lost(now time.Time) {
	if c.on(now) && !now.Before(c.mark) {
		c.mark = now.Add(markFor)
	}
}

// marks reports whether a packet tells QUIC of congestion: every other one, since a
// path that marks all is taken for broken (RFC 9000 section 13.4.2).
func (c *crowd) marks(now time.Time, number uint32) bool {
	return number&1 == 0 && now.Before(c.mark)
}
