package commitlog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mqrouter/mqrouter/replication/record"
)

// gate stands between what is durable here and what counts, in the log of a group
// with replicas. A log that stands alone has none of it on its way.
type gate struct {
	end    atomic.Uint64 // of what is written, as others see it; see published
	synced atomic.Uint64 // of what is durable here, likewise
	acked  atomic.Uint64 // of what is durable at as many members as a quorum asks for
	told   atomic.Uint64 // of what was delivered

	moved chan struct{} // capacity 1; the deliverer looks again
	room  chan struct{} // capacity 1; the writer looks again
	quit  chan struct{} // closed when no further note comes, since there is no writer

	mu       sync.Mutex
	watchers map[chan<- struct{}]int // guarded by mu; times registered
	failed   error                   // guarded by mu; why the log has stopped
	retain   record.Position         // guarded by mu; see Log.Retain
}

func newGate() gate {
	return gate{
		moved: make(chan struct{}, 1), room: make(chan struct{}, 1), quit: make(chan struct{}),
		watchers: map[chan<- struct{}]int{}, retain: ^record.Position(0),
	}
}

// raise moves a position up; false when it was there already.
func raise(a *atomic.Uint64, p record.Position) bool {
	for {
		old := a.Load()
		if uint64(p) <= old {
			return false
		}
		if a.CompareAndSwap(old, uint64(p)) {
			return true
		}
	}
}

// tell signals everybody who watches.
func (g *gate) tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// fail notes why the log has stopped; the first reason counts.
func (g *gate) fail(err error) {
	g.mu.Lock()
	if g.failed == nil {
		g.failed = err
	}
	g.mu.Unlock()
	g.tell()
	signal(g.moved)
	signal(g.room)
}

func (g *gate) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// published returns an end of the log as others see it: behind a segment's last
// frame, also when a new segment stands there that has none yet.
func published(s *segment, end record.Position) record.Position {
	if end == s.first() {
		return s.base
	}
	return end
}

// End returns the end of what is written: where the next frame goes, or the
// segment that it begins. It may be ahead of what is durable.
func (l *Log) End() record.Position {
	if !l.gated {
		return l.Committed()
	}
	return record.Position(l.gate.end.Load())
}

// Synced returns the end of what is durable here.
func (l *Log) Synced() record.Position {
	if !l.gated {
		return l.Committed()
	}
	return record.Position(l.gate.synced.Load())
}

// Commit says that the group has committed everything before p, an end of the log.
// A position that is not above the last one, or not durable here, changes nothing
// beyond what is. Deliver and Done follow. It does not block.
func (l *Log) Commit(p record.Position) {
	if !l.gated || !raise(&l.committed, min(p, l.Synced())) {
		return
	}
	signal(l.gate.moved)
	signal(l.gate.room)
	l.gate.tell()
}

// Acked says that everything before p is durable at as many members as a quorum
// asks for. It releases batches with AckQuorum, and does not block.
func (l *Log) Acked(p record.Position) {
	if l.gated && raise(&l.gate.acked, min(p, l.Synced())) {
		signal(l.gate.moved)
	}
}

// Notify signals c, without waiting, each time End, Synced or Committed has moved
// and when the log has stopped, until cancel is called. c has capacity 1. A signal
// follows the move that it tells of. A log that stands alone signals nothing.
func (l *Log) Notify(c chan<- struct{}) (cancel func()) {
	g := &l.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watchers[c]++
	var once sync.Once
	return func() {
		once.Do(func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.watchers[c]--; g.watchers[c] == 0 {
				delete(g.watchers, c)
			}
		})
	}
}

// Retain asks Trim to leave what stands at or above p, which a replica has to read;
// the greatest position asks for nothing. When the disk is full it is not heeded.
func (l *Log) Retain(p record.Position) {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	l.gate.retain = p
}

func (g *gate) retained() record.Position {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.retain
}

// Err returns why the log takes nothing any more until it is opened again, or nil.
// A full disk is no such reason.
func (l *Log) Err() error { return l.gate.failure() }

// Depose stops a master's log for good: nothing that was not committed gets a Done
// without an error any more, and nothing is taken. For a master that may no longer
// be one. It does not block, and err is the cause of the ErrStopped that follows.
func (l *Log) Depose(err error) {
	err = fmt.Errorf("%w: %w", ErrStopped, err)
	l.queue.stop(err)
	l.gate.fail(err)
}

// gatedDelivery calls Deliver and Done as the group commits. Only its goroutine
// touches it.
type gatedDelivery struct {
	log     *Log
	at      record.Position // everything before was delivered
	waiting []*group        // durable here, not yet committed; ascending
	quorum  int             // of these: so many were looked through for AckQuorum
	stopped bool            // nothing more is delivered
}

