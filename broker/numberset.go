package broker

import (
	"math/bits"
	"slices"

	"github.com/mqrouter/mqrouter/zone"
)

// numberSet is a set of numbers of a flow, kept as bitmaps: what a decision
// takes out of a backlog may be every second number of millions. It costs one
// bit for each number between the lowest and the highest that it has, in chunks
// of 512 bytes. The zero value is empty.
type numberSet struct {
	// full says that every number up to and with it, as far as anybody asks, is
	// in the set: a destination that stays away costs no bit for each number.
	full   uint64
	chunks map[uint64]*numberChunk // by number / chunkNumbers; those above full
	count  uint64                  // of the numbers above full
}

const chunkNumbers = 4096

// maxNumbers bounds the numbers of a set: 32 MiB of bits. What does not fit
// stays in the backlog.
const maxNumbers = 1 << 28

type numberChunk [chunkNumbers / 64]uint64

// numberRange is an inclusive range of numbers.
type numberRange struct{ first, through uint64 }

func (r numberRange) len() uint64 { return r.through - r.first + 1 }

func (s *numberSet) has(n uint64) bool {
	if n <= s.full {
		return true
	}
	c := s.chunks[n/chunkNumbers]
	return c != nil && c[n%chunkNumbers/64]&(1<<(n%64)) != 0
}

// add puts a number in; it reports whether it was not in yet.
func (s *numberSet) add(n uint64) bool {
	if n <= s.full {
		return false
	}
	c := s.chunks[n/chunkNumbers]
	if c == nil {
		if s.chunks == nil {
			s.chunks = map[uint64]*numberChunk{}
		}
		c = new(numberChunk)
		s.chunks[n/chunkNumbers] = c
	}
	word, bit := &c[n%chunkNumbers/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.count++
	return true
}

// addRange puts a range in.
func (s *numberSet) addRange(r numberRange) {
	for n := max(r.first, s.full+1); n <= r.through; {
		if n%chunkNumbers == 0 && r.through-n >= chunkNumbers-1 && s.chunks[n/chunkNumbers] == nil {
			s.add(n)
			c := s.chunks[n/chunkNumbers]
			for i := range c {
				c[i] = ^uint64(0)
			}
			s.count += chunkNumbers - 1
			n += chunkNumbers
			continue
		}
		s.add(n)
		n++
	}
}

// dropThrough forgets the numbers up to and with n. Whole chunks go; of the one
// that n is in, the bits.
func (s *numberSet) dropThrough(n uint64) {
	if s.count == 0 {
		return
	}
	at := (n + 1) / chunkNumbers
	for i, c := range s.chunks {
		if i < at {
			s.count -= c.ones()
			delete(s.chunks, i)
		}
	}
	c := s.chunks[at]
	if c == nil {
		return
	}
	before := c.ones()
	left := (n + 1) % chunkNumbers
	for i := range left / 64 {
		c[i] = 0
	}
	c[left/64] &^= 1<<(left%64) - 1
	s.count -= before - c.ones()
	if c.ones() == 0 {
		delete(s.chunks, at)
	}
}

func (c *numberChunk) ones() uint64 {
	n := 0
	for _, w := range c {
		n += bits.OnesCount64(w)
	}
	return uint64(n)
}

// run returns how far the numbers from n on are all in the set, or all not in
// it, up to most.
func (s *numberSet) run(n, most uint64) (in bool, through uint64) {
	in = s.has(n)
	through = n
	if n <= s.full {
		through = min(most, s.full)
	}
	for through < most {
		next := through + 1
		c := s.chunks[next/chunkNumbers]
		if c == nil {
			if in {
				return in, through
			}
			through = min(most, next|(chunkNumbers-1)) // none in the whole chunk
			continue
		}
		if s.has(next) != in {
			return in, through
		}
		through = next
	}
	return in, through
}

// absorb makes what is in the set without a hole above floor a part of full.
func (s *numberSet) absorb(floor uint64) {
	at := max(s.full, floor)
	for s.count > 0 && s.has(at+1) {
		at++
	}
	if at > max(s.full, floor) {
		s.dropThrough(at)
		s.full = at
	}
}

// ranges returns what is above full as ranges, ascending.
func (s *numberSet) ranges() []numberRange {
	var list []numberRange
	for _, i := range sortedKeys(s.chunks) {
		for w, word := range s.chunks[i] {
			for word != 0 {
				first := bits.TrailingZeros64(word)
				n := bits.TrailingZeros64(^(word >> first))
				at := i*chunkNumbers + uint64(w)*64 + uint64(first)
				list = appendRange(list, numberRange{at, at + uint64(n) - 1})
				if first+n == 64 {
					break
				}
				word &^= (1<<n - 1) << first
			}
		}
	}
	return list
}

// appendRange appends r, which lies behind the list, joining neighbours.
func appendRange(list []numberRange, r numberRange) []numberRange {
	if n := len(list); n > 0 && list[n-1].through+1 == r.first {
		list[n-1].through = r.through
		return list
	}
	return append(list, r)
}

// ranges writes ascending ranges: n, and of each the distance from the end of
// the one before and the length, as uvarints.
func (e *encoder) ranges(list []numberRange) {
	e.uint(uint64(len(list)))
	at := uint64(0)
	for _, r := range list {
		e.uint(r.first - at)
		e.uint(r.len())
		at = r.through
	}
}

// ranges reads what encoder.ranges wrote. Ranges that do not ascend, are empty
// or pass the highest number are bad.
func (d *decoder) ranges() []numberRange {
	n := d.count()
	list := make([]numberRange, 0, min(n, 1024))
	at := uint64(0)
	for range n {
		r := numberRange{first: at + d.uint()}
		r.through = r.first + d.uint() - 1
		if d.bad || r.first <= at || r.through < r.first {
			d.bad = true
			return nil
		}
		at = r.through
		list = append(list, r)
	}
	return slices.Clip(list)
}

// labelOf returns the label of a topic in the flow's index, given at its first
// record. Labels make the bytes of each topic in a backlog known without reading
// a record; 0 is everything beyond maxLabels topics.
func (f *outFlow) labelOf(topic []byte) uint8 {
	for i, t := range f.topics {
		if string(t) == string(topic) {
			return uint8(i + 1)
		}
	}
	if len(f.topics) == maxLabels {
		return 0
	}
	f.topics = append(f.topics, zone.Topic(topic))
	return uint8(len(f.topics))
}

// maxLabels bounds the topics of a flow that are told apart: a label is a byte.
const maxLabels = 255
