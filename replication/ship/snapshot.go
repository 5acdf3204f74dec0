package ship

import (
	"context"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Bounds of a snapshot's files.
const (
	// MaxFiles is how many files a snapshot may consist of.
	MaxFiles = 16
	// MaxFileName bounds the name of one, in bytes.
	MaxFileName = 128
)

// Origin says of which store a replica becomes a copy, and from where on.
type Origin struct {
	Incarnation record.Incarnation
	Lanes       int // lane count of the store, fixed with the incarnation
	// Begin is where the copy's log begins and, being empty, ends: the base of a
	// segment of the master.
	Begin record.Position
	// Lineage is the master's lineage table up to Begin: the rows that begin at or
	// before it.
	Lineage []record.LineageStart
}

// File is a file of a snapshot.
type File struct {
	Name string // of letters, digits, '-', '_' and '.', not beginning with '.'; at most MaxFileName bytes
	Size int64
}

// Snapshots gives out what an empty or too old replica needs besides the log: the
// snapshot of the fold, the key of receipt handles. It is the master's.
type Snapshots interface {
	// Lanes is the lane count of the store.
	Lanes() int
	// Snapshot opens the newest snapshot for reading, as it stands now; it returns
	// soon after ctx has ended. The log position that it stands for is at or above Begin of
	// the log and committed; what it refers to from Begin on is kept until Close.
	// A store without a snapshot yet gives one that has no fold in it.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// Snapshot is an open snapshot. Its methods are called by one goroutine.
type Snapshot interface {
	// Files are the files, at most MaxFiles.
	Files() []File
	// ReadAt reads len(p) bytes of a file at an offset, as io.ReaderAt does.
	ReadAt(file int, p []byte, off int64) (int, error)
	// Close gives it back.
	Close() error
}

// Restore is where a replica puts the store that it is given. It is called by one
// goroutine at a time. Until Install, nothing of the store that stands there is
// touched, and what was written before a crash is forgotten.
type Restore interface {
	// Start forgets what an earlier transfer has left and expects the files.
	// It refuses what would not fit on the disk (ErrFull), as Write does.
	Start(ctx context.Context, files []File) error
	// Write writes a part of a file. The parts of a file come in order, without
	// hole.
	Write(ctx context.Context, file int, off int64, p []byte) error
	// Install sees to it that the store is, when it is opened next, an empty log that
	// begins at o.Begin and the files: that it will be is durable when it returns nil.
	// Whenever the machine stops, what is opened is the old store (only before that),
	// an empty one (incarnation 0, received again) or the whole new one, never a mix.
	// Until then the old one stands and must not grow. Follow ends with ErrReplaced
	// after it: whoever owns the store opens it again.
	Install(ctx context.Context, o Origin) error
	// Forget takes back, durably, whatever was received or ordered: the store that
	// stands there stays. A log that is going to be written to needs that first.
	Forget(ctx context.Context) error
}
