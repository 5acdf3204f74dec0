package flow

import (
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// receiver is the destination's end of one session as a pure state machine. It
// belongs to one loop. expect-1 was taken, settled is committed, told is what
// the origin has been told.
type receiver struct {
	lim     *Limits
	table   []wire.Mark        // the origin's, from Open
	known   []record.LineageID // lineages that the sink's history has
	expect  uint64
	settled uint64
	told    uint64
	head    uint64 // the origin's, as last told
	cursor  uint64 // the origin's, as last told
	sealed  bool

	flight []taken // taken and not settled, ascending; the first submitted of them are with the sink
	submit int

	received uint64 // data bytes taken in this session
	released uint64 // of these, bytes whose numbers are settled
	base     int64  // bytes; smallest window of this session
	window   int64  // bytes; what the session may have outstanding
	reserved int64  // bytes of the budget; at least credit.Bytes-released
	credit   wire.Credit
	grownAt  time.Time // when the window was last used up
	grownBy  uint64    // received then

	ackDue bool
	heard  time.Time // last number taken
	told2  time.Time // last Ack
}

// taken is a range of numbers on its way into the sink.
type taken struct {
	landing Landing
	bytes   uint64 // what it took of the credit
}

// begin starts a session that goes on at r.next, with the first window.
func (rx *receiver) begin(now time.Time, lim *Limits, o *wire.Open, have *SinkState, r resumption, window int64) {
	*rx = receiver{
		lim: lim, table: o.Lineage, expect: r.next, settled: r.next - 1, told: r.next - 1,
		head: o.Head, cursor: o.Cursor, sealed: have.Sealed,
		base: window, window: window, reserved: window, grownAt: now, heard: now, told2: now,
	}
	for _, h := range have.History {
		rx.known = append(rx.known, h.Lineage)
	}
}

// take decides about the numbers first to through of a frame that uses bytes of
// the credit. skip is how many of them are duplicates; all are when whole is
// false. An error ends the session.
func (rx *receiver) take(now time.Time, first, through uint64, bytes int, id record.LineageID, epoch uint64) (skip uint64, whole bool, err *RefusedError) {
	if rx.sealed {
		return 0, false, refused(wire.CodeSealed, "the flow is sealed through %d", rx.settled)
	}
	m, ok := markAt(rx.table, first)
	if end, _ := markAt(rx.table, through); !ok || m.ID != id || m.Epoch != epoch || end.ID != id {
		return 0, false, refused(wire.CodeDiverged, "numbers %d to %d are not of lineage %x", first, through, id)
	}
	if through > rx.credit.Number || rx.received+uint64(bytes) > rx.credit.Bytes {
		return 0, false, refused(wire.CodeMalformed, "number %d or its bytes are beyond the credit", through)
	}
	if first > rx.expect {
		return 0, false, refused(wire.CodeMalformed, "number %d came, %d is expected", first, rx.expect)
	}
	rx.received += uint64(bytes)
	rx.heard = now
	if through < rx.expect {
		rx.released += uint64(bytes)
		rx.told = min(rx.told, first-1)
		rx.ackDue = true
		return 0, false, nil
	}
	skip = rx.expect - first
	if skip > 0 {
		rx.told = min(rx.told, first-1)
	}
	rx.expect = through + 1
	rx.head = max(rx.head, through)
	return skip, true, nil
}

// push queues a landing that take has agreed to.
func (rx *receiver) push(l Landing, bytes int) {
	rx.cursor = max(rx.cursor, l.OriginCursor)
	rx.flight = append(rx.flight, taken{landing: l, bytes: uint64(bytes)})
}

// ready returns the next landing for the sink, or nil. The first landing of a
// lineage that the sink does not know goes alone: only once it is committed can
// the sink tell a hole behind it.
func (rx *receiver) ready() *Landing {
	if rx.submit == len(rx.flight) {
		return nil
	}
	l := &rx.flight[rx.submit].landing
	if rx.submit > 0 && !slices.Contains(rx.known, l.Lineage) {
		return nil
	}
	l.OriginCursor = max(l.OriginCursor, rx.cursor) // a held landing waits, the origin's cursor does not
	return l
}

// handed tells that the landing from ready is with the sink.
func (rx *receiver) handed() { rx.submit++ }

// landed tells that the first landing with the sink is committed.
func (rx *receiver) landed() {
	t := &rx.flight[0]
	rx.settled = t.landing.Through
	rx.released += t.bytes
	if !slices.Contains(rx.known, t.landing.Lineage) {
		rx.known = append(rx.known, t.landing.Lineage)
	}
	*t = taken{}
	rx.flight = rx.flight[1:]
	rx.submit--
	rx.ackDue = true
}

// regrant raises the credit to what the window allows, after growing or
// shrinking it. Nothing is granted while the destination is held.
func (rx *receiver) regrant(now time.Time, b *budget, held bool) {
	if held || rx.sealed {
		return
	}
	if fair := max(b.fair(), rx.base); rx.window > fair {
		b.shrunk(rx.window, fair)
		rx.window = fair
	} else if rx.received-rx.grownBy >= uint64(rx.window) {
		// Used up within a second: this flow can use more.
		if now.Sub(rx.grownAt) < time.Second {
			to := b.grow(rx.window)
			rx.reserved += to - rx.window
			rx.window = to
		}
		rx.grownAt, rx.grownBy = now, rx.received
	}
	c := wire.Credit{
		Number: max(rx.credit.Number, rx.settled+uint64(rx.lim.NumberWindow)),
		Bytes:  max(rx.credit.Bytes, rx.released+uint64(rx.window)),
	}
	if c != rx.credit {
		rx.credit = c
		rx.ackDue = true
	}
	keep := max(rx.window, int64(rx.credit.Bytes-rx.released))
	b.release(rx.reserved - keep)
	rx.reserved = keep
}

// outcomes picks what the origin has to be told of the sink's outcomes: those
// in the numbers after from up to through. cut is the last number that they
// cover when there are more than fit a frame, else through.
func outcomes(list []Outcome, from, through uint64) (picked []wire.Outcome, cut uint64) {
	for _, o := range list {
		if min(o.Through, through) <= from || o.First > through {
			continue
		}
		if len(picked) == wire.MaxOutcomes {
			return picked, picked[len(picked)-1].Through
		}
		w := wire.Outcome(o)
		w.First, w.Through = max(w.First, from+1), min(w.Through, through)
		from = w.Through // whatever the sink returns, the ranges ascend
		picked = appendOutcome(picked, w)
	}
	return picked, through
}

// ack makes the Ack that is due, from the sink's outcomes.
func (rx *receiver) ack(now time.Time, list []Outcome) wire.Ack {
	picked, cut := outcomes(list, rx.told, rx.settled)
	rx.told, rx.told2 = cut, now
	rx.ackDue = cut < rx.settled
	return wire.Ack{Through: cut, Outcomes: picked, Credit: rx.credit}
}

// accept makes the answer to Open.
func (rx *receiver) accept(r resumption, list []Outcome) wire.Accept {
	picked, cut := outcomes(list, rx.cursor, rx.settled)
	if len(picked) == wire.MaxOutcomes {
		cut = picked[len(picked)-1].Through // a full list says that more follow
	}
	rx.told = cut
	rx.ackDue = cut < rx.settled
	return wire.Accept{Next: r.next, Last: r.last, Orphans: r.orphans, Outcomes: picked, Credit: rx.credit}
}

// tick decides what is due: an Ack that repeats the credit, or, when the budget
// is scarce, the end of a session that holds credit without using it.
func (rx *receiver) tick(now time.Time, scarce bool) (drain bool) {
	if now.Sub(rx.told2) >= rx.lim.ProbeEvery && (now.Sub(rx.heard) < 2*time.Second || rx.settled < rx.head) {
		rx.ackDue = true
	}
	return scarce && len(rx.flight) == 0 && now.Sub(rx.heard) >= time.Second
}
