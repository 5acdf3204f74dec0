package commitlog

import (
	"context"
	"sync"
)

// queue holds the batches that wait for the writer. It is bounded in bytes:
// push blocks while it is full, so that publishers feel a slow disk. A batch
// larger than the bound is let in alone.
type queue struct {
	limit int64         // bytes
	wake  chan struct{} // capacity 1; signalled when the writer has something to see

	mu      sync.Mutex
	batches []*Batch      // guarded by mu; waiting from head on
	head    int           // guarded by mu
	bytes   int64         // guarded by mu; of the waiting batches
	started bool          // guarded by mu
	closed  bool          // guarded by mu
	refusal error         // guarded by mu; why all but reserved batches are refused
	stopped error         // guarded by mu; why every batch is refused for good
	halted  bool          // guarded by mu; see Log.Halt
	waits   uint64        // guarded by mu; pushes that found it full
	room    chan struct{} // guarded by mu; closed when push should look again; nil when none waits
}

func newQueue(limit int64) *queue {
	return &queue{limit: limit, wake: make(chan struct{}, 1)}
}

// state returns why a batch is refused now. mu is held.
func (q *queue) state(reserved bool) error {
	switch {
	case q.closed:
		return ErrClosed
	case q.stopped != nil:
		return q.stopped
	case !q.started:
		return ErrNotStarted
	case q.halted:
		return ErrHalted
	case q.refusal != nil && !reserved:
		return q.refusal
	}
	return nil
}

func (q *queue) push(ctx context.Context, b *Batch) error {
	for first := true; ; first = false {
		q.mu.Lock()
		if err := q.state(b.Reserved); err != nil {
			q.mu.Unlock()
			return err
		}
		if q.head == len(q.batches) || q.bytes+b.size <= q.limit {
			q.batches = append(q.batches, b)
			q.bytes += b.size
			q.mu.Unlock()
			signal(q.wake)
			return nil
		}
		if first {
			q.waits++
		}
		if q.room == nil {
			q.room = make(chan struct{})
		}
		room := q.room
		q.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take appends waiting batches to dst, up to max bytes but at least one. more
// says that others are still waiting, closed that no further one will come.
func (q *queue) take(max int64, dst []*Batch) (taken []*Batch, more, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := int64(0)
	for q.head < len(q.batches) {
		b := q.batches[q.head]
		if size > 0 && size+b.size > max {
			break
		}
		dst = append(dst, b)
		q.batches[q.head] = nil
		q.head++
		size += b.size
	}
	q.bytes -= size
	if q.head == len(q.batches) {
		q.batches, q.head = q.batches[:0], 0
	} else if q.head > len(q.batches)/2 {
		n := copy(q.batches, q.batches[q.head:])
		clear(q.batches[n:])
		q.batches, q.head = q.batches[:n], 0
	}
	q.lookAgain()
	return dst, q.head < len(q.batches), q.closed
}

// lookAgain lets blocked pushes look again. mu is held.
func (q *queue) lookAgain() {
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// change alters the state under the lock and wakes everybody when fn says so.
func (q *queue) change(fn func() (wake bool)) {
	q.mu.Lock()
	wake := fn()
	q.lookAgain()
	q.mu.Unlock()
	if wake {
		signal(q.wake)
	}
}

// start lets batches in; false when the queue was started or closed before.
func (q *queue) start() (ok bool) {
	q.change(func() bool {
		ok = !q.started && !q.closed
		q.started = true
		return true
	})
	return ok
}

func (q *queue) close() { q.change(func() bool { q.closed = true; return true }) }

// refuse sets or, with nil, clears why all but reserved batches are refused.
// The writer is woken only when it is cleared: it sets it itself, and would
// wake itself for ever.
func (q *queue) refuse(err error) (changed bool) {
	q.change(func() bool {
		changed = (q.refusal == nil) != (err == nil)
		q.refusal = err
		return err == nil
	})
	return changed
}

func (q *queue) refusing() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refusal
}

// stop refuses everything for good.
func (q *queue) stop(err error) { q.change(func() bool { q.stopped = err; return true }) }

// writable returns why a publish would be refused now.
func (q *queue) writable() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state(false)
}

func (q *queue) isStarted() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.started
}

// isStopped reports whether everything is refused for good.
func (q *queue) isStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopped != nil
}

// isClosed reports whether close was called.
func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// waiting returns how many batches and bytes wait.
func (q *queue) waiting() (batches int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.batches) - q.head, q.bytes
}

// signal puts a token into a channel of capacity 1 unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
