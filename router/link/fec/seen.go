package fec

// settled is how far behind the newest packet one may come before it counts as
// lost, in packets.
const settled = 256

// reordered is how far behind the newest packet one may come before it counts as
// missing for now, in packets.
const reordered = 32

// jump is the largest step ahead that is believed to be loss, in packets; what is
// further is another start of the sender. A path that loses so much in a row
// gave no packet for a second at full speed.
const jump = 1 << 17

// seen counts which packets came, by their numbers. It is pure.
type seen struct {
	started bool
	next    uint32 // one above the newest
	low     uint32 // below it everything is settled; next-low <= settled
	bits    [settled / 64]uint64
	run     uint32 // losses in a row just below low
	stale   int    // packets in a row that were older than low

	received, lost, bursts uint32
	holes                  uint32 // packets that were missing for longer than re-ordering takes
	longest                uint32 // since it was last taken
}

func (s *seen) bit(n uint32) (word *uint64, mask uint64) {
	i := n % settled
	return &s.bits[i/64], 1 << (i % 64)
}

// add notes a packet and reports whether it is new, as far as is known: what is
// older than all that is open may be.
func (s *seen) add(n uint32) bool {
	ahead := int32(n - s.next)
	switch {
	case !s.started || ahead > jump || ahead < -jump || s.stale > settled/4:
		s.started, s.run = true, 0
		s.next, s.low, s.bits = n, n, [settled / 64]uint64{}
		ahead = 0
	case int32(n-s.low) < 0:
		s.stale++ // if nothing else comes, the number ahead of them was wrong
		return true
	}
	s.stale = 0
	for ; ahead >= 0; ahead-- { // makes room for each number up to n
		if s.next-s.low == settled {
			s.settle()
		}
		s.next++
		if old := s.next - 1 - reordered; int32(old-s.low) >= 0 {
			if word, mask := s.bit(old); *word&mask == 0 {
				s.holes++
			}
		}
	}
	word, mask := s.bit(n)
	if *word&mask != 0 {
		return false
	}
	*word |= mask
	s.received++
	return true
}

// settle decides about the oldest packet.
func (s *seen) settle() {
	word, mask := s.bit(s.low)
	if *word&mask != 0 {
		*word &^= mask
		s.run = 0
	} else {
		s.lost++
		if s.run == 0 {
			s.bursts++
		}
		s.run++
		s.longest = max(s.longest, s.run)
	}
	s.low++
}

// settleBelow decides about everything older than n.
func (s *seen) settleBelow(n uint32) {
	for s.low != s.next && int32(n-s.low) > 0 {
		s.settle()
	}
}
