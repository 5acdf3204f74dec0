package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Desk is what one coordinator process knows besides the terms: who stands where, and
// which leases may still be valid. It is made anew whenever its process takes over,
// and then knows of no lease, so that it takes none away before every one that was
// granted before is over. It decides; its owner keeps the terms and carries out the
// steps. It reads no clock: now is a monotonic time of one process. It is not safe
// for concurrent use.
//
// A grant that Renew returns is valid only if its owner was still the one who decides
// at some moment after it called Renew, and finds that out before it answers.
type Desk struct {
	timing    Timing
	began     time.Time // leases granted before by others are over Lease and Margin later
	seats     map[zone.Group]*seat
	forgotten map[zone.Group]bool // groups whose seat was dropped once
}

// seat is what is known of a group.
type seat struct {
	standings map[zone.Node]heard // of nodes that were members when they told

	epoch  uint64    // which one the fields below are about
	until  time.Time // when no lease of the epoch is valid any more, margin included
	closed bool      // no more leases of the epoch
	known  record.Position
	noted  time.Time // when the term was last told what is committed, or the epoch seen first
	wants  bool      // the master said that a majority is to acknowledge

	vacant  uint64 // version of the vacant term that settle is about
	settle  time.Time
	waiting string    // why there is no master; "" = there is one
	gone    zone.Node // the master of the epoch, when its lease ran out here
	left    zone.Node // the master of the epoch, when it gave its lease back

	order *Order // an operator's; nil = none
}

type heard struct {
	Standing
	at time.Time
}

// NewDesk returns the desk of a process that takes over now.
func NewDesk(t Timing, now time.Time) *Desk {
	return &Desk{timing: t.WithDefaults(), began: now, seats: map[zone.Group]*seat{}, forgotten: map[zone.Group]bool{}}
}

// Timing returns the times in force.
func (d *Desk) Timing() Timing { return d.timing }

// seat returns a group's seat, set for the term's epoch.
func (d *Desk) seat(t Term, now time.Time) *seat {
	s := d.seats[t.Group]
	if s == nil {
		from := d.began
		if d.forgotten[t.Group] {
			from = now // the lease that the seat before granted may still run
		}
		s = &seat{standings: map[zone.Node]heard{}, until: from.Add(d.timing.Over(t.Leased)), epoch: t.Epoch, noted: now}
		d.seats[t.Group] = s
	}
	if s.epoch != t.Epoch {
		// A new master gets as long to claim its epoch as it may be silent later.
		s.epoch, s.closed, s.known, s.gone, s.left, s.wants, s.noted = t.Epoch, false, 0, "", "", false, now
		s.until = now.Add(d.timing.Over(t.Leased))
	}
	return s
}

// Forget drops what is known of groups that are not in the topology any more.
func (d *Desk) Forget(keep func(zone.Group) bool) {
	for name := range d.seats {
		if !keep(name) {
			delete(d.seats, name)
			d.forgotten[name] = true
		}
	}
}

