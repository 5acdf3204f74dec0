package commitlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"runtime"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// idleMark is how long the log is idle before a mark frame shows the last write
// to have been durable. It bounds the time in which damage to that write cannot
// be told from a torn one; a mark costs one small write without a sync.
const idleMark = time.Second

// writer owns the end of the log. After Start only its goroutine touches it.
type writer struct {
	log     *Log
	segment *segment
	size    int64           // of the segment's file
	end     record.Position // next frame
	synced  record.Position // everything before is durable
	pending []*group        // written, not yet synced
	marked  bool            // nothing was written since the last mark
	repair  bool            // the file behind end may hold leftovers or lack space
	started bool            // the lineage start is written
	failed  error           // why the log stopped
	taken   []*Batch        // scratch

	lastBatches int           // batches that the last sync served
	lastSync    time.Duration // how long it took
}

// group is what one write carries.
type group struct {
	batches  []*Batch
	entries  []Entry
	buf      []byte
	start    record.Position
	end      record.Position
	buffered int // batches that asked to be told early
	err      error
}

func (w *writer) run() {
	defer close(w.log.notes)
	q := w.log.queue
	for {
		if !w.started && w.failed == nil {
			w.writeStart()
		}
		var more, closed bool
		if w.log.gated {
			w.hold()
		}
		w.gather()
		w.taken, more, closed = q.take(w.log.options.MaxBatchBytes, w.taken[:0])
		switch {
		case len(w.taken) > 0:
			w.handle(w.taken, more)
		case len(w.pending) > 0:
			w.sync()
		case closed:
			if w.failed == nil && w.synced != w.end {
				w.sync()
			}
			return
		default:
			w.wait()
		}
	}
}

// gatherMost and gatherYields bound how long the writer holds a write back for
// others to join; the count also where time stands still (in a synctest bubble).
const (
	gatherMost   = 200 * time.Microsecond
	gatherYields = 1000
)

// gather gives those whom the last sync woke a moment to come back with their
// next batch, at most a quarter of a sync. Without it publishers fall into two
// halves, each of which waits for the other's sync. It yields instead of
// sleeping, since a sleep may take longer than the sync itself. A lone publisher
// is never held back.
func (w *writer) gather() {
	if w.lastBatches < 2 || w.failed != nil {
		return
	}
	most := min(w.lastSync/4, gatherMost)
	begin := time.Now()
	for range gatherYields {
		n, _ := w.log.queue.waiting()
		if n == 0 || n >= w.lastBatches || time.Since(begin) >= most {
			return
		}
		runtime.Gosched()
	}
}

// wait sleeps until there is something to do.
func (w *writer) wait() {
	if w.rest() {
		return
	}
	if w.marked && w.started || w.failed != nil {
		<-w.log.queue.wake
		return
	}
	timer := time.NewTimer(idleMark)
	defer timer.Stop()
	select {
	case <-w.log.queue.wake:
	case <-timer.C:
		if w.started {
			w.mark()
		}
	}
}

// writeStart writes and syncs the lineage start. On a full disk it is tried
// again before anything else is written.
func (w *writer) writeStart() {
	b, err := w.log.startBatch()
	if err != nil { // only a group name beyond the format's limits can cause it
		w.stop(err)
		return
	}
	g := w.newGroup()
	if err := w.write(g, []*Batch{b}, b.size); err != nil {
		_ = w.fault(err) // nobody waits for this batch
		return
	}
	g.batches = g.batches[:0] // the batch is the log's own: nobody waits for it
	w.started = true
	w.sync()
}

// handle writes the batches as one group. more says that others wait behind.
func (w *writer) handle(batches []*Batch, more bool) {
	if w.failed == nil && w.log.gated {
		w.failed = w.log.gate.failure()
	}
	refusal := w.failed
	if refusal == nil {
		refusal = w.log.queue.refusing()
	}
	if refusal == nil && !w.started {
		refusal = ErrFull
	}
	g, size := w.newGroup(), int64(0)
	kept := batches[:0]
	for _, b := range batches {
		if refusal != nil && (w.failed != nil || !w.started || !b.Reserved) {
			g.batches = append(g.batches, b)
			continue
		}
		kept = append(kept, b)
		size += b.size
	}
	if len(g.batches) > 0 {
		w.reject(g, refusal)
		g = w.newGroup()
	}
	if len(kept) == 0 {
		return
	}
	if err := w.write(g, kept, size); err != nil {
		g.batches = append(g.batches[:0], kept...)
		w.reject(g, w.fault(err))
		return
	}
	if g.buffered > 0 {
		w.log.notes <- note{group: g, early: true}
	}
	// Buffered batches wait for nobody: let one sync serve several writes.
	if g.buffered < len(g.batches) || !more || int64(w.end-w.synced) >= w.log.options.MaxBatchBytes {
		w.sync()
	}
}

