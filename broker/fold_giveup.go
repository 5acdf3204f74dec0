package broker

import (
	"fmt"
	"slices"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// giveKind says why an origin does not send numbers to a destination.
type giveKind uint8

// The kinds. Their values are part of the format.
const (
	giveGap       giveKind = iota + 1 // declared lost: the backlog passed its budget
	giveCompacted                     // a newer record of the same key follows
	giveWithdrawn                     // declared lost by an operator: the destination will not come back
)

// maxGiven bounds the numbers that one decision spans, and with it the time that
// the fold stands still for it: the index is read over them.
const maxGiven = 1 << 16

// giveUp is the body of a TypeGiveUp record: the origin's decision not to send
// the ranges to one destination. It is logged before anybody acts on it, so
// that no restart revives what was declared lost.
type giveUp struct {
	leg    flow.Leg
	kind   giveKind
	ranges []numberRange
}

func (g *giveUp) append(dst []byte) []byte {
	e := encoder{b: dst}
	e.byte(giveUpVersion)
	e.flow(g.leg.Flow)
	e.str(string(g.leg.City))
	e.str(string(g.leg.Group))
	e.byte(byte(g.kind))
	e.ranges(g.ranges)
	return e.b
}

func parseGiveUp(b []byte) (*giveUp, error) {
	d := decoder{b: b}
	if v := d.byte(); v != giveUpVersion {
		return nil, &BodyError{What: "give-up", Version: v}
	}
	g := &giveUp{leg: flow.Leg{Flow: d.flow(), City: zone.City(d.str()), Group: zone.Group(d.str())}}
	g.kind = giveKind(d.byte())
	g.ranges = d.ranges()
	if !d.ok() || g.kind < giveGap || g.kind > giveWithdrawn {
		return nil, &BodyError{What: "give-up", Version: giveUpVersion}
	}
	return g, nil
}

// given counts what a leg's origin has decided not to send, since the leg began.
type given struct {
	Lost      uint64 // numbers declared lost
	LostBytes uint64
	Compacted uint64 // numbers left out since a newer record of their key follows
}

// applyGiveUp takes numbers out of a leg's backlog. Those that are settled or
// given up already stay what they are. The cursor does not move: the destination
// is told, and settles them.
func (s *state) applyGiveUp(body []byte) error {
	g, err := parseGiveUp(body)
	if err != nil {
		return err
	}
	f := s.out[g.leg.Flow]
	if f == nil {
		return nil
	}
	l := f.leg(keyOf(g.leg.Flow, g.leg.City, g.leg.Group))
	if l == nil {
		return nil
	}
	if g.kind == giveWithdrawn {
		return s.withdraw(f, l)
	}
	if err := f.giveUp(l, g); err != nil {
		return err
	}
	l.gap.absorb(l.cursor)
	s.touchFlow(f)
	return nil
}

// giveUp takes the ranges of a decision out of a leg's backlog. The index is read
// once over all that they span.
func (f *outFlow) giveUp(l *leg, g *giveUp) error {
	if len(g.ranges) == 0 {
		return nil
	}
	span := numberRange{max(g.ranges[0].first, l.cursor+1), min(g.ranges[len(g.ranges)-1].through, l.last(f.head()))}
	if span.first > span.through {
		return nil
	}
	if span.len() > maxGiven {
		return fmt.Errorf("a give-up over %d numbers", span.len())
	}
	left := g.ranges
	return f.entries(span, func(n uint64, e queue.Entry) {
		for len(left) > 0 && left[0].through < n {
			left = left[1:]
		}
		if len(left) > 0 && n >= left[0].first {
			l.give(n, e, g.kind)
		}
	})
}

// withdraw gives up everything that a destination has not settled. The leg of a
// channel goes, unless the topology declares it. That of another flow goes on at
// the head: should its group come back, it expects older numbers, and gets them
// as far as they are still kept, or is told of the gap.
func (s *state) withdraw(f *outFlow, l *leg) error {
	for n, last := l.cursor+1, l.last(f.head()); n <= last; {
		fate, through := l.fateOf(n, last)
		if fate == fateSend {
			l.given.Lost += through - n + 1
			s.counts.Withdrawn += through - n + 1
		}
		n = through + 1
	}
	if l.end > 0 {
		f.legs = slices.DeleteFunc(f.legs, func(o *leg) bool { return o == l })
	} else {
		l.given.LostBytes += uint64(l.backlog)
		if err := f.settle(l.key, f.head()); err != nil {
			return err
		}
	}
	s.touchFlow(f)
	return nil
}

// give takes one number out of the backlog.
func (l *leg) give(n uint64, e queue.Entry, kind giveKind) {
	if l.gap.has(n) || l.skip.has(n) || l.gap.count >= maxNumbers || l.skip.count >= maxNumbers {
		return
	}
	l.less(e)
	if kind == giveCompacted {
		l.skip.add(n)
		l.given.Compacted++
		return
	}
	l.gap.add(n)
	l.given.Lost++
	l.given.LostBytes += uint64(e.Size)
}

// more adds a record to the backlog.
func (l *leg) more(e queue.Entry) {
	l.backlog += int64(e.Size)
	for len(l.topics) <= int(e.Label) {
		l.topics = append(l.topics, 0)
	}
	l.topics[e.Label] += int64(e.Size)
}

// less takes a record out of the backlog.
func (l *leg) less(e queue.Entry) {
	l.backlog -= int64(e.Size)
	if int(e.Label) < len(l.topics) {
		l.topics[e.Label] -= int64(e.Size)
	}
}

// topicBacklog returns the bytes of the topic with the label above the cursor.
func (l *leg) topicBacklog(label uint8) int64 {
	if int(label) >= len(l.topics) {
		return 0
	}
	return l.topics[label]
}

// entries calls fn for the entries of the range that the index still holds. The
// others were settled or given up, or no destination could have them any more.
func (f *outFlow) entries(r numberRange, fn func(number uint64, e queue.Entry)) error {
	buf := make([]queue.Entry, min(r.len(), 512))
	for next := max(r.first, f.oldest()); next <= r.through; {
		n, err := f.index.Read(next-1, buf[:min(uint64(len(buf)), r.through-next+1)])
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		for i, e := range buf[:n] {
			fn(next+uint64(i), e)
		}
		next += uint64(n)
	}
	return nil
}

// fate is what becomes of a number on a leg.
type fate uint8

const (
	fateSend fate = iota // its record is sent, if it can be read
	fateGap
	fateSkip
)

// fateOf returns the fate of a number and the last number, up to most, that
// shares it.
func (l *leg) fateOf(n, most uint64) (fate, uint64) {
	if n <= l.cursor {
		// The destination came back without it: what it was told before is gone
		// with its store, and the record serves it better, if it is still there.
		return fateSend, min(most, l.cursor)
	}
	lost, gapEnd := l.gap.run(n, most)
	skipped, skipEnd := l.skip.run(n, most)
	switch {
	case lost:
		return fateGap, gapEnd
	case skipped:
		return fateSkip, skipEnd
	}
	return fateSend, min(gapEnd, skipEnd)
}

// gives reports whether numbers were given up that the destination was not told
// of yet.
func (l *leg) gives() bool { return l.gap.full > l.cursor || l.gap.count > 0 || l.skip.count > 0 }

// firstPending returns the lowest number that is to be sent, head+1 when there is
// none.
func (l *leg) firstPending(head uint64) uint64 {
	n := max(l.cursor, l.gap.full) + 1
	for n <= head {
		f, through := l.fateOf(n, head)
		if f == fateSend {
			return n
		}
		n = through + 1
	}
	return n
}

// untold returns how many numbers were declared lost that the destination has not
// settled as such yet.
func (l *leg) untold() uint64 { return l.gap.count + max(l.gap.full, l.cursor) - l.cursor }

// reason returns why the range is told in place of records.
func (f fate) reason() record.Reason {
	if f == fateSkip {
		return record.ReasonCompacted
	}
	return record.ReasonBudget
}
