package consumer

import "slices"

// Range is the offsets from From up to To, To not included.
type Range struct{ From, To uint64 }

// rangeSet is a set of offsets: ranges that ascend, are not empty and do not
// touch each other.
type rangeSet []Range

// add puts a range into the set.
func (s *rangeSet) add(r Range) {
	if r.From >= r.To {
		return
	}
	v := *s
	if n := len(v); n == 0 || v[n-1].To < r.From {
		*s = append(v, r)
		return
	} else if v[n-1].To == r.From {
		v[n-1].To = r.To
		return
	}
	i := s.search(r.From) // the first that touches or follows r
	if i > 0 && v[i-1].To == r.From {
		i--
	}
	j := i
	for j < len(v) && v[j].From <= r.To {
		r.From, r.To = min(r.From, v[j].From), max(r.To, v[j].To)
		j++
	}
	*s = slices.Replace(v, i, j, r)
}

// search returns the index of the first range that ends behind o.
func (s rangeSet) search(o uint64) int {
	lo, hi := 0, len(s)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); s[m].To > o {
			hi = m
		} else {
			lo = m + 1
		}
	}
	return lo
}

// contains reports whether the offset is in the set.
func (s rangeSet) contains(o uint64) bool {
	i := s.search(o)
	return i < len(s) && s[i].From <= o
}

// remove takes one offset out and reports whether it was in.
func (s *rangeSet) remove(o uint64) bool {
	v := *s
	i := v.search(o)
	if i == len(v) || v[i].From > o {
		return false
	}
	switch r := v[i]; {
	case r.From == o && r.To == o+1:
		*s = slices.Delete(v, i, i+1)
	case r.From == o:
		v[i].From++
	case r.To == o+1:
		v[i].To--
	default:
		v[i].From = o + 1
		*s = slices.Insert(v, i, Range{r.From, o})
	}
	return true
}

// take removes up to n offsets from the front, all of one range.
func (s *rangeSet) take(n uint64) Range {
	v := *s
	if len(v) == 0 || n == 0 {
		return Range{}
	}
	r := v[0]
	if r.To-r.From > n {
		r.To = r.From + n
		v[0].From = r.To
		return r
	}
	*s = v[1:] // moving the others would make taking all of a long set quadratic
	return r
}

// count returns the number of offsets in the set.
func (s rangeSet) count() (n uint64) {
	for _, r := range s {
		n += r.To - r.From
	}
	return n
}
