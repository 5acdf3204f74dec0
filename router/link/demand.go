package link

import (
	"math/bits"
	"time"
)

// load is what one sample of a link says about what this end sends on it.
type load struct {
	over      time.Duration // length of the sample
	busy      int           // sessions that sent something
	window    int64         // of these sessions' streams together, bytes
	waited    time.Duration // until connections took their bytes, all sessions together
	throttled time.Duration // likewise, until Limits.Rate allowed a frame
	rate      float64       // payload bytes a second
	loss      float64       // part of the packets sent that were lost, 0 to 1
	rtt       time.Duration // smoothed, mean of the connections that carry; 0 = not measured
	minRTT    time.Duration // least of them
	cpu       bool          // the process has no processor left

	crowded bool // the peer lost packets for want of room on the way or at its socket
	queued  bool // the peer sees a queue on the way, or its socket overflows; without correction false
}

// The thresholds of demand. They are choices, not measurements of others: see
// deploy/notes, "a bulk link grows while growing pays".
const (
	pressedShare  = 2                     // one session that waits for 1/pressedShare of the time has a backlog
	pressedFor    = 2                     // samples in a row before the link grows
	missedFor     = 8                     // samples in a row, of those with a backlog and room, with too little after connections were given back
	jammedFor     = 4                     // samples in a row before it shrinks
	jamLoss       = 0.001                 // loss from which a grown round trip is a full queue
	jamQueue      = 20 * time.Millisecond // least growth of the round trip that is a queue; else half of the least round trip
	paysFactor    = 1.15                  // goodput after growing over goodput before, below which it did not pay
	judgeAfter    = 2 * time.Second       // and judgeTrips round trips more: dial, move, slow start
	judgeTrips    = 10                    //
	easyFor       = 10 * time.Second      // without need before the link shrinks
	firstRest     = 15 * time.Second      // before growing is tried again after it did not pay or the path was full
	longestRest   = 5 * time.Minute       // what firstRest doubles up to
	crowdedFor    = 3                     // samples with losses for want of room before it shrinks
	crowdedWithin = 10 * time.Second      // from one such sample to the next
	crowdedRest   = 3 * time.Second       // after a single one before it grows
	standsFor     = 4                     // samples with a queue, less those without, from which it stands
	standsMost    = 10                    // what they are counted up to
	standsWithin  = time.Minute           // crowdedWithin while a queue stands
	smoothing     = 0.5                   // gain of the moving average of goodput
	maxDemandBits = bits.UintSize         // levels of demand.carried
)

// pressed reports whether sessions have more to send than is taken.
func (l load) pressed() bool { return l.busy > 0 && l.waited >= l.over/pressedShare }

// jammed reports whether the path shows a queue that overflows: then more
// connections take from others what this link has not got to have.
func (l load) jammed() bool {
	return l.loss >= jamLoss && l.minRTT > 0 && l.rtt-l.minRTT >= max(jamQueue, l.minRTT/2)
}

// demand decides how many connections the sessions of a link shall have. It is
// pure: samples and time in, a number out. It climbs: twice as many while
// sessions wait, back again when goodput did not follow.
type demand struct {
	want    int     // at least 1
	apart   bool    // one is enough, but keep it beside the link's own; see fall
	rate    float64 // goodput, moving average
	last    float64 // goodput of the sample before this one and this one, the lesser
	prior   float64 // goodput of the last sample
	pressed int
	jammed  int
	crowds  int                    // samples with losses for want of room
	crowdAt time.Time              // the last one
	queued  int                    // samples with a queue, less those without; 0 to standsMost
	easy    time.Time              // since when less would do; zero = it would not
	trial   time.Time              // when it grew; zero = that is judged
	from    int                    // the number before it grew
	rest    time.Time              // no growth before
	more    float64                // goodput before the last connections were given back for not paying; 0 = they were not
	misses  int                    // samples in which less goes than went with them
	hold    time.Duration          // how long the next rest is
	carried [maxDemandBits]float64 // goodput of about 2^i connections when they did not suffice
}

func newDemand() demand { return demand{want: 1, hold: firstRest} }

func level(n int) int { return bits.Len(uint(n)) - 1 }

// extra returns how many connections sessions shall have beside the link's own; 0 =
// they share that.
func (d *demand) extra() int {
	if d.want > 1 || d.apart {
		return d.want
	}
	return 0
}

