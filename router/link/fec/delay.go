package fec

import "time"

// Constants of the measurement of queues.
const (
	// calm is how long the least delay ever seen stays the base to compare with. A
	// queue that stands for longer than twice that counts as the path itself.
	calm = 30 * time.Second
	// standing is the interval whose least delay is the queue, as in CoDel (RFC
	// 8289): what stands in a queue delays the luckiest packet too, while jitter,
	// of the path or of a busy processor, does not.
	standing = 20 * time.Millisecond
	// youngFor is how long a jump is a queue at once: that of a new stream's slow start.
	youngFor = time.Second
	// stillFor and stillWindows are how long the delay must stand still after a jump
	// to be that of a longer path, and in how many short intervals with packets.
	stillFor     = 100 * time.Millisecond
	stillWindows = 5
	// wander is how much the least delay of a short interval may differ meanwhile;
	// of a long jump a wanderPart of it.
	wander     = time.Millisecond
	wanderPart = 16
	// missingMost and missingPart are how many packets may be missing meanwhile, and
	// which part on top: more is what a full queue drops.
	missingMost = 3
	missingPart = 10
)

// delayMeter measures how much longer packets take than they do at best. Clocks of
// the two ends need not agree: only differences count. It is pure.
//
// A route that becomes longer looks like a queue at first. But a queue that grew
// within two short intervals does not stand still after that, unless it is full and
// drops. So a jump is not told until it has either moved, which a queue does, or
// stood still, which makes it the base.
type delayMeter struct {
	started  bool
	ref      uint16    // what came minus what was sent of the first packet, ticks
	since    time.Time // of the first packet
	baseAt   time.Time
	base     [2]int // least delay of this interval and of the one before, ticks relative to ref
	windowAt time.Time
	window   [2]int // likewise of the short intervals
	queue    int    // ticks, as measured, whether told or not
	step     step
}

// step is a jump of the delay that may be that of a longer path.
type step struct {
	on        bool
	at        time.Time
	told      int // the queue before, ticks
	tolerance int // ticks
	low, high int // least delays of the short intervals since, ticks relative to ref
	windows   int // how many
	came      int // packets since
	first     uint32
	last      uint32 // newest number
}

// add takes a packet with a number that was sent at a time of the sender's clock, in
// ticks, and returns the queue now. A jump counts that passes the bound.
func (d *delayMeter) add(now time.Time, number uint32, arrived, sent uint16, bound time.Duration) time.Duration {
	if !d.started {
		*d = delayMeter{started: true, ref: arrived - sent, since: now, baseAt: now, windowAt: now}
	}
	v := int(int16(arrived - sent - d.ref))
	age := now.Sub(d.windowAt)
	switch {
	case age < standing:
		d.window[0] = min(d.window[0], v)
	case age < 2*standing:
		d.step.note(d.window[0])
		d.window, d.windowAt = [2]int{v, d.window[0]}, now
	default:
		d.step.note(d.window[0])
		d.window, d.windowAt = [2]int{v, v}, now
	}
	if now.Sub(d.baseAt) > calm {
		v -= d.rotate(now, v)
	}
	d.base[0] = min(d.base[0], v)
	before := d.queue
	d.queue = d.measure()
	if limit := int(bound / tick); d.step.on {
		d.follow(now, number, limit)
	} else if now.Sub(d.since) >= youngFor && before <= limit && d.queue > limit && d.queue-before > limit*2/3 {
		d.step = step{
			on: true, at: now, told: before, first: number, last: number,
			tolerance: max(int(wander/tick), (d.queue-before)/wanderPart),
		}
		if age < 2*standing { // else a packet is all that came of the interval before
			d.step.note(d.window[1])
		}
	}
	if d.step.on {
		return time.Duration(d.step.told) * tick
	}
	return time.Duration(d.queue) * tick
}

// measure returns by how much the least delay of late is above the base.
func (d *delayMeter) measure() int {
	return max(min(d.window[0], d.window[1])-min(d.base[0], d.base[1]), 0)
}

// follow looks at what became of a jump.
func (d *delayMeter) follow(now time.Time, number uint32, limit int) {
	s := &d.step
	s.came++
	if int32(number-s.last) > 0 {
		s.last = number
	}
	sent := int(s.last - s.first)
	moved := s.windows > 0 && s.high-min(s.low, d.window[0]) > s.tolerance
	if d.queue <= limit || moved || sent-s.came > missingMost+sent/missingPart {
		s.on = false
		return
	}
	if now.Sub(s.at) >= stillFor && s.windows >= stillWindows {
		s.on = false
		d.base = [2]int{s.low, s.low}
		d.queue = d.measure()
	}
}

// note takes the least delay of a short interval.
func (s *step) note(least int) {
	if s.windows == 0 {
		s.low, s.high = least, least
	}
	s.low, s.high = min(s.low, least), max(s.high, least)
	s.windows++
}

// rotate begins another interval and moves the reference, so that the differences
// stay small when clocks drift apart for long; it returns by how much.
func (d *delayMeter) rotate(now time.Time, v int) int {
	if now.Sub(d.baseAt) > 2*calm {
		d.base[0] = v // nothing came for an interval
	}
	shift := d.base[0]
	d.ref += uint16(int16(shift))
	d.base = [2]int{v - shift, 0}
	d.window[0] -= shift
	d.window[1] -= shift
	d.step.low -= shift
	d.step.high -= shift
	d.baseAt = now
	return shift
}
