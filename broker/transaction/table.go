package transaction

import (
	"cmp"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Remembered is how many decisions a Table knows, the newest ones: at 1,000
// transactions a second, those of the last two minutes. A client that did not hear
// the answer of a decision repeats it within seconds. Each takes some 50 bytes.
const Remembered = 1 << 17

// Outcome is what was decided about a half message.
type Outcome uint8

// The outcomes.
const (
	Committed  Outcome = iota + 1
	RolledBack         // it is gone
	Parked             // nobody decided it within its checks; it is a dead letter
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Committed:
		return "committed"
	case RolledBack:
		return "rolled back"
	case Parked:
		return "parked"
	}
	return "undecided"
}

// Key names a half message within its store: where it was appended first, and in
// which lineage.
type Key struct {
	Epoch    uint64
	Position record.Position
}

// Half is a half message that waits for its decision. What a Table's methods do
// not change is immutable.
type Half struct {
	Key      Key
	Position record.Position // where its record is now
	Size     uint32          // of the log entry there
	Topic    zone.Topic
	Stored   time.Time     // milliseconds
	Immunity time.Duration // milliseconds; how long it is left alone at first
	Checks   int           // that reached a producer, as far as they are logged
	Forgiven int           // of Checks: that nobody can have read after all; <= Checks
	Last     time.Time     // milliseconds; when the last of them was logged; zero = never, or not known

	// Asked and Lost are Checks and Forgiven with those that are not logged yet. They
	// are not part of the fold: whoever asks producers counts them up.
	Asked, Lost int

	due     time.Duration // in an Agenda
	place   int           // in an Agenda, from 1; 0 = not there
	decided bool
}

// Decided reports whether the half message waits no more.
func (h *Half) Decided() bool { return h.decided }

// Totals count decisions since the store was made.
type Totals struct {
	Committed, RolledBack, Parked uint64
	Repeated                      uint64 // decisions that came too late and changed nothing
}

// Table holds the half messages of a store.
type Table struct {
	halves  map[Key]*Half
	order   []*Half            // those of halves ascending by Key, with decided ones among them
	gone    int                // decided ones in order
	topics  map[zone.Topic]int // pending, of those that have any
	decided map[Key]Outcome
	recent  []Key // of decided, a ring once it is full; next is the oldest then
	next    int
	totals  Totals

	changed []*Half // volatile: came or were decided since the last call of Changed
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{halves: map[Key]*Half{}, topics: map[zone.Topic]int{}, decided: map[Key]Outcome{}}
}

// Add puts a half message into the table. One that is there already stays as it is.
func (t *Table) Add(h Half) {
	if t.halves[h.Key] != nil {
		return
	}
	h.Asked, h.Lost, h.place, h.decided = h.Checks, h.Forgiven, 0, false
	t.halves[h.Key] = &h
	t.insert(&h)
	t.topics[h.Topic]++
	t.changed = append(t.changed, &h)
}

// insert puts a half message into order: at its end, since logs grow there.
func (t *Table) insert(h *Half) {
	at := len(t.order)
	if at > 0 && t.order[at-1].Key.compare(h.Key) > 0 {
		at, _ = slices.BinarySearchFunc(t.order, h.Key, func(o *Half, k Key) int { return o.Key.compare(k) })
	}
	t.order = slices.Insert(t.order, at, h)
}

// inOrder calls fn for the pending half messages, ascending by Key. It sorts
// nothing: snapshots and trims look at all of them while the fold stands still.
func (t *Table) inOrder(fn func(*Half)) {
	for _, h := range t.order {
		if !h.decided {
			fn(h)
		}
	}
}

// forget lets decided half messages out of order once they are the most of it.
func (t *Table) forget() {
	if t.gone++; t.gone >= minGone && t.gone > len(t.order)/2 {
		t.order = slices.DeleteFunc(t.order, func(h *Half) bool { return h.decided })
		t.gone = 0
	}
}

// minGone is how many decided ones stay in order without a look.
const minGone = 1024

// Get returns the pending half message, or nil.
func (t *Table) Get(k Key) *Half { return t.halves[k] }

// Outcome returns what was decided, false when it is pending or not known.
func (t *Table) Outcome(k Key) (Outcome, bool) {
	o, ok := t.decided[k]
	return o, ok
}