// reject sends batches that were not written back to their owners.
func (w *writer) reject(g *group, err error) {
	g.err, g.entries, g.buf = err, g.entries[:0], nil
	w.log.metrics.refuse(err)
	w.log.notes <- note{group: g}
}

// write places the batches behind the end and hands them to the operating
// system. After an error nothing of them counts.
func (w *writer) write(g *group, batches []*Batch, size int64) error {
	if err := w.reserve(size); err != nil {
		return err
	}
	w.build(g, batches, size)
	if _, err := w.segment.file.WriteAt(g.buf, int64(g.start-w.segment.base)); err != nil {
		w.repair = true
		return &OpError{Op: "write", Segment: w.segment.name, Err: err}
	}
	for i, n := 0, 0; i < len(batches); i++ {
		n += copy(batches[i].Entries, g.entries[n:])
	}
	w.end, w.marked = g.end, false
	w.pending = append(w.pending, g)
	if w.log.gated {
		w.log.tail.add(g.start, g.end, g.buf)
		w.publish()
	}
	return nil
}

// build encodes the batches into the group's own buffer, which later serves as
// cache.
func (w *writer) build(g *group, batches []*Batch, size int64) {
	g.batches = append(g.batches[:0], batches...)
	g.buf = make([]byte, size)
	g.start, g.end, g.buffered = w.end, w.end+record.Position(size), 0
	tag, off, known := uint32(w.log.lineage.ID), 0, w.known()
	for _, b := range batches {
		if b.Buffered {
			g.buffered++
		}
		for i := range b.Entries {
			e := &b.Entries[i]
			f := frame{
				pos:      w.end + record.Position(off),
				payload:  len(e.Envelope) + len(e.Record),
				envelope: len(e.Envelope),
				kind:     e.Kind,
				lineage:  tag,
				synced:   known,
			}
			payload := g.buf[off+frameLen : off+frameLen+f.payload]
			copy(payload[copy(payload, e.Envelope):], e.Record)
			if e.Kind == KindOwn {
				record.Stamp(payload, w.log.inc, w.log.lineage.Epoch, f.pos)
			}
			f.sum = crc32.Checksum(payload, castagnoli)
			f.put(g.buf[off:])
			g.entries = append(g.entries, f.entry(payload))
			off += f.size()
		}
	}
}

// sync makes everything written durable and passes it on as committed.
func (w *writer) sync() {
	begin := time.Now()
	if err := w.segment.file.Sync(); err != nil {
		w.stop(&OpError{Op: "sync", Segment: w.segment.name, Err: err})
		return
	}
	w.synced = w.end
	w.lastSync, w.lastBatches = time.Since(begin), 0
	w.log.metrics.synced(w.lastSync, w.pending)
	gated := w.log.gated
	for i, g := range w.pending {
		w.lastBatches += len(g.batches)
		if !gated {
			w.log.tail.add(g.start, g.end, g.buf)
			w.log.committed.Store(uint64(g.end))
		}
		w.log.notes <- note{group: g}
		w.pending[i] = nil
	}
	w.pending = w.pending[:0]
	if gated { // after the notes: who commits it finds them told
		w.log.gate.synced.Store(uint64(published(w.segment, w.synced)))
		w.log.gate.tell()
	}
}

// known is the position that a frame written now says to be durable: in a group
// with replicas, only what the group has committed.
func (w *writer) known() record.Position {
	if w.log.gated {
		return min(w.log.Committed(), w.synced)
	}
	return w.synced
}

// publish tells others of what was written.
func (w *writer) publish() {
	w.log.gate.end.Store(uint64(published(w.segment, w.end)))
	w.log.gate.tell()
}

// hold waits while too much is not committed: what waits at the gate is kept in
// memory, as what waits in the queue is.
func (w *writer) hold() {
	for w.failed == nil && int64(w.end-w.log.Committed()) > w.log.options.QueueBytes {
		if len(w.pending) > 0 {
			w.sync()
			continue
		}
		if q := w.log.queue; q.isClosed() || q.isStopped() {
			return
		}
		select {
		case <-w.log.gate.room:
		case <-w.log.queue.wake:
		}
	}
}

// mark writes a mark frame when there is room. It is not synced: it proves
// something only if it reaches the disk.
func (w *writer) mark() {
	if w.log.gated && w.log.Committed() < published(w.segment, w.synced) {
		return // a mark would prove too little: look again in a while
	}
	w.marked = true
	if w.failed != nil || w.repair || int64(w.end-w.segment.base)+frameLen > w.size {
		return
	}
	var b [frameLen]byte
	f := frame{pos: w.end, kind: kindMark, lineage: uint32(w.log.lineage.ID), synced: w.known()}
	f.put(b[:])
	if _, err := w.segment.file.WriteAt(b[:], int64(w.end-w.segment.base)); err != nil {
		w.repair = true
		_ = w.fault(&OpError{Op: "write", Segment: w.segment.name, Err: err})
		return
	}
	w.end += frameLen
	if w.log.gated {
		w.publish()
	}
}

