package admin

import (
	"container/list"
	"net/http"
	"sync"
	"time"
)

// slowAfter is how long an answer may be on its way while others wait for its place:
// those who ask are near, and read at once.
const slowAfter = time.Second

// turns are the places of requests that cost much: those that read the log, or the pages
// of metrics. Whoever comes when all are taken gets the place of an answer that is not
// read, so that slow readers keep nobody out; without one it is refused. A request that
// works is never cut off for another.
type turns struct {
	max int

	mu sync.Mutex
	in list.List // guarded by mu: of *turn, the oldest first
}

// turn is a place, and the answer that is written in it.
type turn struct {
	http.ResponseWriter
	all     *turns
	at      *list.Element // guarded by all.mu; nil when the place was left
	written time.Time     // guarded by all.mu: when the answer began; zero when it has not
}

// take returns a place, or nil. Its owner writes to it and leaves it.
func (t *turns) take(w http.ResponseWriter) *turn {
	t.mu.Lock()
	var slow *turn
	if t.in.Len() >= t.max {
		if slow = t.slowest(); slow == nil {
			t.mu.Unlock()
			return nil
		}
		t.drop(slow)
	}
	own := &turn{ResponseWriter: w, all: t}
	own.at = t.in.PushBack(own)
	t.mu.Unlock()
	if slow != nil { // its handler sees that; a server that cannot do it has the handler go on without a place
		_ = http.NewResponseController(slow.ResponseWriter).SetWriteDeadline(time.Unix(1, 0))
	}
	return own
}

// slowest returns the answer that has been on its way for longest, for too long. mu is held.
func (t *turns) slowest() (slow *turn) {
	for e := t.in.Front(); e != nil; e = e.Next() {
		w := e.Value.(*turn)
		if !w.written.IsZero() && time.Since(w.written) >= slowAfter && (slow == nil || w.written.Before(slow.written)) {
			slow = w
		}
	}
	return slow
}

// drop takes a place back. mu is held.
func (t *turns) drop(w *turn) {
	if w.at != nil {
		t.in.Remove(w.at)
		w.at = nil
	}
}

// leave gives the place back.
func (w *turn) leave() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.all.drop(w)
}

// Write implements http.ResponseWriter.
func (w *turn) Write(b []byte) (int, error) {
	w.all.mu.Lock()
	if w.written.IsZero() {
		w.written = time.Now()
	}
	w.all.mu.Unlock()
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find what is below.
func (w *turn) Unwrap() http.ResponseWriter { return w.ResponseWriter }
