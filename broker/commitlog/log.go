package commitlog

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// Log is an open commit log. Its methods are safe for concurrent use.
type Log struct {
	options Options
	store   *store
	inc     record.Incarnation
	blank   atomic.Bool  // nothing was ever in it: inc does not count yet
	lineage LineageStart // the present one; the writer's
	table   atomic.Pointer[[]LineageStart]

	gated     bool // opened with Follow
	gate      gate
	following following       // until Promote
	loose     record.Position // guarded by following.mu; see meta.Loose
	promoted  bool            // guarded by following.mu
	from      record.Position // where delivery begins; until Start

	queue  *queue
	writer writer // only the writer goroutine, after Start or Promote
	notes  chan note
	free   chan *group // spent groups for the writer to use again

	// Between writer and preparer, each with capacity 1: a spare segment; "there
	// is none now"; "the spare is used up"; "the disk is full, look again".
	spares  chan disk.File
	missing chan struct{}
	used    chan struct{}
	needed  chan struct{}

	committed atomic.Uint64
	begin     atomic.Uint64
	segments  atomic.Pointer[[]*segment] // replaced as a whole under segmentMu
	segmentMu sync.Mutex                 // serializes replacing segments
	tail      tail
	metrics   *metrics

	mending chan struct{} // capacity 1; whoever has put a token may use mendName
	retired []retired     // guarded by segmentMu

	metaUse chan struct{} // capacity 1; whoever has put a token may use store.metaFile and store.meta

	still     chan struct{} // closed when the log was halted and all of it is written; by the writer
	stillOnce sync.Once

	quit      chan struct{} // closed to end the preparer
	running   sync.WaitGroup
	preparing sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// Start appends the TypeLineageStart record, whose body ParseLineageStart
// reads, and begins to serve; delivery begins with that record. A second call
// does nothing. It does not wait for the disk. A log that follows takes no append
// until Promote: it delivers what it commits behind what Replay has told.
func (l *Log) Start() {
	if l.gated {
		l.following.mu.Lock()
		defer l.following.mu.Unlock()
		if !l.following.started && !l.following.over {
			l.following.started = true
			l.gate.told.Store(uint64(l.from))
			l.running.Go(func() { l.deliverGated(l.from) })
		}
		return
	}
	if !l.queue.start() {
		return
	}
	signal(l.needed)
	l.running.Go(func() { l.writer.run() })
	l.running.Go(l.deliver)
	l.preparing.Go(l.prepare)
}

// Append gives the batch to the log and returns at once, or blocks while
// QueueBytes are waiting. With nil the log owns the batch, its entries and their
// bytes until Done; nothing is durable yet. With an error Done is not called.
// Batches of one goroutine keep their order.
//
// Errors: ErrInvalid, ErrTooLarge, ErrFull (with the cause; not for Reserved
// batches while there is room), ErrStopped (with the cause), ErrNotStarted,
// ErrHalted, ErrClosed, the context's.
func (l *Log) Append(ctx context.Context, b *Batch) error {
	size, err := batchSize(b)
	if err != nil {
		return err
	}
	if size > max(l.options.MaxBatchBytes, maxFrameSize) {
		return ErrTooLarge
	}
	b.size, b.buffered = size, false
	if err := l.queue.push(ctx, b); err != nil {
		l.metrics.refuse(err)
		return err
	}
	return nil
}

// batchSize checks the batch's entries and returns the bytes of its frames.
func batchSize(b *Batch) (int64, error) {
	if len(b.Entries) == 0 {
		return 0, ErrInvalid
	}
	size := int64(0)
	for i := range b.Entries {
		e := &b.Entries[i]
		switch {
		case len(e.Record) > record.MaxRecord || len(e.Envelope) > record.MaxEnvelope:
			return 0, ErrTooLarge
		case e.Kind == KindOwn && len(e.Envelope) == 0:
			// The writer stamps the record, so it must be one. What is in it, its
			// encoder has checked.
			if !record.CanStamp(e.Record) {
				return 0, ErrInvalid
			}
		case e.Kind != KindLanding || len(e.Envelope) == 0:
			return 0, ErrInvalid
		}
		size += int64(frameSize(len(e.Envelope) + len(e.Record)))
	}
	return size, nil
}

// Begin returns the oldest position that is kept. Reading may start there.
func (l *Log) Begin() record.Position { return record.Position(l.begin.Load()) }

// Committed returns the end of what is committed: every entry below it can be
// read, none at or above it.
func (l *Log) Committed() record.Position { return record.Position(l.committed.Load()) }

// Incarnation returns the id of the store; 0 while nothing was ever in it, which
// only a log that follows knows.
func (l *Log) Incarnation() record.Incarnation {
	if l.blank.Load() {
		return 0
	}
	return l.inc
}

// Lanes returns the lane count of the store, fixed when it was created.
func (l *Log) Lanes() int { return l.store.meta.Lanes }

// Present returns the present lineage, which began with Open or Promote: before
// its record is on the disk, too. Of a log that follows it is the last one known.
func (l *Log) Present() LineageStart {
	row, _ := l.lastRow()
	return row
}

// Epoch returns the epoch of the present lineage.
func (l *Log) Epoch() uint64 { return l.Present().Epoch }

// Lineage returns the lineage table, ascending; the last row is the present
// lineage. The caller may change the slice.
func (l *Log) Lineage() []LineageStart { return append([]LineageStart(nil), *l.table.Load()...) }

// Writable returns nil, or why a publish would be refused now: ErrFull,
// ErrStopped (both with the cause), ErrNotStarted, ErrClosed.
func (l *Log) Writable() error { return l.queue.writable() }

// Close refuses new appends, writes and syncs what is waiting, delivers it,
// joins the log's goroutines and releases the folder. It returns the error that
// stopped the log before, if any. A second call waits for the first and returns
// nil.
func (l *Log) Close() error {
	first := false
	l.closeOnce.Do(func() {
		first = true
		l.closeErr = l.shutdown()
	})
	if !first {
		return nil
	}
	return l.closeErr
}

// endFollowing ends what a log does that follows: what it has not synced it syncs.
func (l *Log) endFollowing() {
	f := &l.following
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over && l.writer.failed == nil {
		_ = l.writer.syncRaw() // it leaves its error in failed
	}
	f.over = true
	if !l.promoted {
		close(l.gate.quit)
	}
}

func (l *Log) shutdown() error {
	l.queue.close()
	if l.gated {
		l.endFollowing()
	}
	l.running.Wait()
	close(l.quit)
	l.preparing.Wait()
	l.metrics.close()

	st := l.store
	l.metaUse <- struct{}{} // a Trim may be under way
	var err error
	if l.writer.failed == nil {
		st.meta.CleanEnd = l.writer.synced
		if l.gated { // all is durable, so the marks in it say so rightly
			st.meta.Committed, st.meta.Loose = l.Committed(), 0
		}
		if werr := st.metaFile.write(&st.meta); werr != nil {
			err = &OpError{Op: "write", Segment: metaName, Err: werr}
		}
	} else {
		err = l.writer.failed
	}
	<-l.metaUse
	st.segments = *l.segments.Load()
	st.close()
	l.closeRetired()
	return err
}
