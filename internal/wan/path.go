package wan

import (
	"sync/atomic"
	"time"
)

// Path is what a direction does to packets. The zero value does nothing.
type Path struct {
	Delay time.Duration // one way
	Loss  Losses        // nil = none
	Rate  int64         // bytes a second of IP packets through the bottleneck; 0 = any
	// Queue is how much waits in front of the bottleneck before packets are dropped;
	// 0 = what it passes in 100 ms. Without Rate it says nothing.
	Queue int64
}

// Stats counts the packets of one direction, as they were on the wire: segments,
// with their IP headers.
type Stats struct {
	Packets, Bytes uint64 // sent, those that did not arrive included
	Lost           uint64 // by Path.Loss
	Overflowed     uint64 // packets that found the bottleneck's queue or the emulator full
	Handed         uint64 // times that the device handed packets over, one or several uncut
}

// Sub returns what was counted since before.
func (s Stats) Sub(before Stats) Stats {
	return Stats{s.Packets - before.Packets, s.Bytes - before.Bytes, s.Lost - before.Lost, s.Overflowed - before.Overflowed, s.Handed - before.Handed}
}

// shaper decides for each packet of a direction when it arrives. It is pure; its
// user guards it.
type shaper struct {
	path Path
	loss Loss
	free time.Time // when the bottleneck has passed what it has

	packets, bytes, lost, overflowed, handed atomic.Uint64 // read by anybody
}

// set changes the path; what is on its way stays there.
func (s *shaper) set(p Path, seed uint64) {
	if p.Queue <= 0 {
		p.Queue = p.Rate / 10
	}
	s.path, s.loss, s.free = p, nil, time.Time{}
	if p.Loss != nil {
		s.loss = p.Loss(seed)
	}
}

// admit takes a packet of so many bytes and returns when it arrives; false when it
// does not. Times never go back while now does not and the path stays.
func (s *shaper) admit(now time.Time, size int) (time.Time, bool) {
	s.packets.Add(1)
	s.bytes.Add(uint64(size))
	if s.loss != nil && s.loss.Lost(now) {
		s.lost.Add(1)
		return time.Time{}, false
	}
	if s.path.Rate == 0 {
		return now.Add(s.path.Delay), true
	}
	if s.free.Before(now) {
		s.free = now
	}
	waits := s.free.Sub(now).Seconds() * float64(s.path.Rate)
	if waits > float64(s.path.Queue) {
		s.overflowed.Add(1)
		return time.Time{}, false
	}
	s.free = s.free.Add(time.Duration(float64(size) / float64(s.path.Rate) * float64(time.Second)))
	return s.free.Add(s.path.Delay), true
}

// queue returns how long the bottleneck takes for what waits in front of it.
func (s *shaper) queue(now time.Time) time.Duration { return max(s.free.Sub(now), 0) }

func (s *shaper) stats() Stats {
	return Stats{s.packets.Load(), s.bytes.Load(), s.lost.Load(), s.overflowed.Load(), s.handed.Load()}
}
