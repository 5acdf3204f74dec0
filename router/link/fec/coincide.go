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
	// coincideGap is how long an interval without a packet may be. What is further apart
	// is not compared.
	coincideGap = time.Second
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
	// coincideMost bounds the mean: of a queue that is gone, losses by chance have to
	// bring it below coincideOff.
	coincideMost = 0.25
	// coincideFor is how long it counts after the last loss, and coincideForget how long
	// the mean is kept without one.
	coincideFor    = 10 * time.Second
	coincideForget = time.Minute
	// tracked is how many numbers the packets are remembered of: a loss is known when
	// reordered more have been sent, and what came before it may be as late as that.
	tracked = 2 * reordered
)

// coincidence tells whether packets are lost when others take longest: what a full
// queue drops is, what a path loses by chance is not. That shows a queue which stood
// before the stream began, and never drains enough to be measured: the queue of many.
//
// It is a rank test. Of each loss: the part of packets, drawn evenly from the seconds
// around it, that took less time than the packet sent just before the lost one, less
// the part that took more, halved. Where losses do not depend on delay the mean of that
// is nothing, whatever the delays are. A stream of fewer than some 20 packets a second
// is not judged. It is pure.
type coincidence struct {
	ring   [compared + 1]interval
	next   int           // of ring: the oldest, and the place of the open one
	count  int           // in ring
	closed uint32        // intervals so far; the number of the open one
	open   interval      // not in ring yet
	lots   [draws]uint32 // of the packets that are drawn in it so far

	started bool
	ahead   uint32          // one above the newest number
	passed  [tracked]passed // by number

	last  time.Time // start of the interval of the last loss that was looked at
	score float64   // mean, from -0.5 to coincideMost
	on    bool
}

// interval holds delays in ticks; only differences count.
type interval struct {
	at      time.Time // start; zero = it is none
	drawn   [draws]uint16
	has     [draws]bool // of drawn
	packets uint32
	losses  uint32 // one after the other are one
	before  uint16 // of the packet before one of the losses
	lot     uint32 // of that loss
}

// passed is what is known of a number.
type passed struct {
	came     bool
	delay    uint16
	interval uint32 // in which it came
}

// add takes a packet with the number that it was sent with and its delay in ticks.
func (c *coincidence) add(now time.Time, number uint32, delay uint16) {
	if age := now.Sub(c.open.at); age >= coincideEvery {
		c.close(now, age)
		c.open = interval{at: now}
	}
	lot := mix(number)
	if i := lot % draws; !c.open.has[i] || lot < c.lots[i] {
		c.lots[i], c.open.has[i], c.open.drawn[i] = lot, true, delay
	}
	c.open.packets++
	c.track(number)
	if c.ahead-number <= reordered {
		c.passed[number%tracked] = passed{came: true, delay: delay, interval: c.closed}
	}
}

// mix makes a number look like one that was drawn: the packets of an interval that have
// the least ones are drawn evenly from it (the finalizer of MurmurHash3).
func mix(n uint32) uint32 {
	n = (n ^ n>>16) * 0x85ebca6b
	n = (n ^ n>>13) * 0xc2b2ae35
	return n ^ n>>16
}

// track makes room for the numbers up to one, and counts those as lost that have not
// come meanwhile and whose predecessor has.
func (c *coincidence) track(number uint32) {
	steps := int32(number - c.ahead + 1)
	if !c.started || steps > jump || steps < -jump {
		c.started, c.ahead, c.passed = true, number+1, [tracked]passed{}
		return
	}
	for range min(steps, tracked+reordered) { // what follows finds nothing any more
		c.passed[c.ahead%tracked] = passed{}
		old := c.ahead - reordered
		if p := c.passed[(old-1)%tracked]; p.came && !c.passed[old%tracked].came {
			c.lose(old, p)
		}
		c.ahead++
	}
	if steps > 0 {
		c.ahead = number + 1
	}
}

// lose notes a loss in the interval in which the packet before it came. One of the
// losses there is drawn.
func (c *coincidence) lose(number uint32, p passed) {
	v := &c.open
	if age := int(c.closed - p.interval); age > min(c.count, compared/2-1) {
		return
	} else if age > 0 {
		v = &c.ring[(c.next-age+len(c.ring))%len(c.ring)]
	}
	v.losses++
	if lot := mix(number); v.losses == 1 || lot < v.lot {
		v.lot, v.before = lot, p.delay
	}
}

// close takes the open interval, and looks at the one in the middle.
func (c *coincidence) close(now time.Time, age time.Duration) {
	c.closed++
	if age > coincideGap {
		c.count = 0
		return
	}
	c.ring[c.next] = c.open
	c.next = (c.next + 1) % len(c.ring)
	if c.count = min(c.count+1, len(c.ring)); c.count < len(c.ring) {
		return
	}
	if m := &c.ring[(c.next+compared/2)%len(c.ring)]; m.losses > 0 && now.Sub(m.at) <= coincideFor {
		c.look(m)
	}
}

// look compares the delay before a loss with those of the packets that were drawn.
func (c *coincidence) look(m *interval) {
	rank, ok := c.rank(m.before)
	if !ok {
		return
	}
	if m.at.Sub(c.last) > coincideForget {
		c.score, c.on = 0, false
	}
	c.last = m.at
	c.score = min(c.score+(rank-c.score)*coincideGain, coincideMost)
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