// deliverGated is deliver for the log of a group with replicas.
func (l *Log) deliverGated(from record.Position) {
	d := &gatedDelivery{log: l, at: from}
	notes, quit := l.notes, l.gate.quit
	for notes != nil {
		select {
		case n, ok := <-notes:
			if !ok {
				notes = nil
				break
			}
			d.take(n)
		case <-l.gate.moved:
		case <-quit: // there is no writer that would close notes
			notes = nil
		}
		d.release()
	}
	err := l.gate.failure()
	if err == nil {
		err = fmt.Errorf("%w: closed before it was committed", ErrStopped)
	}
	d.reject(err)
}

// take notes what the writer tells.
func (d *gatedDelivery) take(n note) {
	g := n.group
	switch {
	case n.early:
		for _, b := range g.batches {
			if b.Buffered {
				b.buffered = true
				done(b, nil)
			}
		}
	case g.err != nil:
		for _, b := range g.batches {
			if !b.buffered {
				done(b, g.err)
			}
		}
		d.log.recycle(g)
	default:
		for _, b := range g.batches {
			if b.Ack == AckSynced && !b.buffered {
				b.buffered = true
				done(b, nil)
			}
		}
		d.waiting = append(d.waiting, g)
	}
}

// release delivers what is committed. What the writer has told until then is taken
// first: a group's note comes before the position that lets others commit it.
func (d *gatedDelivery) release() {
	committed := d.log.Committed()
	for more := true; more; {
		select {
		case n, ok := <-d.log.notes:
			if more = ok; ok {
				d.take(n)
			}
		default:
			more = false
		}
	}
	if err := d.log.gate.failure(); err != nil && len(d.waiting) > 0 && d.log.deposed() {
		d.reject(err)
		return
	}
	d.tellQuorum(record.Position(d.log.gate.acked.Load()))
	n := 0
	for _, g := range d.waiting {
		if g.end > committed || !d.scan(g.start) {
			break
		}
		c := Committed{Entries: g.entries, Batches: g.batches, End: g.end}
		d.log.options.Deliver(&c)
		d.reached(g.end)
		for _, b := range g.batches {
			if !b.buffered {
				done(b, nil)
			}
		}
		d.log.recycle(g)
		n++
	}
	rest := copy(d.waiting, d.waiting[n:])
	clear(d.waiting[rest:])
	d.waiting, d.quorum = d.waiting[:rest], max(d.quorum-n, 0)
	if rest > 0 {
		committed = min(committed, d.waiting[0].start)
	}
	d.scan(committed)
}

// tellQuorum tells the batches that a quorum is enough for.
func (d *gatedDelivery) tellQuorum(acked record.Position) {
	for d.quorum < len(d.waiting) && d.waiting[d.quorum].end <= acked {
		for _, b := range d.waiting[d.quorum].batches {
			if b.Ack == AckQuorum && !b.buffered {
				b.buffered = true
				done(b, nil)
			}
		}
		d.quorum++
	}
}

// scan delivers from the log what no group of the writer holds: what a master has
// written, and before Promote. It returns false when the log cannot be read.
func (d *gatedDelivery) scan(to record.Position) bool {
	l := d.log
	for d.at < to && !d.stopped {
		stretch := l.tail.stretch(d.at, to)
		if stretch.Frames == nil {
			var err error
			if stretch, err = l.readRaw(context.Background(), d.at, to, readAhead, nil); err == nil && len(stretch.Frames) == 0 {
				if d.at+headerLen == to { // a group begins behind the header of its segment
					break
				}
				err = &CorruptError{Position: d.at, What: noFrameHere}
			}
			if err != nil {
				d.stopped = true
				l.options.Logger.Error("commit log stopped: what is committed cannot be read", "position", uint64(d.at), "err", err)
				l.Depose(err)
				return false
			}
		}
		c := Committed{End: stretch.Next}
		pos := stretch.Next - record.Position(len(stretch.Frames))
		for b := stretch.Frames; len(b) > 0; {
			f, ok := parseFrame(b, pos)
			if !ok {
				break // they were checked when they were read or written
			}
			if f.kind != kindMark {
				c.Entries = append(c.Entries, f.entry(b[frameLen:]))
			}
			b, pos = b[f.size():], pos+record.Position(f.size())
		}
		if len(c.Entries) > 0 {
			l.options.Deliver(&c)
		}
		d.reached(stretch.Next)
	}
	return !d.stopped
}

// reached notes up to where everything was delivered.
func (d *gatedDelivery) reached(p record.Position) {
	d.at = p
	d.log.gate.told.Store(uint64(p))
}

// readAhead is how many bytes of the log are delivered at once.
const readAhead = 256 << 10

// reject tells the owners of what was not committed.
func (d *gatedDelivery) reject(err error) {
	for i, g := range d.waiting {
		for _, b := range g.batches {
			if !b.buffered {
				done(b, err)
			}
		}
		d.waiting[i] = nil
	}
	d.waiting, d.quorum = d.waiting[:0], 0
}

// deposed reports whether Depose was called, or the log cannot be read.
func (l *Log) deposed() bool { return l.queue.isStopped() }
