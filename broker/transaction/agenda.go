package transaction

import (
	"container/heap"
	"time"
)

// Agenda says when half messages are looked at next. Times are those of the
// caller's monotonic clock. The zero value is empty.
type Agenda struct{ list dueList }

// Set puts a half message on the agenda, or moves it there.
func (a *Agenda) Set(h *Half, due time.Duration) {
	h.due = due
	if h.place == 0 {
		heap.Push(&a.list, h)
		return
	}
	heap.Fix(&a.list, h.place-1)
}

// Remove takes a half message off the agenda, if it is there.
func (a *Agenda) Remove(h *Half) {
	if h.place > 0 {
		heap.Remove(&a.list, h.place-1)
	}
}

// Next returns when the next half message is due, false when there is none.
func (a *Agenda) Next() (time.Duration, bool) {
	if len(a.list) == 0 {
		return 0, false
	}
	return a.list[0].due, true
}

// Due takes the next half message that is due at now off the agenda; nil when
// there is none.
func (a *Agenda) Due(now time.Duration) *Half {
	if len(a.list) == 0 || a.list[0].due > now {
		return nil
	}
	return heap.Pop(&a.list).(*Half)
}

// Len returns how many half messages are on the agenda.
func (a *Agenda) Len() int { return len(a.list) }

// dueList is a heap by due, then by age.
type dueList []*Half

func (l dueList) Len() int { return len(l) }

func (l dueList) Less(i, j int) bool {
	if l[i].due != l[j].due {
		return l[i].due < l[j].due
	}
	return l[i].Key.Position < l[j].Key.Position
}

func (l dueList) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i+1, j+1
}

func (l *dueList) Push(x any) {
	h := x.(*Half)
	*l = append(*l, h)
	h.place = len(*l)
}

func (l *dueList) Pop() any {
	old := *l
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	h.place = 0
	return h
}
