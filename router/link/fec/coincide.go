package fec

import (
	"cmp"
	"time"
)

// Constants of the coincidence of losses with delay.
const (
	// coincideEvery is how long an interval is. Of each, packets are drawn to compare
	// with, draws at most, and one loss is looked at: those of one overflow are one.
	coincideEvery = 50 * time.Millisecond
	draws         = 4
	// compared is with how many intervals a loss is compared, as many after it as
	// before: then a delay that rises or falls for long, or clocks that drift apart, are
	// no coincidence. leastCompared is how many of them must count.
	compared      = 64
	leastCompared = 16
	// coincideGain is the gain of the mean with each loss that is looked at. The mean
	// of what is chance then has a deviation of 0.03, and a queue that grows for long
	// and breaks down, a loss here or there, brings it to 0.12.
	coincideGain = 1.0 / 64
	coincideOn   = 0.17
	coincideOff  = 0.08
	// coincideFor is how long that counts after the last loss, and how long an interval
	// without a packet may be.
	coincideFor = 10 * time.Second
)

// coincidence tells whether packets are lost when others take longest: what a full
// queue drops is, what a path loses by chance is not. That shows a queue which stood
// before the stream began, and never drains enough to be measured: the queue of many.
//
// It is a rank test. Of each loss: the part of packets, drawn evenly from the seconds
// around it, that took less time than the one just before the loss, less the part that
// took more, halved. By chance the mean of that is nothing, whatever the delays are. It
// is pure.
type coincidence struct {
	ring  [compared + 1]interval
	next  int // of ring
	count int // in ring

	at    time.Time // start of the interval that is open
	open  interval
	lots  [draws]uint32 // of the packets that are drawn in it so far
	prev  uint16        // delay of the packet before
	last  time.Time     // of the last loss that was looked at
	score float64       // mean, from -0.5 to 0.5
	on    bool
}

// interval holds delays in ticks; only differences count.
type interval struct {
	drawn   [draws]uint16
	has     [draws]bool
	before  uint16 // of the packet before the first loss
	packets uint32
	losses  uint32 // one after the other are one
}

// add takes a packet with the number that it was sent with and its delay in ticks.
// after says that packets before it are missing.
func (c *coincidence) add(now time.Time, number uint32, delay uint16, after bool) {
	if age := now.Sub(c.at); age >= coincideEvery {
		c.close(now, age)
		c.at, c.open = now, interval{}
	}
	// Numbers times an odd constant are as good as random: the least of an interval
	// are drawn evenly from its packets.
	lot := number * 0x9e3779b1
	if i := lot % draws; !c.open.has[i] || lot < c.lots[i] {
		c.lots[i], c.open.has[i], c.open.drawn[i] = lot, true, delay
	}
	c.open.packets++
	if after {
		if c.open.losses == 0 {
			c.open.before = c.prev
		}
		c.open.losses++
	}
	c.prev = delay
}

// close takes the open interval, and looks at the one in the middle.
func (c *coincidence) close(now time.Time, age time.Duration) {
	if age > coincideFor {
		c.count = 0
		return
	}
	c.ring[c.next] = c.open
	c.next = (c.next + 1) % len(c.ring)
	if c.count = min(c.count+1, len(c.ring)); c.count < len(c.ring) {
		return
	}
	if m := &c.ring[(c.next+compared/2)%len(c.ring)]; m.losses > 0 {
		c.look(now, m.before)
	}
}

// look compares the delay before a loss with those of the packets that were drawn.
func (c *coincidence) look(now time.Time, delay uint16) {
	rank, ok := c.rank(delay)
	if !ok {
		return
	}
	if now.Sub(c.last) > coincideFor {
		c.score, c.on = 0, false
	}
	c.last = now
	c.score += (rank - c.score) * coincideGain
	if c.score >= coincideOn {
		c.on = true
	} else if c.score < coincideOff {
		c.on = false
	}
}

// rank returns where a delay stands among those that were drawn, from -0.5 to 0.5. They
// weigh as much as their intervals are likely to have a loss that is looked at: many
// packets are many chances, and they may have taken longer since they were many. It
// reports false when too few have weight.
func (c *coincidence) rank(delay uint16) (float64, bool) {
	var packets, losses uint32
	for i := range c.ring {
		packets += c.ring[i].packets
		losses += c.ring[i].losses
	}
	loss := float64(losses) / float64(packets)
	var longer, sum, squares float64
	for i := range c.ring {
		w := min(loss*float64(c.ring[i].packets), 1)
		sum += w
		squares += w * w
		longer += w * c.ring[i].longer(delay)
	}
	return longer / sum / 2, sum*sum >= leastCompared*squares
}

// longer returns the part of the interval's packets that took less time than a delay,
// less the part that took more.
func (v *interval) longer(delay uint16) float64 {
	count, sum := 0, 0
	for i, d := range v.drawn {
		if !v.has[i] {
			continue
		}
		count++
		sum += cmp.Compare(int16(delay-d), 0)
	}
	return float64(sum) / float64(max(count, 1))
}

// holds reports whether what is lost now is lost in a full queue.
func (c *coincidence) holds(now time.Time) bool {
	return c.on && now.Sub(c.last) <= coincideFor
}
