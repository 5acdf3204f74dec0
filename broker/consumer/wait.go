package consumer

import "slices"

// Waiter is a place in the line of those who wait for messages.
type Waiter struct {
	d      *Dispatcher
	c      chan struct{}
	client *liteClient // nil unless clients choose
}

// Wait joins the line. When there is something to take, the first in the line
// is woken, and leaves it; a Take that leaves something behind wakes the next.
// So one message wakes one waiter, and a thousand wake as many as they feed.
// Call Stop when done, woken or not.
func (d *Dispatcher) Wait() *Waiter { return d.WaitFor("") }

// pass chooses whom to wake; the caller sends to it after unlocking. While one
// is woken and has not taken yet, nobody else is.
func (d *Dispatcher) pass() *Waiter {
	if d.baton != nil || len(d.line) == 0 || !d.available() {
		return nil
	}
	d.baton = d.line[0]
	d.line = slices.Delete(d.line, 0, 1)
	return d.baton
}

// C receives one value when it is this waiter's turn to Take.
func (w *Waiter) C() <-chan struct{} { return w.c }

// Stop leaves the line and passes the wake-up on if it was not used. It may be
// called again.
func (w *Waiter) Stop() {
	d := w.d
	d.mu.Lock()
	defer d.unlock()
	if w.client != nil {
		d.stopChosen(w)
		return
	}
	if d.baton == w {
		d.baton = nil
		return
	}
	if i := slices.Index(d.line, w); i >= 0 {
		d.line = slices.Delete(d.line, i, i+1)
	}
}
