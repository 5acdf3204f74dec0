package ship

import (
	"context"
	"errors"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Errors of a log that shipping tells apart from others. An implementation wraps
// them; any other error ends the session, and it is tried again.
var (
	// ErrTrimmed: the position is below the oldest that is kept.
	ErrTrimmed = errors.New("ship: position is no longer kept")
	// ErrCommitted: Truncate below what is committed. Nothing was changed.
	ErrCommitted = errors.New("ship: what is committed cannot be taken back")
	// ErrRefused: a stretch of the log is not what must follow here, or its bytes
	// are damaged. Nothing of it was kept.
	ErrRefused = errors.New("ship: bytes are not what follows in this log")
	// ErrFull: there is no space. Nothing is broken, and nothing of the call was kept;
	// the log goes on when there is space again.
	ErrFull = errors.New("no space can be allocated")
)

// View is what any member's log says of itself. All methods return at once and
// are safe for concurrent use.
//
// Begin <= Committed <= Synced <= End. An idle master's End may stay above its
// Synced (a mark frame is written without a sync of its own).
type View interface {
	// Incarnation is the store's; 0 while the store is empty, which only a
	// follower's may be.
	Incarnation() record.Incarnation
	// Lineage is the lineage table, ascending. The caller may change the slice.
	Lineage() []record.LineageStart
	// Begin is the oldest position that is kept: the base of a segment.
	Begin() record.Position
	// End is where the next frame goes: everything before was handed to the
	// operating system. In an empty log it is Begin.
	End() record.Position
	// Synced is the end of what is durable here.
	Synced() record.Position
	// Committed is the end of what is known here to be committed by the group.
	Committed() record.Position
}

// Stretch is a run of whole frames of a log, marks included, as they stand on the
// disk: with the positions, checksums and padding that the master gave them. A
// stretch lies in one segment and in one lineage.
type Stretch struct {
	From record.Position // where it begins: of its first frame, or the base of the segment when Base is set
	// Base says that From is the base of a segment. The segment's header is not in
	// Frames: a follower writes its own, with the same base and incarnation, and
	// begins a new segment at From even if its last one has room.
	Base   bool
	Next   record.Position // where the next stretch begins: behind the last frame
	Frames []byte
}

// LeaderLog is the log of a master, as shipping needs it.
type LeaderLog interface {
	View

	// ReadRaw appends whole frames from a position on to dst and returns them as a
	// stretch whose Frames begin at dst[0]: about limit bytes of them, but at least
	// one frame if there is one, however large; none, and Next = From, at End. from
	// is where a frame begins, the base of a segment or End. It reads up to End,
	// committed or not, and what was written last from memory.
	//
	// Errors: ErrTrimmed, the context's, those of the disk (damage included).
	ReadRaw(ctx context.Context, from record.Position, limit int, dst []byte) (Stretch, error)

	// LastFrame returns position and header checksum of the last frame that ends at
	// or before end, which is where a frame or a segment ends; ok is false when
	// none is kept. It may read a whole segment, and is called once a session.
	LastFrame(ctx context.Context, end record.Position) (f Fingerprint, ok bool, err error)

	// Notify makes the log signal c, without waiting, each time End or Synced has
	// moved and when the log has stopped, until cancel is called. c has capacity 1.
	// Several may be registered at a time. A signal follows the move that it tells
	// of: whoever is woken sees it.
	Notify(c chan<- struct{}) (cancel func())

	// Commit raises the commit position to p, at most Synced; a lower one changes
	// nothing. It releases delivery and Done up to there, and does not block.
	Commit(p record.Position)

	// Acked tells that everything before p is durable at a majority of the in-sync
	// set, p at most Synced: it releases Done of what asks for no more. Otherwise as
	// Commit.
	Acked(p record.Position)

	// Retain asks the log to keep what stands at or above p, which a follower still
	// has to read; the greatest position means that none does. It replaces what was
	// asked before. The log may trim further when its disk is about to be full: the
	// follower is given a snapshot then.
	Retain(p record.Position)

	// Err returns why the log takes no writes any more, or nil. A full disk is no
	// such reason.
	Err() error
}

// FollowerLog is the log of a replica, as shipping needs it. Its methods besides
// those of View are called by one goroutine at a time.
type FollowerLog interface {
	View

	// AppendRaw writes a stretch at the end. It checks the position, every length
	// and checksum and the lineage of every frame before it writes anything. The
	// bytes may be reused when it returns; they are not durable then.
	//
	// Errors: ErrRefused, ErrFull; others say that the disk failed. After an error End
	// has not moved.
	AppendRaw(ctx context.Context, s Stretch) error

	// Sync makes everything that was appended durable and returns Synced. An error
	// is final: nobody can tell what the disk holds.
	Sync(ctx context.Context) (record.Position, error)

	// AddLineage appends a row to the lineage table, durably. Its epoch is above the
	// last row's. Nothing of the log stands between End and its First: they are the
	// same, or First is behind the header of a segment that would begin at End. So a
	// row stands in the table only where everything before it stands in the log, and
	// the last row's epoch may count in an election.
	AddLineage(ctx context.Context, row record.LineageStart) error

	// Truncate drops what stands at or above to, which is where a frame begins or
	// ends, and the rows of the lineage table that begin there or above. Both are
	// durable when it returns nil; a crash before leaves a prefix that is at least
	// as long. ErrCommitted when to is below Committed; ErrFull when there is no room to
	// save what may be needed of it, which is done first: nothing was dropped then.
	Truncate(ctx context.Context, to record.Position) error

	// Keep saves what stands at or above from and may be needed, as Truncate does with
	// what it drops: before the store is replaced. It is durable at nil.
	//
	// Errors: ErrFull when there is no room for it; others say that it cannot be read.
	Keep(ctx context.Context, from record.Position) error

	// LastFrame is as in LeaderLog.
	LastFrame(ctx context.Context, end record.Position) (f Fingerprint, ok bool, err error)

	// Commit tells what the group has committed: p, at most Synced; a lower one
	// changes nothing. It does not block. What it says outlives a restart where the
	// frames' own commit marks tell it, not at once.
	Commit(p record.Position)
}

// Fingerprint names a frame by where it stands and the checksum of its header,
// which covers that of its payload: two logs that have it in common at a place
// have the same frame there.
type Fingerprint struct {
	Position record.Position
	Checksum uint32
}
