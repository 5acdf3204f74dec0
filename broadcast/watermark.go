package broadcast

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Place is where a cache stands in the landings of a topic: everything below
// Offset is applied. The zero Place is that of an empty cache.
type Place struct {
	Group       zone.Group         // landing group
	Incarnation record.Incarnation // of its store: an offset means nothing in another one
	Offset      uint64
}

// Empty reports that the cache has applied nothing.
func (p Place) Empty() bool { return p.Incarnation == 0 }

// Mark is a watermark: up to which number a cache has applied a flow, and in
// which lineage of its origin. A number without its lineage identifies nothing.
type Mark struct {
	Flow    record.FlowID // Flow.Incarnation is that of the origin's store
	Lineage record.LineageID
	Epoch   uint64 // lineage epoch
	Number  uint64
}

// Field and Value are the forms in which a cache keeps a mark:
//
//	origin|incarnation, 16 hex digits|channel or group|target|class|lane
//	lineage, 16 hex digits|epoch|number
func (m *Mark) Field() string { return flowField(&m.Flow) }

func flowField(f *record.FlowID) string {
	kind := "group"
	if f.Channel {
		kind = "channel"
	}
	return fmt.Sprintf("%s|%016x|%s|%s|%d|%d", f.Origin, uint64(f.Incarnation), kind, f.Target, uint8(f.Class), f.Lane)
}

// Value returns lineage, epoch and number as text.
func (m *Mark) Value() string {
	return fmt.Sprintf("%016x|%d|%d", uint64(m.Lineage), m.Epoch, m.Number)
}

// MarkError says that a cache holds something else where a watermark belongs.
type MarkError struct{ Field, Value string }

// Error implements error.
func (e *MarkError) Error() string {
	return fmt.Sprintf("broadcast: %q = %q in the cache is no watermark", e.Field, e.Value)
}

// ParseMark parses what Field and Value return: *MarkError.
func ParseMark(field, value string) (Mark, error) {
	bad := &MarkError{field, value}
	f, v := strings.Split(field, "|"), strings.Split(value, "|")
	if len(f) != 6 || len(v) != 3 || (f[2] != "channel" && f[2] != "group") {
		return Mark{}, bad
	}
	var failed bool
	num := func(s string, base, bits int) uint64 {
		n, err := strconv.ParseUint(s, base, bits)
		failed = failed || err != nil
		return n
	}
	m := Mark{
		Flow: record.FlowID{Origin: zone.Group(f[0]), Incarnation: record.Incarnation(num(f[1], 16, 64)),
			Channel: f[2] == "channel", Target: f[3], Class: zone.Class(num(f[4], 10, 8)), Lane: uint8(num(f[5], 10, 8))},
		Lineage: record.LineageID(num(v[0], 16, 64)), Epoch: num(v[1], 10, 64), Number: num(v[2], 10, 64),
	}
	if failed {
		return Mark{}, bad
	}
	return m, nil
}

// Marks are the watermarks of a cache, one for each flow. The zero value is
// empty. It is used by one goroutine.
type Marks struct {
	of map[record.FlowID]Mark
}

// NewMarks returns the marks in the list; the last one of a flow counts.
func NewMarks(list []Mark) *Marks {
	m := &Marks{of: make(map[record.FlowID]Mark, len(list))}
	for _, mark := range list {
		m.of[mark.Flow] = mark
	}
	return m
}

// List returns the marks, sorted by origin.
func (m *Marks) List() []Mark {
	list := make([]Mark, 0, len(m.of))
	for _, mark := range m.of {
		list = append(list, mark)
	}
	SortMarks(list)
	return list
}

// SortMarks sorts by origin, target, incarnation and lane.
func SortMarks(list []Mark) {
	slices.SortFunc(list, func(a, b Mark) int {
		return cmp.Or(strings.Compare(string(a.Flow.Origin), string(b.Flow.Origin)), strings.Compare(a.Flow.Target, b.Flow.Target),
			cmp.Compare(a.Flow.Incarnation, b.Flow.Incarnation), cmp.Compare(a.Flow.Class, b.Flow.Class), cmp.Compare(a.Flow.Lane, b.Flow.Lane))
	})
}

// Step is what one landing did to the marks.
type Step struct {
	Moved   bool            // the mark of the landing's flow moved
	Mark    Mark            // as it is now; meaningful when Moved
	Missing Range           // numbers that should have come before this one; the zero value is none
	Drop    []record.FlowID // flows of earlier stores of the same origin, whose marks are gone
}

// Range is an inclusive range of numbers. The zero value is none.
type Range struct{ First, Through uint64 }

// Len returns how many numbers the range has.
func (r Range) Len() uint64 {
	if r.First == 0 {
		return 0
	}
	return r.Through - r.First + 1
}

// Judge says what a landing does to the mark of its flow, and changes nothing.
// Landings come in the order of the landing group's log, but a cache that
// refills reads some of them again: a number at or below the mark, or of an
// earlier lineage, moves nothing.
//
// A flow that is new to the cache begins with the number that it shows first: a
// cache that has just begun knows nothing of what went before, which its first
// gap has told.
func (m *Marks) Judge(e *record.Envelope) Step {
	now := Mark{Flow: e.Flow, Lineage: e.Lineage, Epoch: e.LineageEpoch, Number: max(e.Number, e.Through)}
	old, known := m.of[e.Flow]
	s := Step{Moved: true, Mark: now}
	switch {
	case !known:
		s.Drop = m.older(e.Flow)
	case e.LineageEpoch < old.Epoch, e.Lineage == old.Lineage && now.Number <= old.Number:
		return Step{}
	case e.Number > old.Number+1:
		s.Missing = Range{old.Number + 1, e.Number - 1}
	}
	return s
}

// Move does what Judge said.
func (m *Marks) Move(s Step) {
	if !s.Moved {
		return
	}
	for _, id := range s.Drop {
		delete(m.of, id)
	}
	m.of[s.Mark.Flow] = s.Mark
}

// older returns the flows of other stores of the same origin: a store that was
// made anew replaces its predecessor, and marks must not pile up.
func (m *Marks) older(f record.FlowID) []record.FlowID {
	var drop []record.FlowID
	for id := range m.of {
		same := id
		same.Incarnation = f.Incarnation
		if same == f {
			drop = append(drop, id)
		}
	}
	return drop
}
