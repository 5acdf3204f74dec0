package flow

import (
	"math/bits"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// phase is where a session of a sender stands.
type phase uint8

const (
	phaseOpening   phase = iota // Open is sent, Accept is awaited
	phaseStreaming              // numbers may be sent
	phaseSealed                 // the destination takes nothing more, for ever
)

// maxPending bounds the outcomes that wait for the source to record them; a
// sender with as many sends nothing until they are recorded.
const maxPending = 1 << 16

// sent is a batch that has not been settled.
type sent struct {
	through uint64
	full    bool
}

// fullOnly is how many times Limits.InFlight batches that are not full are on their
// way when only full ones are sent: a destination that settles nothing for as long
// as these take must not hold a landing for each record.
const fullOnly = 4

// sender is the origin's end of one session as a pure state machine. It
// belongs to one loop. Numbers are those of the flow; next-1 was sent, acked
// is settled, head is given.
type sender struct {
	lim    *Limits
	phase  phase
	cursor uint64 // what the source has recorded as settled
	acked  uint64
	next   uint64
	head   uint64

	credit wire.Credit
	bytes  uint64 // data bytes sent in this session
	need   uint64 // data bytes of the next record when it did not fit the credit; 0 = it fits or is unknown

	flight  []sent // sent and not settled, ascending; from flightAt on
	from    int    // first live entry of flight
	step    uint64 // batches end before a multiple of it; a power of two
	size    uint64 // data bytes of a record, moving average; 0 = none sent yet
	partial int    // batches in flight that are not full

	moved   bool       // the settled prefix moved in this session
	owner   bool       // of a channel: what another city serves settles here without having been sent
	landed  bool       // the source serves landings: the destination may be ahead of it
	pending Settlement // settled, not yet recorded by the source

	opened   time.Time
	progress time.Time // last time that the settled prefix moved or backlog began
	probed   time.Time
	busy     time.Time // last time that there was backlog
	heldAt   time.Time // zero: not held
	held     wire.Code
	heldText string
	nonce    uint64
	probeAt  time.Time // when the last unanswered probe was sent
	rtt      time.Duration
}

// start begins a session. oldest numbers below which nothing can be read are
// the loop's business; the cursor is the durable one named in Open.
func (s *sender) start(now time.Time, lim *Limits, head, cursor uint64) {
	*s = sender{lim: lim, step: uint64(lim.BatchNumbers), head: head, cursor: cursor, opened: now, progress: now, probed: now, busy: now, flight: s.flight[:0], pending: Settlement{Outcomes: s.pending.Outcomes[:0]}}
}

// accept takes a verified Accept. rewound is how many numbers behind the
// cursor the destination has lost.
func (s *sender) accept(now time.Time, a *wire.Accept) (rewound uint64, err *RefusedError) {
	if s.phase != phaseOpening {
		return 0, refused(wire.CodeMalformed, "accepted twice")
	}
	s.phase, s.next, s.progress = phaseStreaming, a.Next, now
	// A full list goes on in the Acks that follow. What is ahead of the source is
	// settled when the source gets there.
	through := a.Next - 1
	if len(a.Outcomes) == wire.MaxOutcomes {
		through = a.Outcomes[len(a.Outcomes)-1].Through
	}
	if through > a.Next-1 {
		return 0, refused(wire.CodeMalformed, "outcome of number %d, but %d is expected next", through, a.Next)
	}
	if a.Next-1 < s.cursor {
		rewound = s.cursor - (a.Next - 1)
	}
	if err := s.settle(through, a.Outcomes); err != nil {
		return 0, err
	}
	s.acked = through
	s.behind()
	s.grant(a.Credit)
	return rewound, nil
}

// behind keeps what is pending at or below the head of a source that serves
// landings and has less than the destination; grown asks again.
func (s *sender) behind() {
	if !s.landed {
		return
	}
	if s.acked > s.cursor {
		s.pending.Through = max(s.pending.Through, min(s.acked, s.head))
	}
	if s.pending.Through > s.head {
		s.pending.Through = s.head
	}
	if s.pending.Through <= s.cursor {
		s.pending.Through = 0
	}
}

// ack takes an Ack.
func (s *sender) ack(now time.Time, a *wire.Ack) *RefusedError {
	if s.phase == phaseOpening {
		return refused(wire.CodeMalformed, "ack before accept")
	}
	if a.Through >= s.next && s.owner && a.Through <= s.head {
		s.next = a.Through + 1
	}
	if a.Through >= s.next {
		return refused(wire.CodeMalformed, "ack of %d, but %d was not sent", a.Through, s.next)
	}
	if a.Through > s.acked {
		if err := s.settle(a.Through, a.Outcomes); err != nil {
			return err
		}
		s.acked, s.progress, s.moved = a.Through, now, true
		s.heldAt = time.Time{}
		s.land(a.Through)
	}
	s.grant(a.Credit)
	return nil
}

// settle notes outcomes for the source. Those up to the cursor were recorded
// before: the destination has been rewound.
func (s *sender) settle(through uint64, outcomes []wire.Outcome) *RefusedError {
	for _, o := range outcomes {
		switch {
		case o.Outcome == record.OutcomeMoved:
			return refused(wire.CodeUnsupported, "number %d moved: following moves is not supported", o.First)
		case o.Outcome <= record.OutcomeLanded || o.Outcome > record.OutcomeGap:
			return refused(wire.CodeUnsupported, "number %d has the unknown outcome %d", o.First, o.Outcome)
		case o.Through > through:
			return refused(wire.CodeMalformed, "outcome of number %d beyond the settled prefix %d", o.Through, through)
		}
		if o.Through <= s.cursor || o.Through <= s.pending.Through {
			continue
		}
		out := Outcome(o)
		out.First = max(out.First, s.cursor+1, s.pending.Through+1)
		s.pending.Outcomes = appendOutcome(s.pending.Outcomes, out)
	}
	if through > s.cursor {
		s.pending.Through = max(s.pending.Through, through)
	}
	return nil
}

// appendOutcome appends o, joining it to the last one when it continues it.
func appendOutcome[O ~struct {
	First, Through uint64
	Outcome        record.Outcome
	Reason         record.Reason
}](list []O, o O) []O {
	if n := len(list); n > 0 {
		last := Outcome(list[n-1])
		if x := Outcome(o); last.Through+1 == x.First && last.Outcome == x.Outcome && last.Reason == x.Reason {
			last.Through = x.Through
			list[n-1] = O(last)
			return list
		}
	}
	return append(list, o)
}

// settleStep is how many numbers with consequences one Settle has at most: each
// may become a dead-letter copy, and all of them one append of the source.
const settleStep = 256

// settlement returns the next piece of what is pending; false when nothing is.
// The piece shares the memory of what is pending until recorded.
func (s *sender) settlement() (Settlement, bool) {
	p := s.pending
	if p.Through == 0 {
		return p, false
	}
	p.Outcomes = outcomesThrough(p.Outcomes, p.Through)
	left := uint64(settleStep)
	for i := range p.Outcomes {
		o := &p.Outcomes[i]
		if n := o.Through - o.First + 1; o.Outcome != record.OutcomeParked || n < left {
			if o.Outcome == record.OutcomeParked {
				left -= n
			}
			continue
		}
		cut := o.First + left - 1
		step := append([]Outcome(nil), p.Outcomes[:i+1]...)
		step[i].Through = cut
		return Settlement{Through: cut, Outcomes: step}, true
	}
	return p, true
}

// outcomesThrough returns the outcomes up to a number. Only a source that serves
// landings has some beyond: its destination is ahead of it.
func outcomesThrough(list []Outcome, through uint64) []Outcome {
	n := len(list)
	if n == 0 || list[n-1].Through <= through {
		return list
	}
	for n > 0 && list[n-1].First > through {
		n--
	}
	list = slices.Clone(list[:n])
	if n > 0 {
		list[n-1].Through = min(list[n-1].Through, through)
	}
	return list
}

// recorded tells that the source has recorded what is pending up to through.
func (s *sender) recorded(through uint64) {
	s.cursor = max(s.cursor, through)
	if through >= s.pending.Through {
		s.pending.Through = 0
	}
	n := 0
	for n < len(s.pending.Outcomes) && s.pending.Outcomes[n].Through <= through {
		n++
	}
	s.pending.Outcomes = slices.Delete(s.pending.Outcomes, 0, n)
	if n = len(s.pending.Outcomes); n > 0 {
		o := &s.pending.Outcomes[0]
		o.First = max(o.First, through+1)
	}
}

// land drops settled batches from those in flight.
func (s *sender) land(through uint64) {
	for s.from < len(s.flight) && s.flight[s.from].through <= through {
		if !s.flight[s.from].full {
			s.partial--
		}
		s.from++
	}
	if s.from == len(s.flight) {
		s.flight, s.from = s.flight[:0], 0
	}
}

// grant raises the credit; it is absolute and never falls.
func (s *sender) grant(c wire.Credit) {
	s.credit.Number = max(s.credit.Number, c.Number)
	s.credit.Bytes = max(s.credit.Bytes, c.Bytes)
}

// room returns how many numbers and data bytes the next batch may have. count
// is 0 when nothing may be sent now.
func (s *sender) room() (count, bytes int) {
	if s.phase != phaseStreaming || s.next > s.head || len(s.pending.Outcomes) >= maxPending {
		return 0, 0
	}
	left := s.credit.Bytes - min(s.bytes, s.credit.Bytes)
	if s.credit.Number < s.next || left == 0 || left < s.need {
		return 0, 0
	}
	full := s.step - s.next%s.step // up to and with the last number before a multiple
	got := min(full, s.head-s.next+1, s.credit.Number-s.next+1)
	if got < full && s.partial >= fullOnly*s.lim.InFlight {
		return 0, 0
	}
	return int(got), int(min(left, uint64(s.lim.BatchBytes)))
}

// unsent returns how many numbers have not been sent.
func (s *sender) unsent() uint64 { return s.head + 1 - min(s.next, s.head+1) }

// gatherable reports whether the next batch could have more records if it waited
// for them: nothing but the head cuts it, and it is small.
func (s *sender) gatherable() bool {
	count, _ := s.room()
	return count > 0 && uint64(count) == s.unsent() && uint64(count)*s.size < lingerBytes && (s.next+uint64(count))%s.step != 0
}

// crowded reports whether so many batches that are not full are on their way that
// the next one has to wait for more records.
func (s *sender) crowded() bool { return s.partial >= s.lim.InFlight }

// tooLarge notes that the record of the next number has more data bytes than
// the credit leaves. It reports whether waiting cannot help, since everything
// sent has come back: the session needs a larger window from its start.
func (s *sender) tooLarge(size uint64) bool {
	s.need = size
	return s.acked+1 == s.next && s.heldAt.IsZero()
}

// stuck is tooLarge asked again after an Ack.
func (s *sender) stuck() bool {
	return s.need > 0 && s.credit.Bytes-min(s.bytes, s.credit.Bytes) < s.need && s.acked+1 == s.next && s.heldAt.IsZero()
}

// sent tells that the numbers up to through left with so many data bytes.
func (s *sender) sent(now time.Time, through uint64, bytes int) {
	if !s.waiting() {
		s.progress, s.probed = now, now // the backlog begins here
	}
	full := s.whole(through, bytes)
	s.measure(through-s.next+1, uint64(bytes))
	if s.from > 256 && s.from*2 > len(s.flight) {
		s.flight = s.flight[:copy(s.flight, s.flight[s.from:])]
		s.from = 0
	}
	s.flight = append(s.flight, sent{through: through, full: full})
	if !full {
		s.partial++
	}
	s.next = through + 1
	s.bytes += uint64(bytes)
	s.need = 0
	s.busy = now
}

// whole reports whether a batch that ends with through was cut by a boundary,
// not by the head: every leg that starts where it starts gets the same.
func (s *sender) whole(through uint64, bytes int) bool {
	return (through+1)%s.step == 0 || bytes >= s.lim.BatchBytes*3/4
}

// measure adapts the boundary to the size of records, so that batches are cut
// by numbers, evenly, and by bytes only when sizes vary much.
func (s *sender) measure(count, bytes uint64) {
	if bytes == 0 {
		return
	}
	if s.size == 0 {
		s.size = bytes / count
	}
	s.size = max((3*s.size+bytes/count)/4, 1)
	fit := max(uint64(s.lim.BatchBytes)/s.size, 1)
	s.step = min(1<<(bits.Len64(fit)-1), uint64(s.lim.BatchNumbers))
}

// grown tells the flow's head.
func (s *sender) grown(now time.Time, head uint64) {
	if head > s.head {
		if s.phase == phaseStreaming && !s.backlog() {
			s.progress, s.probed = now, now
		}
		s.head = head
		s.behind()
	}
}

// waiting reports whether something sent is not settled.
func (s *sender) waiting() bool { return s.acked+1 < s.next }

// backlog reports whether the flow has numbers that are not settled here.
func (s *sender) backlog() bool { return s.acked < s.head }

// reply takes an answer to a probe.
func (s *sender) reply(now time.Time, p *wire.ProbeReply) {
	if p.Nonce == s.nonce && !s.probeAt.IsZero() {
		s.rtt, s.probeAt = now.Sub(s.probeAt), time.Time{}
	}
	s.held, s.heldText, s.heldAt = p.Held, p.Text, now
	if p.Held == wire.CodeOK {
		s.heldText, s.heldAt = "", time.Time{}
	}
	s.grant(p.Credit)
}

// tick decides what is due. probe asks for a probe; an error ends the session:
// CodeOK when it was idle, CodeTimeout when it was not healthy.
func (s *sender) tick(now time.Time) (probe bool, end *RefusedError) {
	if s.phase == phaseOpening {
		if now.Sub(s.opened) >= s.lim.OpenTimeout {
			return false, refused(wire.CodeTimeout, "no answer to open for %v", s.lim.OpenTimeout)
		}
		return false, nil
	}
	if !s.backlog() || s.phase == phaseSealed {
		if now.Sub(s.busy) >= s.lim.IdleTimeout {
			return false, refused(wire.CodeOK, "idle")
		}
		return false, nil
	}
	s.busy = now
	// Held excuses only while the destination keeps saying so.
	excused := !s.heldAt.IsZero() && now.Sub(s.heldAt) < 4*s.lim.ProbeEvery
	if !excused && now.Sub(s.progress) >= s.lim.StallTimeout {
		return false, refused(wire.CodeTimeout, "no progress for %v", s.lim.StallTimeout)
	}
	if now.Sub(s.probed) >= s.lim.ProbeEvery {
		s.probed = now
		return true, nil
	}
	return false, nil
}

// probe makes the next probe.
func (s *sender) probe(now time.Time, nonce uint64) wire.Probe {
	s.nonce, s.probeAt = nonce, now
	return wire.Probe{Nonce: nonce, SentAt: uint64(now.UnixNano()), Head: s.head, Cursor: s.cursor}
}

// due returns when tick has something to do at the earliest.
func (s *sender) due() time.Time {
	switch {
	case s.phase == phaseOpening:
		return s.opened.Add(s.lim.OpenTimeout)
	case !s.backlog() || s.phase == phaseSealed:
		return s.busy.Add(s.lim.IdleTimeout)
	}
	at := s.probed.Add(s.lim.ProbeEvery)
	if stall := s.progress.Add(s.lim.StallTimeout); stall.Before(at) && s.heldAt.IsZero() {
		return stall
	}
	return at
}
