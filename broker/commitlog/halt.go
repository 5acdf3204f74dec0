package commitlog

import (
	"context"
	"errors"
)

// ErrHalted: the log takes nothing more, for it is about to be handed over.
var ErrHalted = errors.New("commitlog: handed over")

// Halt makes a master's log take nothing more, reserved batches and marks included, and
// waits until what was taken before is durable here. From then on End stays where it is,
// while the log is shipped, committed and delivered as before: a replica can get level
// with it for good. A log that was halted takes nothing until it is opened again.
//
// Errors: the context's, when what was taken is not written yet; then it is so later.
func (l *Log) Halt(ctx context.Context) error {
	l.queue.halt()
	select {
	case <-l.still:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// halt refuses everything for good.
func (q *queue) halt() {
	q.change(func() bool {
		q.halted = true
		return true
	})
}

// quiet reports whether nothing waits, and nothing ever will.
func (q *queue) quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.halted && q.head == len(q.batches)
}

// rest sleeps when the log was halted and everything is written. It reports whether that
// was so. Only the writer's goroutine calls it, with nothing pending.
func (w *writer) rest() bool {
	if !w.log.queue.quiet() {
		return false
	}
	w.log.stillOnce.Do(func() { close(w.log.still) })
	<-w.log.queue.wake
	return true
}
