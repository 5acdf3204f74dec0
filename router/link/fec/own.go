package fec

import (
	"math"
	"time"
)

// Constants of losses that parity is no answer to.
const (
	// strain is how long an end whose socket has overflowed counts as congested: it
	// reads too slowly, and more packets would make that worse.
	strain = 200 * time.Millisecond
	// ownFor is how long packets that a socket dropped explain losses that are
	// reported later: a packet counts as lost two reports after it did not come.
	ownFor = time.Second

	// uselessLosses and uselessShare tell parity that does not repair: of so many
	// losses while parity was sent fewer than this share were repaired. Losses that
	// a block can repair at all are repaired for the most part.
	uselessLosses = 30
	uselessShare  = 1.0 / 8
	usefulShare   = 1.0 / 2
	// restFirst and restMost bound how long a sender goes without parity then. It
	// doubles while parity repairs nothing.
	restFirst = 5 * time.Second
	restMost  = 5 * time.Minute
)

// explained is what losses have an explanation that is not the path: packets that
// the receiver's own socket dropped. It is pure.
type explained struct {
	last uint32 // as reported
	open float64
	at   time.Time
}

// take returns how many of the reported losses the path has caused.
func (e *explained) take(now time.Time, own uint32, losses float64) float64 {
	if n := int32(own - e.last); n > 0 {
		e.open += float64(n)
		e.at = now
	}
	e.last = own
	if now.Sub(e.at) > ownFor {
		e.open = 0
	}
	mine := min(e.open, losses)
	e.open -= mine
	return losses - mine
}

// worth tells whether parity repairs what is lost. It is pure.
type worth struct {
	parity   int // packets since the report before
	sums     struct{ losses, repaired float64 }
	restTill time.Time
	rest     time.Duration // the next one
}

// add takes what a report says of the time in which parity was sent.
func (w *worth) add(now time.Time, elapsed time.Duration, losses, repaired float64) {
	if w.parity == 0 {
		return
	}
	w.parity = 0
	keep := math.Exp(-elapsed.Seconds() / restFirst.Seconds())
	w.sums.losses = w.sums.losses*keep + losses
	w.sums.repaired = w.sums.repaired*keep + repaired
	switch s := &w.sums; {
	case s.losses < uselessLosses:
	case s.repaired < s.losses*uselessShare:
		w.rest = min(max(2*w.rest, restFirst), restMost)
		w.restTill = now.Add(w.rest)
		w.sums.losses, w.sums.repaired = 0, 0
	case s.repaired >= s.losses*usefulShare:
		w.rest = 0
	}
}

// rests reports whether no parity is sent for now.
func (w *worth) rests(now time.Time) bool { return now.Before(w.restTill) }