// Decide settles a pending half message; false, and counted, when there is none.
func (t *Table) Decide(k Key, o Outcome) bool {
	h := t.halves[k]
	if h == nil {
		t.totals.Repeated++
		return false
	}
	delete(t.halves, k)
	if t.topics[h.Topic]--; t.topics[h.Topic] == 0 {
		delete(t.topics, h.Topic)
	}
	h.decided = true
	t.forget()
	t.changed = append(t.changed, h)
	switch o {
	case Committed:
		t.totals.Committed++
	case RolledBack:
		t.totals.RolledBack++
	case Parked:
		t.totals.Parked++
	}
	t.remember(k, o)
	return true
}

func (t *Table) remember(k Key, o Outcome) {
	t.decided[k] = o
	if len(t.recent) < Remembered {
		t.recent = append(t.recent, k)
		return
	}
	delete(t.decided, t.recent[t.next])
	t.recent[t.next] = k
	t.next = (t.next + 1) % Remembered
}

// Checked raises the numbers of checks of a half message and of those that are forgiven,
// if it is pending; at is when that was logged.
func (t *Table) Checked(k Key, checks, forgiven int, at time.Time) {
	h := t.halves[k]
	if h == nil {
		return
	}
	if checks > h.Checks {
		h.Checks, h.Last = checks, at.Truncate(time.Millisecond)
		h.Asked = max(h.Asked, h.Checks)
	}
	if forgiven = min(forgiven, h.Checks); forgiven > h.Forgiven {
		h.Forgiven = forgiven
		h.Lost = max(h.Lost, h.Forgiven)
	}
}

// Moved notes that the record of a pending half message was appended again.
func (t *Table) Moved(k Key, pos record.Position, size uint32) {
	if h := t.halves[k]; h != nil {
		h.Position, h.Size = pos, size
	}
}

// Len returns how many half messages are pending.
func (t *Table) Len() int { return len(t.halves) }

// LenOf returns how many half messages of a topic are pending.
func (t *Table) LenOf(topic zone.Topic) int { return t.topics[topic] }

// Totals returns what was decided so far.
func (t *Table) Totals() Totals { return t.totals }

// Changed calls fn for each half message that came or was decided since the last
// call, as it is now.
func (t *Table) Changed(fn func(*Half)) {
	for _, h := range t.changed {
		fn(h)
	}
	clear(t.changed)
	t.changed = t.changed[:0]
}

// HasChanged reports whether Changed would call its function.
func (t *Table) HasChanged() bool { return len(t.changed) > 0 }

// Pending returns the pending half messages, ascending by where they are now. It
// looks at all of them.
func (t *Table) Pending() []*Half {
	list := make([]*Half, 0, len(t.halves))
	t.inOrder(func(h *Half) { list = append(list, h) })
	byPlace := func(a, b *Half) int { return cmp.Compare(a.Position, b.Position) }
	if !slices.IsSortedFunc(list, byPlace) { // some were moved
		slices.SortFunc(list, byPlace)
	}
	return list
}

// From returns the pending half messages that were appended first at a position or
// behind it, in that order, n at most.
func (t *Table) From(pos record.Position, n int) []*Half {
	at, _ := slices.BinarySearchFunc(t.order, Key{Position: pos}, func(h *Half, k Key) int { return h.Key.compare(k) })
	var list []*Half
	for _, h := range t.order[at:] {
		if len(list) == n {
			break
		}
		if !h.decided {
			list = append(list, h)
		}
	}
	return list
}

// Summary is what is pending of a topic.
type Summary struct {
	Topic   zone.Topic
	Pending int
	Oldest  time.Time // when the oldest one was stored
	Checked int       // of these: producers were asked at least once
}

// Summaries returns what is pending, by topic. It looks at every half message.
func (t *Table) Summaries() []Summary {
	at := map[zone.Topic]*Summary{}
	for _, h := range t.halves {
		s := at[h.Topic]
		if s == nil {
			s = &Summary{Topic: h.Topic, Oldest: h.Stored}
			at[h.Topic] = s
		}
		s.Pending++
		if h.Stored.Before(s.Oldest) {
			s.Oldest = h.Stored
		}
		if h.Asked > 0 {
			s.Checked++
		}
	}
	list := make([]Summary, 0, len(at))
	for _, s := range at {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b Summary) int { return cmp.Compare(a.Topic, b.Topic) })
	return list
}
