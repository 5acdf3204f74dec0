package timer

import (
	"cmp"
	"slices"
)

// Ref names a message that waits.
type Ref struct {
	Due    int64  // Unix milliseconds
	Bucket uint64 // the owner's number of the index that it is in
	Number uint64 // in that index
}

// compare orders by time, then by age.
func (r Ref) compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Due, o.Due), cmp.Compare(r.Bucket, o.Bucket), cmp.Compare(r.Number, o.Number))
}

func (r Ref) before(o Ref) bool { return r.compare(o) < 0 }

// Window holds the messages that are due next, out of any number that wait. It
// has everything that was pushed since Reset and comes before a limit; the limit
// moves down when there is too much. Create it with NewWindow.
type Window struct {
	max   int
	heap  []Ref
	until Ref
	cut   bool
}

// NewWindow returns a window that keeps max messages, and never more than twice
// as many (48 bytes for each of max).
func NewWindow(max int) *Window { return &Window{max: max} }

// Reset empties the window; it takes what is due before until then.
func (w *Window) Reset(until int64) {
	w.heap, w.until, w.cut = w.heap[:0], Ref{Due: until}, false
}

// Len returns how many messages the window has.
func (w *Window) Len() int { return len(w.heap) }

// Low reports whether messages were left out for want of room, and few are left
// of those before them: it is time to fill the window anew.
func (w *Window) Low() bool { return w.cut && len(w.heap) <= w.max/8 }

// Push puts a message in, unless it comes behind the limit.
func (w *Window) Push(r Ref) {
	if !r.before(w.until) {
		return
	}
	w.heap = append(w.heap, r)
	if len(w.heap) >= 2*w.max {
		slices.SortFunc(w.heap, Ref.compare) // a sorted list is a heap
		w.until, w.cut = w.heap[w.max], true
		w.heap = w.heap[:w.max]
		return
	}
	for i := len(w.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !w.heap[i].before(w.heap[up]) {
			break
		}
		w.heap[i], w.heap[up] = w.heap[up], w.heap[i]
		i = up
	}
}

// First returns what is due first; false when the window is empty.
func (w *Window) First() (Ref, bool) {
	if len(w.heap) == 0 {
		return Ref{}, false
	}
	return w.heap[0], true
}

// Pop takes out what is due first. The window must not be empty.
func (w *Window) Pop() Ref {
	top, last := w.heap[0], len(w.heap)-1
	w.heap[0] = w.heap[last]
	w.heap = w.heap[:last]
	for i := 0; ; {
		least := i
		for _, down := range [2]int{2*i + 1, 2*i + 2} {
			if down < last && w.heap[down].before(w.heap[least]) {
				least = down
			}
		}
		if least == i {
			return top
		}
		w.heap[i], w.heap[least] = w.heap[least], w.heap[i]
		i = least
	}
}