// sample takes a sample; most bounds what is wanted.
func (d *demand) sample(now time.Time, s load, most int) {
	if d.rate == 0 {
		d.rate = s.rate
	}
	d.rate += (s.rate - d.rate) * smoothing
	d.last, d.prior = min(s.rate, d.prior), s.rate
	d.count(now, s)
	d.want = max(min(d.want, most), 1)
	d.apart = d.apart && most > 1
	switch {
	case d.jammed >= jammedFor || d.crowds >= crowdedFor:
		d.jammed, d.crowds = 0, 0
		d.fall(now, d.want/2)
	case !d.trial.IsZero() && d.pressed == 0:
		d.trial = time.Time{} // what there was to send has gone: nothing to judge
	case !d.trial.IsZero():
		d.judge(now, s)
	case d.pressed >= pressedFor && !s.cpu && !s.jammed() && !d.full(now) && (!now.Before(d.rest) || d.misjudged()):
		d.grow(now, min(most, s.busy))
	}
	d.relax(now, s)
}

// full reports whether the path has no room: more connections would fill its queue,
// and take from others. A single overflow says little once it is over: a connection
// that is young shoots over what the path holds, and a processor that was away for a
// moment leaves sockets full.
func (d *demand) full(now time.Time) bool {
	return d.queued > 0 || d.crowds > 1 || d.crowds == 1 && now.Sub(d.crowdAt) < crowdedRest
}

func (d *demand) count(now time.Time, s load) {
	if s.queued {
		d.queued = min(d.queued+1, standsMost)
	} else {
		d.queued = max(d.queued-1, 0)
	}
	// Connections that share a full path overflow its queue once in many seconds,
	// which fewer of them would do more seldom yet. Where that takes minutes the
	// path is so large that they are needed to use it.
	within := crowdedWithin
	if d.queued >= standsFor {
		within = standsWithin
	}
	if now.Sub(d.crowdAt) > within {
		d.crowds = 0
	}
	if s.crowded {
		d.crowds++
		d.crowdAt = now
	}
	d.pressed++
	if !s.pressed() {
		d.pressed = 0
	}
	d.jammed++
	if !s.jammed() {
		d.jammed = 0
	}
}

func (d *demand) grow(now time.Time, most int) {
	if d.want >= most {
		return
	}
	// The lesser of the two: a connection that is young shoots over what it can
	// hold, and one lost packet halves what it sends for some round trips.
	d.carried[level(d.want)] = min(d.rate, d.last)
	d.trial, d.from = now, d.want
	d.more, d.misses = 0, 0
	d.want, d.apart = min(2*d.want, most), true
}

// judge looks whether growing has paid: at the end of the trial, or at any time in
// as long again.
func (d *demand) judge(now time.Time, s load) {
	trial := judgeAfter + judgeTrips*s.rtt
	age := now.Sub(d.trial)
	switch {
	case age < trial:
	case d.rate >= paysFactor*d.carried[level(d.from)]:
		d.trial, d.hold = time.Time{}, firstRest
	case age >= 2*trial:
		more := d.rate
		d.fall(now, d.from)
		d.more = more
	}
}

// misjudged reports whether connections were given back that have paid: without them
// much less goes. What few of them carried was measured while they were young, and
// shot over what they can hold.
func (d *demand) misjudged() bool {
	if d.more == 0 {
		return false
	}
	d.misses++
	if paysFactor*d.rate > d.more {
		d.misses = 0
	}
	return d.misses >= missedFor
}

// fall lowers the number and forbids growth for a while, longer each time. The last
// one stays beside the link's own while it is needed: its window has grown with the
// path, and that of the link's own has not since it carried sessions.
func (d *demand) fall(now time.Time, to int) {
	d.want = max(min(d.want, to), 1)
	d.trial = time.Time{}
	d.more, d.misses = 0, 0
	d.rest = now.Add(d.hold)
	d.hold = min(2*d.hold, longestRest)
}

// relax gives connections back that are not needed: there are fewer sessions
// than they, or half of them carried twice as much before they did not suffice. Of
// one, the half is the link's own.
func (d *demand) relax(now time.Time, s load) {
	fewer := d.want / 2
	if d.extra() == 0 || d.pressed > 0 || s.busy > fewer && 2*d.rate > d.carried[level(max(fewer, 1))] {
		d.easy = time.Time{}
		return
	}
	if d.easy.IsZero() {
		d.easy = now
	}
	if now.Sub(d.easy) < easyFor {
		return
	}
	d.easy = time.Time{}
	d.apart = fewer > 0
	d.want = max(fewer, 1)
}
