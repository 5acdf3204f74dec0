package commitlog

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// EntryKind says what an entry holds.
type EntryKind uint8

// The entry kinds.
const (
	KindOwn     EntryKind = iota + 1 // a record first appended here: its identity is this log's
	KindLanding                      // an envelope, and the record of another group if it landed
)

// Entry is one entry of the log. Its bytes must not be changed.
type Entry struct {
	Kind     EntryKind
	Position record.Position // of the entry's frame
	Size     int             // bytes of the whole frame; Position+Size is where the next frame may begin
	Envelope []byte          // encoded; nil for KindOwn
	Record   []byte          // encoded; nil for a landing without record
}

// Batch is appended as one: its entries are neighbours in the log and become
// committed together. After a crash in the middle of its write a prefix of its
// entries may be found; what must be atomic goes into one entry.
type Batch struct {
	// Entries holds Kind, Envelope and Record when it is given to Append. The
	// log reads the bytes but does not change them: a record of KindOwn is
	// stamped in the log's own copy. When Done is called without an error,
	// Position and Size are set and the bytes point to that copy.
	Entries []Entry

	// Buffered asks for Done as soon as the entries are handed to the operating
	// system: before they are durable, committed and delivered, so before
	// Deliver could fill Result. Power loss may lose the last moments. The log
	// goes on using such a batch after Done, until it was delivered: it must
	// not be used again.
	Buffered bool

	// Reserved lets the batch use the space that is kept back when the disk is
	// full. It is for the broker's own small records without which no space
	// would ever be freed (cursors, progress), not for publishes or landings.
	Reserved bool

	// Ack asks for an earlier Done in a group with replicas; the zero value is
	// AckCommitted. What Buffered says of Result and of using the batch again
	// holds here, too, when EarlyDone.
	Ack Ack

	// Done is called exactly once for a batch that Append accepted, from the
	// deliver goroutine. With nil: the batch is committed and Deliver has returned
	// (unless Buffered or Ack asked for less); these calls come in log order. With
	// an error: ErrFull (nothing was kept), or ErrStopped (the fate of the batch is
	// unknown to this member). It must not block. Nil is allowed.
	Done func(b *Batch, err error)

	// Result is the owner's; the log does not touch it.
	Result any

	size     int64 // of all frames; set by Append
	buffered bool  // Done was called early
}

// EarlyDone reports, in Done, whether it was called before Deliver: Result says
// nothing then, and the log goes on using the batch.
func (b *Batch) EarlyDone() bool { return b.buffered }

// Committed is what the deliver goroutine hands to Options.Deliver. It and its
// slices are valid until Deliver returns; the bytes that entries point to stay
// valid as long as they are held, but hold a whole write's buffer: copy what is
// kept for long.
type Committed struct {
	Entries []Entry  // ascending; includes the log's own TypeLineageStart record
	Batches []*Batch // in the order of their entries
	End     record.Position
}

// LineageStart is a row of the lineage table. Its First is an end of the log: that
// of the entry before, also where a new segment begins behind it.
type LineageStart = record.LineageStart

// Ack says when a batch's Done is called.
type Ack uint8

// The moments of Done. In a log that stands alone all are one.
const (
	AckCommitted Ack = iota // committed, and Deliver has returned
	AckQuorum               // durable at as many members as Log.Acked tells of, not yet delivered
	AckSynced               // durable here, not yet delivered; may be lost with this member
)

// Options configures a log. FS, Dir, Group and Deliver are required.
type Options struct {
	FS    disk.FS
	Dir   string     // created when missing; one log a folder
	Group zone.Group // identity of own records; must be that of the store

	// Lanes is the lane count of a new store, 1 to 255; 0 means 4. It is fixed
	// with the incarnation: an existing store keeps its own (see Log.Lanes).
	Lanes int

	SegmentBytes  int64 // size of a segment file; 0 means 64 MiB, at least 4 KiB
	MaxBatchBytes int64 // most bytes in one write, unless one batch alone has more; 0 means 4 MiB
	QueueBytes    int64 // most bytes waiting for the writer; 0 means 32 MiB. Append blocks beyond it
	TailBytes     int64 // most bytes of recent committed entries kept in memory; 0 means 32 MiB, negative none

	// Rand makes the incarnation and the lineage ids; nil means one seeded by
	// the operating system. Only Open uses it.
	Rand   *rand.Rand
	Logger *slog.Logger // nil discards
	Meter  metric.Meter // nil measures nothing

	// LeaveGroup is the last epoch of a log that was a member's (see Follow) and is to
	// be its group's only one from now on; a *MemberError says which one that is. Of
	// any other log it is ignored, so that a value that was left somewhere does no harm.
	LeaveGroup uint64
	// Alone is called by Open before anything is written to a log that does not follow,
	// once it may be its group's only one: who has to know of that is told. With an error
	// Open fails, with that. Nil: nobody has.
	Alone func(ctx context.Context) error

	// Follow opens the log as that of a replica, or of a master to be: it takes
	// what a master has written (AppendRaw), until Promote, and commits what Commit
	// says. In an empty folder the log has no incarnation until Promote. Without
	// Follow the log is its group's only one: what is durable is committed. Nobody is
	// asked about that, so a log that was opened with Follow is opened without it only
	// with LeaveGroup.
	Follow bool

	// Keep is called before a log that follows drops what stands from a position up to
	// its end, or its owner replaces it: what may be needed of it is saved and durable
	// when it returns nil, and with an error nothing is dropped. It may read the log, and
	// must not change it. Nil: nothing is kept.
	Keep func(ctx context.Context, from, end record.Position) error

	// Deliver is called by one goroutine, strictly in position order, with each
	// entry that was committed since Start exactly once. The writer works on
	// beside it and waits when it is a few writes behind. It must not call
	// Append with a context that never ends, nor Close.
	Deliver func(*Committed)
}
