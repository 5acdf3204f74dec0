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
)

// delayMeter measures how much longer packets take than they do at best. Clocks of
// the two ends need not agree: only differences count. It is pure.
type delayMeter struct {
	started  bool
	ref      uint16 // what came minus what was sent of the first packet, ticks
	baseAt   time.Time
	base     [2]int // least delay of this interval and of the one before, ticks relative to ref
	windowAt time.Time
	window   [2]int // likewise of the short intervals
}

// add takes a packet that was sent at a time of the sender's clock, in ticks, and
// returns the queue now.
func (d *delayMeter) add(now time.Time, arrived, sent uint16) time.Duration {
	if !d.started {
		*d = delayMeter{started: true, ref: arrived - sent, baseAt: now, windowAt: now}
	}
	v := int(int16(arrived - sent - d.ref))
	switch age := now.Sub(d.windowAt); {
	case age < standing:
		d.window[0] = min(d.window[0], v)
	case age < 2*standing:
		d.window, d.windowAt = [2]int{v, d.window[0]}, now
	default:
		d.window, d.windowAt = [2]int{v, v}, now
	}
	if now.Sub(d.baseAt) > calm {
		v -= d.rotate(now, v)
	}
	d.base[0] = min(d.base[0], v)
	queue := min(d.window[0], d.window[1]) - min(d.base[0], d.base[1])
	return time.Duration(max(queue, 0)) * tick
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
	d.baseAt = now
	return shift
}