// reserve makes room for size bytes at the end: in this segment or a new one.
func (w *writer) reserve(size int64) error {
	used := int64(w.end - w.segment.base)
	if w.repair {
		if err := w.repairEnd(used); err != nil {
			return &OpError{Op: "repair", Segment: w.segment.name, Err: err}
		}
	}
	switch {
	case used+size <= w.size:
		return nil
	case used == headerLen: // larger than any segment
		if err := w.segment.file.Preallocate(used + size); err != nil {
			return &OpError{Op: "allocate", Segment: w.segment.name, Err: err}
		}
		w.size = used + size
		return nil
	}
	return w.roll(size)
}

// repairEnd removes what a failed write may have left behind the end: it would
// look like entries to a later recovery.
func (w *writer) repairEnd(used int64) error {
	f := w.segment.file
	if err := f.Truncate(used); err != nil {
		return err
	}
	size := max(w.log.options.SegmentBytes, used)
	if err := f.Preallocate(size); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return errors.Join(errUnknown, err)
	}
	w.repair, w.size = false, size
	return nil
}

// errUnknown marks a failure after which nobody can tell what the disk holds:
// not even a full disk may be retried then.
var errUnknown = errors.New("outcome unknown")

// roll ends the segment and goes on in the spare one. Everything before a new
// segment is durable before it appears: recovery relies on it.
func (w *writer) roll(size int64) error {
	if w.synced != w.end {
		if w.sync(); w.failed != nil {
			return w.failed
		}
	}
	l := w.log
	f, err := w.spare()
	if err != nil {
		return err
	}
	fileSize := l.options.SegmentBytes
	if need := headerLen + size; need > fileSize {
		if err := f.Preallocate(need); err != nil {
			l.spares <- f
			return &OpError{Op: "allocate", Segment: spareName, Err: err}
		}
		fileSize = need
	}
	err = w.shift(f, fileSize)
	signal(l.used)
	return err
}

// shift goes on in a new segment, made of the file.
func (w *writer) shift(f disk.File, size int64) error {
	l := w.log
	s, err := newSegment(l.options.FS, l.options.Dir, f, l.inc, w.end)
	if err != nil {
		return err
	}
	// The rest of the old file is given back. Nothing depends on it.
	if err := w.segment.file.Truncate(int64(w.end - w.segment.base)); err != nil {
		l.options.Logger.Warn("a full segment could not be shortened",
			"segment", path.Join(l.options.Dir, w.segment.name), "err", err)
	}
	l.addSegment(s)
	w.segment, w.size = s, size
	w.end = s.first()
	w.synced = w.end
	return nil
}

// spare waits for the preparer's segment or for its report that there is none.
func (w *writer) spare() (disk.File, error) {
	for {
		select {
		case f := <-w.log.spares:
			return f, nil
		default:
		}
		if err := w.log.queue.refusing(); err != nil {
			return nil, err
		}
		select {
		case f := <-w.log.spares:
			return f, nil
		case <-w.log.missing:
		}
	}
}

// fault decides what a failed step means and returns the error for the batches
// concerned: a full disk refuses, anything else stops the log.
func (w *writer) fault(err error) error {
	if w.failed != nil {
		return w.failed
	}
	if errors.Is(err, ErrFull) {
		return err
	}
	if disk.IsFull(err) && !errors.Is(err, errUnknown) {
		err = fmt.Errorf("%w: %w", ErrFull, err)
		if w.log.queue.refuse(err) {
			w.log.options.Logger.Error("commit log refuses appends: no space for a write", "err", err)
		}
		signal(w.log.needed) // the preparer looks again each second
		return err
	}
	w.stop(err)
	return w.failed
}

// stop ends writing for good: what was not synced before has an unknown fate.
func (w *writer) stop(err error) {
	if w.failed != nil {
		return
	}
	if !errors.Is(err, ErrStopped) {
		err = fmt.Errorf("%w: %w", ErrStopped, err)
	}
	w.failed = err
	w.log.options.Logger.Error("commit log stopped: a write or sync failed", "err", err)
	w.log.queue.stop(w.failed)
	if w.log.gated {
		w.log.gate.fail(w.failed)
	}
	for i, g := range w.pending {
		w.reject(g, w.failed)
		w.pending[i] = nil
	}
	w.pending = w.pending[:0]
}

func (w *writer) newGroup() *group {
	select {
	case g := <-w.log.free:
		return g
	default:
		return new(group)
	}
}
