package fec

import "time"

// Constants of parity that is sent later than its block, so that what takes a run
// of packets does not take their parity as well.
const (
	leastRun  = 2  // packets lost in a row from which parity is put off
	mostRun   = 16 // of a longer run no more is believed
	leastLate = 4 * time.Millisecond
	mostLate  = 20 * time.Millisecond // blocks are forgotten by the receiver later than that
	lateSlack = 2 * time.Millisecond
	maxLate   = 8 // blocks that wait: as many as end in mostLate, and some
)

// putOff returns how many of so many parity packets of a block wait, and how long:
// what mends a run, until it has passed. What is left mends losses here and there at
// once. Only a sender with little to send does so; the blocks of others are longer
// than runs.
func (s *sender) putOff(packets, parity int) (later int, wait time.Duration) {
	later = min(s.control.forRun(s.sparse, packets), parity)
	if later == 0 {
		return 0, 0
	}
	apart := blockTimeSparse / time.Duration(packets)
	return later, min(max(time.Duration(s.control.run())*apart+lateSlack, leastLate), mostLate)
}

// late is parity that waits.
type late struct {
	due    time.Time
	size   int    // of a frame
	frames []byte // one after the other
}

// lateQueue keeps the parity of blocks in the order of their ends. It keeps its
// buffers.
type lateQueue struct {
	ring  [maxLate]late
	first int
	n     int
}

// push copies frames of one size; it reports false when there is no room.
func (q *lateQueue) push(due time.Time, frames [][]byte) bool {
	if q.n == maxLate {
		return false
	}
	l := &q.ring[(q.first+q.n)%maxLate]
	l.due, l.size, l.frames = due, len(frames[0]), l.frames[:0]
	for _, f := range frames {
		l.frames = append(l.frames, f...)
	}
	q.n++
	return true
}

// head returns what waits longest; nil = nothing waits.
func (q *lateQueue) head() *late {
	if q.n == 0 {
		return nil
	}
	return &q.ring[q.first]
}

func (q *lateQueue) pop() {
	q.first = (q.first + 1) % maxLate
	q.n--
}

// sendLate sends what is due, and has what is not sent later. sendMu is held.
func (p *peer) sendLate(now time.Time) {
	for l := p.late.head(); l != nil; l = p.late.head() {
		if wait := l.due.Sub(now); wait > 0 {
			p.arm(&p.lateAlarm, wait, p.lateDue)
			return
		}
		if !p.sender.control.congested {
			p.writeParity(l.frames, l.size)
		}
		p.late.pop()
	}
}

// lateDue is what the alarm calls.
func (p *peer) lateDue() {
	defer p.layer.timers.Done()
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	p.lateAlarm.armed = false
	if p.live.Load() && p.sender != nil {
		p.sendLate(time.Now())
	}
}
