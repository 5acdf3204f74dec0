package timer

import (
	"encoding/binary"
	"math/bits"
)

// chunkNumbers is how many numbers a chunk of a Set has: 512 bytes of bits.
const chunkNumbers = 4096

type chunk struct {
	words [chunkNumbers / 64]uint64
	count int
}

// whole stands for every chunk that has all its numbers. Nobody writes to it.
var whole = func() *chunk {
	c := &chunk{count: chunkNumbers}
	for i := range c.words {
		c.words[i] = ^uint64(0)
	}
	return c
}()

// Set is a set of the numbers of an index, from 0 on. It costs a bit for each
// number of the chunks that are partly filled, and a pointer for each chunk up
// to the highest number. The zero value is empty.
type Set struct {
	chunks []*chunk // by number / chunkNumbers; nil = none of its numbers
	count  uint64
}

// Count returns how many numbers are in the set.
func (s *Set) Count() uint64 { return s.count }

// Has reports whether the number is in the set.
func (s *Set) Has(n uint64) bool {
	i := n / chunkNumbers
	return i < uint64(len(s.chunks)) && s.chunks[i] != nil && s.chunks[i].words[n%chunkNumbers/64]&(1<<(n%64)) != 0
}

// Add puts a number in; it reports whether it was not in yet.
func (s *Set) Add(n uint64) bool {
	if s.Has(n) {
		return false
	}
	i := n / chunkNumbers
	for uint64(len(s.chunks)) <= i {
		s.chunks = append(s.chunks, nil)
	}
	c := s.chunks[i]
	if c == nil {
		c = new(chunk)
		s.chunks[i] = c
	}
	c.words[n%chunkNumbers/64] |= 1 << (n % 64)
	c.count++
	s.count++
	if c.count == chunkNumbers {
		s.chunks[i] = whole
	}
	return true
}

// Remove takes a number out; it reports whether it was in.
func (s *Set) Remove(n uint64) bool {
	if !s.Has(n) {
		return false
	}
	i := n / chunkNumbers
	c := s.chunks[i]
	if c == whole {
		own := *whole
		c = &own
		s.chunks[i] = c
	}
	c.words[n%chunkNumbers/64] &^= 1 << (n % 64)
	c.count--
	s.count--
	if c.count == 0 {
		s.chunks[i] = nil
	}
	return true
}

// NextOut returns the first number from n on and below end that is not in the
// set, or end.
func (s *Set) NextOut(n, end uint64) uint64 {
	return s.next(n, end, ^uint64(0), whole)
}

// NextIn returns the first number from n on and below end that is in the set, or
// end.
func (s *Set) NextIn(n, end uint64) uint64 {
	return s.next(n, end, 0, nil)
}

// next finds the next number whose bit differs from those of flip, passing over
// chunks that are skip.
func (s *Set) next(n, end, flip uint64, skip *chunk) uint64 {
	for n < end {
		i := n / chunkNumbers
		var c *chunk
		if i < uint64(len(s.chunks)) {
			c = s.chunks[i]
		}
		if c == skip {
			n = (i + 1) * chunkNumbers
			continue
		}
		if c == nil { // and what is looked for is not in the set
			return n
		}
		word := (c.words[n%chunkNumbers/64] ^ flip) >> (n % 64)
		if word != 0 {
			return min(n+uint64(bits.TrailingZeros64(word)), end)
		}
		n = (n/64 + 1) * 64
	}
	return end
}

// The forms of a chunk in bytes.
const (
	formAll  = 1
	formBits = 2
)

// Append appends the set as a snapshot has it. Equal sets have equal bytes.
func (s *Set) Append(dst []byte) []byte {
	n := 0
	for _, c := range s.chunks {
		if c != nil {
			n++
		}
	}
	dst = binary.AppendUvarint(dst, uint64(n))
	at := uint64(0)
	for i, c := range s.chunks {
		if c == nil {
			continue
		}
		dst = binary.AppendUvarint(dst, uint64(i)-at)
		at = uint64(i)
		if c == whole {
			dst = append(dst, formAll)
			continue
		}
		dst = append(dst, formBits)
		for _, w := range c.words {
			dst = binary.LittleEndian.AppendUint64(dst, w)
		}
	}
	return dst
}

// ParseSet reads a set of numbers below end and returns what follows it; false
// when the bytes are none.
func ParseSet(b []byte, end uint64) (Set, []byte, bool) {
	var s Set
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)) {
		return Set{}, nil, false
	}
	b = b[used:]
	at := uint64(0)
	for k := range n {
		step, used := binary.Uvarint(b)
		if used <= 0 || len(b) == used || (k > 0 && step == 0) || step > end/chunkNumbers || at+step > end/chunkNumbers {
			return Set{}, nil, false
		}
		form := b[used]
		b = b[used+1:]
		at += step
		var c *chunk
		switch form {
		case formAll:
			c = whole
		case formBits:
			if len(b) < chunkNumbers/8 {
				return Set{}, nil, false
			}
			c = new(chunk)
			for i := range c.words {
				c.words[i] = binary.LittleEndian.Uint64(b[8*i:])
				c.count += bits.OnesCount64(c.words[i])
			}
			b = b[chunkNumbers/8:]
			if c.count == 0 || c.count == chunkNumbers {
				return Set{}, nil, false // it has another form
			}
		default:
			return Set{}, nil, false
		}
		for uint64(len(s.chunks)) < at {
			s.chunks = append(s.chunks, nil)
		}
		s.chunks = append(s.chunks, c)
		s.count += uint64(c.count)
	}
	if past := uint64(len(s.chunks)) * chunkNumbers; s.NextIn(end, past) < past {
		return Set{}, nil, false
	}
	return s, b, true
}

// End returns a number that is above all of the set, by less than 4096.
func (s *Set) End() uint64 { return uint64(len(s.chunks)) * chunkNumbers }