// Renew notes where a member of g stands and grants the master of t its lease. The
// member must be one of g's, by its certificate. The lease is zero when there is
// none.
func (d *Desk) Renew(now time.Time, g Group, t Term, s Standing) Lease {
	seat := d.seat(t, now)
	seat.standings[s.Node] = heard{Standing: s, at: now}
	if t.Epoch != 0 && (s.Epoch == t.Epoch || s.Leads == t.Epoch) {
		seat.known = max(seat.known, s.Committed)
	}
	if s.Node != t.Master {
		return Lease{}
	}
	switch {
	case t.Incarnation != 0 && s.Incarnation != t.Incarnation:
		// The master's disk was emptied or exchanged: what it led with is gone. The lease
		// runs out, in case that this is a second node of the same name.
		seat.closed = true
	case t.Alone != "":
		// Another node may have written by itself since, or this one has in another epoch:
		// an election finds out, as long as the node that was alone is there to be asked.
		seat.closed = true
	case s.Leads == t.Epoch && !seat.closed:
		seat.wants = s.Majority
		l := d.timing.grant(t.Leased)
		seat.until = later(seat.until, now.Add(d.timing.Over(l)))
		return Lease{Epoch: t.Epoch, Duration: l}
	case s.Leads == 0 && s.Epoch >= t.Epoch:
		// It led the epoch and does not any more: it was started again or stepped down.
		seat.closed, seat.until, seat.left = true, now, t.Master
	}
	return Lease{}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Step is what a desk's owner has to do to a term: at most one of the fields but for
// Wake is set. The change is made only if the term is still the one that Judge was
// given.
type Step struct {
	Vacate bool
	Elect  *Election
	Named  record.Incarnation
	Mark   bool      // the term is to be Marked; see Desk.Mark
	Wake   time.Time // when Judge may say something else although nothing is heard; zero = never
}

// Judge says what is to be done about the group's term now. Once it said Vacate, it
// grants no lease of that epoch any more.
func (d *Desk) Judge(now time.Time, g Group, t Term) Step {
	seat := d.seat(t, now)
	if t.Master != "" {
		seat.waiting, seat.vacant = "", 0
		if m, ok := seat.standings[t.Master]; ok && t.Incarnation == 0 && m.Incarnation != 0 && m.Leads == t.Epoch {
			return Step{Named: m.Incarnation}
		}
		if seat.order != nil && seat.order.To != t.Master {
			seat.closed = true
		}
		if now.Before(seat.until) {
			if !seat.closed && d.marks(now, t, seat) {
				return Step{Mark: true}
			}
			return Step{Wake: seat.until}
		}
		if !seat.closed {
			seat.gone = t.Master
		}
		seat.closed = true
		return Step{Vacate: true}
	}
	if seat.vacant != t.Version || seat.settle.IsZero() {
		seat.vacant, seat.settle = t.Version, now.Add(d.timing.Settle)
	}
	b := d.ballot(now, g, t, seat)
	var e Election
	var ok bool
	switch {
	case seat.order == nil:
		e, seat.waiting, ok = b.Elect()
	case seat.order.AllowLoss:
		if e, seat.waiting, ok = b.Force(*seat.order); ok && e.Loss != nil && !b.Settled {
			ok = false // others may still say what is given up
		}
	default:
		e, seat.waiting, ok = b.Appoint(seat.order.To)
		if !ok && b.Settled { // what the operator wants cannot be; somebody has to lead
			seat.order = nil
			e, seat.waiting, ok = b.Elect()
		}
	}
	switch {
	case ok:
		return Step{Elect: &e}
	case !b.Settled:
		return Step{Wake: seat.settle}
	}
	return Step{}
}

// NoteEvery is how often a term is told what is committed while nothing else changes
// it.
const NoteEvery = 10 * time.Second

// noteLone is NoteEvery of a term with one node in sync. What that one has, nobody else
// has: if it is lost together with the voter that has heard of it, the term alone can
// tell how much it was.
const noteLone = 500 * time.Millisecond

// marks says whether the term of a master is to be marked.
func (d *Desk) marks(now time.Time, t Term, seat *seat) bool {
	every := NoteEvery
	if len(t.InSync) == 1 {
		every = noteLone
	}
	return seat.wants && !t.Majority || t.Leased != 0 && t.Leased < d.timing.Lease ||
		seat.known > t.Committed && now.Sub(seat.noted) >= every
}

// Mark returns the term as the desk wants it marked.
func (d *Desk) Mark(now time.Time, t Term) Term {
	seat := d.seat(t, now)
	seat.noted = now
	leased := time.Duration(0)
	if t.Leased != 0 {
		leased = d.timing.Lease
	}
	return t.Marked(seat.wants, leased, seat.known)
}

// Known is the highest position that the desk has heard to be committed in the term's
// epoch.
func (d *Desk) Known(t Term) record.Position {
	if s := d.seats[t.Group]; s != nil && s.epoch == t.Epoch {
		return s.known
	}
	return 0
}

// ballot collects what was said since the term has had no master.
func (d *Desk) ballot(now time.Time, g Group, t Term, seat *seat) Ballot {
	b := Ballot{Group: g, Term: t, Known: max(seat.known, t.Committed), Gone: seat.gone, Left: seat.left, Settled: !now.Before(seat.settle)}
	for _, h := range seat.standings {
		if h.Counts(t) && g.has(h.Node) && d.fresh(now, h) {
			b.Standings = append(b.Standings, h.Standing)
		}
	}
	slices.SortFunc(b.Standings, func(x, y Standing) int { return slices.Index(g.Members, x.Node) - slices.Index(g.Members, y.Node) })
	return b
}

// fresh says whether the member was heard of lately: it lives.
func (d *Desk) fresh(now time.Time, h heard) bool {
	return now.Sub(h.at) < 2*d.timing.Renew+d.timing.Settle
}

// Resign gives the lease of t back in the name of its master, or says in words why to
// cannot be elected; then nothing has changed. With to the term passes to it, without
// it is to be vacated; no lease of the epoch is granted any more.
func (d *Desk) Resign(now time.Time, g Group, t Term, to zone.Node) (why string, ok bool) {
	seat := d.seat(t, now)
	if to != "" {
		h, known := seat.standings[to]
		switch {
		case to == t.Master:
			return fmt.Sprintf("%s is the master", to), false
		case !slices.Contains(t.InSync, to):
			return fmt.Sprintf("%s is not in sync", to), false
		case !g.has(to):
			return fmt.Sprintf("%s is not a node of the group", to), false
		case !known || !d.fresh(now, h):
			return fmt.Sprintf("%s does not answer", to), false
		case !h.Fit:
			return fmt.Sprintf("%s is not fit", to), false
		}
	}
	seat.closed, seat.until, seat.left = true, now, t.Master
	return "", true
}

// Order begins an operator's fail-over, or says why it cannot be; it is carried out
// by the steps of Judge until Recall.
func (d *Desk) Order(now time.Time, g Group, t Term, o Order) error {
	to, allowLoss := o.To, o.AllowLoss
	fail := func(k Kind, format string, args ...any) error {
		return &Error{Op: "failover", Group: t.Group, Kind: k, Text: fmt.Sprintf(format, args...)}
	}
	seat := d.seat(t, now)
	h, known := seat.standings[to]
	answers := known && d.fresh(now, h)
	master, alive := seat.standings[t.Master]
	alive = alive && d.fresh(now, master) && master.Leads == t.Epoch
	safe := slices.Contains(t.InSync, to) && h.Fit
	switch why := o.Check(); {
	case why != "":
		return fail(KindRefused, "%s", why)
	case !g.has(to):
		return fail(KindNotFound, "%s is not a node of the group", to)
	case to == t.Master:
		return fail(KindRefused, "%s is the master", to)
	case seat.order != nil:
		return fail(KindRefused, "a fail-over to %s is under way", seat.order.To)
	case !answers:
		return fail(KindNoCandidate, "%s does not answer", to)
	case allowLoss && alive && !safe:
		return fail(KindRefused, "the master %s answers; nothing needs to be lost while it does", t.Master)
	case !allowLoss && !safe && t.Epoch != 0:
		return fail(KindNoCandidate, "%s is not in sync, or not fit; in sync are %v", to, t.InSync)
	}
	seat.order = &o
	return nil
}

// Recall ends the operator's order, carried out or not.
func (d *Desk) Recall(group zone.Group) {
	if s := d.seats[group]; s != nil {
		s.order = nil
	}
}

// Opinion is what a desk knows of a group, for people.
type Opinion struct {
	Leased    bool            // the lease that was granted last may still be valid
	Waiting   string          // why there is no master; "" = there is one, or nothing is known yet
	Known     record.Position // the highest that is known to be committed in the epoch: what a Loss would name
	Standings []Standing
}

// Opinion returns what is known of the term's group.
func (d *Desk) Opinion(now time.Time, t Term) Opinion {
	s := d.seats[t.Group]
	if s == nil {
		return Opinion{}
	}
	o := Opinion{Leased: t.Master != "" && s.epoch == t.Epoch && now.Before(s.until), Waiting: s.waiting}
	if s.epoch == t.Epoch {
		o.Known = s.known
	}
	for _, h := range s.standings {
		if d.fresh(now, h) {
			o.Standings = append(o.Standings, h.Standing)
		}
	}
	slices.SortFunc(o.Standings, func(x, y Standing) int {
		if x.Node < y.Node {
			return -1
		}
		return 1
	})
	return o
}
