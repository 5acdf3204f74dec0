package rocketmq

import (
	"sync/atomic"
	"time"
)

// A call with wrong credentials costs about as much here as it costs its client, most of
// it for gRPC to read it and to write the answer. So what bounds the cost is that calls
// are not read: a connection that fails beyond what is held rests, and meanwhile its
// client fills its own buffers. Who it is does not matter, only that nobody who is known
// has called over it.
const (
	// maxRest bounds a rest: a client whose credentials are set right goes on after it.
	maxRest = 30 * time.Second
	// maxFellowRest is maxRest for the connection over which another member passes a
	// client on: the member takes one that is silent for longer for dead.
	maxFellowRest = 10 * time.Second
	// restingRead is what is read at one time from a connection that rests in between:
	// some calls, which take 60 bytes when they are like the ones before; bytes.
	restingRead = 1 << 10
	// maxResting is how many connections of one address may rest, or have: of one that
	// rests it is not seen that its client has closed it, so one more is closed here.
	maxResting = 256
	// restStep is how often it is seen that a rest has ended early.
	restStep = time.Second
)

// rest has nothing be read from the connection until its address, s, has failed less,
// unless somebody who is known has called over it. It does not block.
func (l *link) rest(s *suspect) {
	if l.called.Load() != 0 {
		return
	}
	if !l.mayRest(&s.resting) {
		l.shut()
		return
	}
	r := s.rests.Reserve()
	d := r.Delay()
	most := maxRest
	if l.fellow {
		most = maxFellowRest
	}
	if d > most {
		r.Cancel() // or the debt would grow without bound
		d = most
	}
	until := int64(time.Since(l.opened) + max(d, 1))
	for {
		was := l.rests.Load()
		if was >= until || l.rests.CompareAndSwap(was, until) {
			return
		}
	}
}

// mayRest counts the connection among those of its address that rest, until it is closed;
// false when there are too many.
func (l *link) mayRest(resting *atomic.Int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.resting != nil || l.closed {
		return true
	}
	if resting.Add(1) > maxResting {
		resting.Add(-1)
		return false
	}
	l.resting = resting
	return true
}

// pause blocks while the connection rests, at most until gone is closed, and returns the
// part of p that may be read into.
func (l *link) pause(p []byte, gone <-chan struct{}) []byte {
	if l.rests.Load() == 0 {
		return p
	}
	for l.called.Load() == 0 {
		d := time.Duration(l.rests.Load()) - time.Since(l.opened)
		if d <= 0 {
			return p[:min(len(p), restingRead)]
		}
		timer := time.NewTimer(min(d, restStep))
		select {
		case <-timer.C:
		case <-gone:
			timer.Stop()
			return p
		}
	}
	return p
}
