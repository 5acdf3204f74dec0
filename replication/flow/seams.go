package flow

import (
	"context"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Leg is one destination of a flow. A unicast flow has one leg; the flow of a
// broadcast channel has one per city.
type Leg struct {
	Flow  record.FlowID
	City  zone.City  // destination city
	Group zone.Group // destination broker group
}

// Mark is one row of a flow's lineage table: numbers from First on, up to the
// next row's First, belong to the lineage.
type Mark struct {
	Epoch uint64
	ID    record.LineageID
	First uint64
}

// Fingerprint identifies the content behind a number. The zero value is "none".
type Fingerprint struct {
	Lineage  record.LineageID
	Number   uint64
	Checksum uint32 // the record's header checksum
}

// OriginState is what the origin's fold knows of a flow.
type OriginState struct {
	Oldest uint64 // lowest number whose record can still be read; Head+1 when there is none
	Head   uint64 // highest number given; 0 = none yet
	// Lineage is the table, ascending; never empty once Head > 0. Its last row is
	// the lineage in force, with First = Head+1 until it has a number: a copy
	// that was restored must differ from its original from its start on.
	Lineage []Mark
	// Landed says that this end is no origin: it serves what landed here. Head is
	// then the last number that settled here, Lineage what the landings prove, and
	// either may move back while the origin makes up its mind.
	Landed bool
}

// Outcome is the settlement of a range of numbers that did not land.
type Outcome struct {
	First, Through uint64
	Outcome        record.Outcome
	Reason         record.Reason
}

// Settlement is what a destination reported: everything up to Through is
// settled, landed except for Outcomes.
type Settlement struct {
	Through uint64
	// Lineage is the one of Through by the table that the session told; 0 for a
	// flow that begins here, which has one.
	Lineage  record.LineageID
	Outcomes []Outcome // ascending
}

// Item is a record read from a flow.
type Item struct {
	Number uint64
	Record []byte // encoded record; must not be changed; valid until the item is dropped
	// Skip: the number is not sent to this leg, and Record is nil. Then Through,
	// unless it is 0, is the last of a range of such numbers, Reason says why, and
	// Gap that they are declared lost.
	Skip    bool
	Gap     bool
	Reason  record.Reason
	Through uint64

	// What follows is of sources that serve landings; zero else.
	Lineage record.LineageID // of the number
	Hops    uint8            // of the re-landing that is to be
	Path    []zone.City      // cities passed, this one included
}

// last returns the last number of the item.
func (it *Item) last() uint64 { return max(it.Number, it.Through) }

// Source is the origin's end as the sender sees it. Package broker implements
// it. Methods are safe for concurrent use; none but Settle blocks on the disk
// longer than a read.
type Source interface {
	// Topology returns the topology in force.
	Topology() *zone.Topology
	// Legs returns every leg that has an unsettled number, and no other.
	Legs() []Leg
	// LegsChanged is signalled (capacity 1) when Legs may have changed or a
	// leg has new records.
	LegsChanged() <-chan struct{}
	// Origin returns the flow's numbers and lineage table.
	Origin(record.FlowID) (OriginState, bool)
	// Cursor returns the durable cursor of a leg and its own fingerprint of
	// that number, kept past trimming.
	Cursor(Leg) (settled uint64, at Fingerprint)
	// FingerprintAt returns the origin's own fingerprint of a number; ok is
	// false when the origin no longer knows it.
	FingerprintAt(id record.FlowID, number uint64) (f Fingerprint, ok bool)
	// Read appends to dst the records from the number on, in order and without
	// holes, all of one lineage, until count, bytes or the head is reached. At
	// least one item is returned when from <= Head; a range of numbers without
	// records may go beyond count. ErrTrimmed when from < Oldest.
	Read(leg Leg, from uint64, count, bytes int, dst []Item) ([]Item, error)
	// Wait returns a channel that is closed when the flow's head passes number.
	Wait(id record.FlowID, number uint64) <-chan struct{}
	// Settle records a settlement: consequences of outcomes other than landed
	// (dead-letter copies with reason and replay data) are durable before the
	// cursor moves. A settlement without such outcomes is coalesced and may
	// become durable later; it is idempotent. One call parks at most a few
	// hundred numbers; more come in several calls.
	Settle(ctx context.Context, leg Leg, s Settlement) error
}

// Have is one row of what a destination has of a flow: the last number that it
// settled in a lineage.
type Have struct {
	Lineage record.LineageID
	Epoch   uint64
	Last    uint64
}

// SinkState is what the destination's fold (committed state) knows of a flow.
type SinkState struct {
	Known    bool // false: never heard of this flow
	Settled  uint64
	Last     Fingerprint // of the last number that came with a record
	History  []Have      // ascending by Epoch, bounded
	Outcomes []Outcome   // other than landed, not yet passed by the origin's cursor
	Sealed   bool
}

// Landing is a batch of numbers to settle at the destination, contiguous from
// First. A batch either carries Records, one a number, or settles the range
// First..Through with Outcome.
//
// The fold of a landing, and only it, decides whether the landing counts: when
// the flow's history has a row of the Lineage, First must be that row's Last+1;
// else the landing begins the lineage wherever First is (the receiver has
// compared the tables). A landing that fits neither settles nothing, and done
// is told so. What counts sets Settled to Through, even when that moves it back:
// what the flow settled above First in another lineage are then orphans, whose
// records stay and whose outcomes are forgotten (a range of outcomes that
// reaches across First is cut).
type Landing struct {
	Flow         record.FlowID
	Lineage      record.LineageID
	LineageEpoch uint64
	First        uint64
	Through      uint64
	Records      [][]byte // each an encoded record; the sink keeps them until done was called
	Outcome      record.Outcome
	Reason       record.Reason
	Hops         uint8
	Path         []zone.City
	OriginCursor uint64
	// Table is the origin's lineage table, in the first landing of a session or of
	// a lineage; nil elsewhere. Rows behind First are not proven by it.
	Table []Mark
}

// Sink is the destination's end as the receiver sees it. Package broker
// implements it. Methods are safe for concurrent use.
type Sink interface {
	// Group, Incarnation and Epoch identify the destination.
	Group() zone.Group
	Incarnation() record.Incarnation
	Epoch() uint64 // lineage epoch of the destination's store
	Topology() *zone.Topology
	// Resume returns the committed state of a flow.
	Resume(record.FlowID) SinkState
	// Land appends the landing. It judges each record (topic known, size,
	// residency, hops) and settles those it cannot accept as parked. It returns
	// at once; done is called exactly once, in order per flow, when the landing
	// is committed and folded (nil) or was refused; it is not called when Land
	// itself returns an error, does not block, and may be called before Land
	// returns. ErrHeld (wrapped, with the
	// reason) when it cannot take it now: disk full, or the record's route
	// epoch is ahead of this node's topology; nothing was settled then. The
	// receiver hands over the same landing again later, before any other of the
	// flow.
	Land(l Landing, done func(error)) error
	// Seal durably refuses everything above the settled prefix and returns it.
	Seal(ctx context.Context, id record.FlowID) (settled uint64, err error)
	// Writable is nil, or the reason why nothing can land now (held).
	Writable() error
}

// Dialer opens a stream towards the destination of a leg: straight to its
// broker in the same city, else through a healthy router of this city.
type Dialer interface {
	// Open returns a stream for the session. An error with a method WireCode()
	// wire.Code says why there is none. One deadline covers connect, TLS
	// and greeting. The caller sends Open as the first frame.
	Open(ctx context.Context, leg Leg, session uint64) (wire.Stream, error)
}
