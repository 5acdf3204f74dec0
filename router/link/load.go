package link

import (
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/router/link/fec"
)

// maxExtraNumber is the greatest number of an extra connection in a greeting.
const maxExtraNumber = 255

// meter counts what sessions do on a connection. Sessions write it; the link's
// loop reads it with every sample.
type meter struct {
	period    atomic.Uint64 // number of the present sample
	busy      atomic.Int64  // sessions that sent records in it
	streams   atomic.Int64  // their streams, side streams included
	waited    atomic.Int64  // nanoseconds that writes took, since the start
	throttled atomic.Int64  // nanoseconds that frames waited for Limits.Rate, since the start
	out, in   atomic.Uint64 // bytes of frames, since the start
}

// sent counts bytes that a stream took, and how long that was.
func (m *meter) sent(n int, took time.Duration) {
	m.out.Add(uint64(n))
	m.waited.Add(int64(took))
}

func (m *meter) received(n int) { m.in.Add(uint64(n)) }

// seen counts a session with its streams once a sample; last is the session's.
func (m *meter) seen(last *uint64, streams int) {
	if now := m.period.Load() + 1; *last != now {
		*last = now
		m.busy.Add(1)
		m.streams.Add(int64(streams))
	}
}

// Bound is what keeps a link from carrying more.
type Bound uint8

// The bounds. They are judged from the sending end, twice a second.
const (
	BoundNone   Bound = iota // nothing: what sessions have to send is taken at once
	BoundCPU                 // the process has no processor left
	BoundWindow              // the windows of the sessions' streams over the round trip
	BoundPeer                // the peer does not read: its memory or its brokers are the limit
	BoundPath                // congestion control: loss, or the bandwidth of the path
	BoundRate                // Limits.Rate
)

// String returns the word that status and metrics use; "none" for the zero value.
func (b Bound) String() string {
	switch b {
	case BoundCPU:
		return "cpu"
	case BoundWindow:
		return "window"
	case BoundPeer:
		return "peer"
	case BoundPath:
		return "path"
	case BoundRate:
		return "rate"
	}
	return "none"
}

// Rates is what a link did of late: moving averages over about five seconds.
type Rates struct {
	Out, In float64       // goodput: bytes of frames a second
	Loss    float64       // part of the packets sent that were lost, 0 to 1
	Queue   time.Duration // by which round trips are longer than the least
	Busy    int           // sessions that sent records in the last sample
	Window  int64         // bytes that they may have on their way together: the windows of their streams
	Parity  float64       // parity packets for each packet of the stream to the node, which its links share
	Bound   Bound
}

// rateGain is the gain of the averages in Rates with a sample each 500 ms.
const rateGain = 0.2

// counts are the totals of a link at a sample.
type counts struct {
	waited, throttled time.Duration
	out, in           uint64
	wire              uint64 // sent, headers of UDP and IP included
	packets, lost     uint64
}

// sampler remembers what the totals were. Only the link's loop uses it.
type sampler struct {
	at     time.Time
	last   map[uint64]counts // by connection
	stream fec.Status        // of correction
	rates  Rates

	crowded uint64 // fec.Status.Crowded
}

// sample returns what this end has done since the last sample; false when there
// is no connection, or it was less than Timing.Probe ago.
func (l *link) sample(now time.Time) (load, bool) {
	p := &l.sampler
	if len(l.conns) == 0 {
		if p.at.IsZero() {
			return load{}, false
		}
		*p = sampler{}
		l.show(Rates{})
		return load{}, false
	}
	over := now.Sub(p.at)
	if !p.at.IsZero() && over < l.m.o.Timing.Probe {
		return load{}, false
	}
	first := p.at.IsZero()
	p.at = now
	s := load{over: over}
	var sum counts
	var rtts, cwnd float64
	carry := 0
	next := make(map[uint64]counts, len(l.conns))
	for id, c := range l.conns {
		st := c.qc.ConnectionStats()
		is := counts{
			waited: time.Duration(c.waited.Load()), throttled: time.Duration(c.throttled.Load()), out: c.out.Load(), in: c.in.Load(),
			packets: st.PacketsSent, lost: st.PacketsLost, wire: st.BytesSent + udpOverhead(c.qc.RemoteAddr())*st.PacketsSent,
		}
		next[id] = is
		was := p.last[id]
		sum.waited += is.waited - was.waited
		sum.throttled += is.throttled - was.throttled
		sum.wire += is.wire - was.wire
		sum.out, sum.in = sum.out+is.out-was.out, sum.in+is.in-was.in
		sum.packets += is.packets - was.packets
		sum.lost += less(is.lost, was.lost)
		c.period.Add(1)
		busy := int(c.busy.Swap(0))
		s.busy += busy
		s.window += c.streams.Swap(0) * int64(l.m.o.Limits.StreamWindow)
		if busy > 0 {
			carry++
			rtts += float64(st.SmoothedRTT)
			cwnd += float64(st.CongestionWindow)
		}
		if s.minRTT == 0 || st.MinRTT < s.minRTT {
			s.minRTT = st.MinRTT
		}
	}
	p.last = next
	parity := l.corrected(now)
	if first {
		return load{}, false
	}
	if l.budget != nil {
		l.budget.charge(now, float64(sum.wire)-float64(sum.out))
	}
	s.waited, s.throttled = sum.waited, sum.throttled
	s.rate = float64(sum.out) / over.Seconds()
	if sum.packets > 0 {
		s.loss = min(float64(sum.lost)/float64(sum.packets), 1)
	}
	if carry > 0 {
		s.rtt = time.Duration(rtts / float64(carry))
	} else if c := l.current.Load(); c != nil {
		s.rtt = time.Duration(c.rtt.Load())
	}
	s.cpu = l.m.o.CPU() >= noCPU
	s.crowded, s.queued = l.crowded()
	p.rates.add(s, float64(sum.in)/over.Seconds(), parity, l.bound(s, cwnd))
	l.show(p.rates)
	l.spread()
	return s, true
}

// less returns a - b, and 0 when the count has been taken back since.
func less(a, b uint64) uint64 {
	if a < b {
		return 0
	}
	return a - b
}

// noCPU is the part of the processors from which there is none left.
const noCPU = 0.9

// bound judges what a link is bound by, from its window in flight by Little's
// law: rate times round trip.
func (l *link) bound(s load, cwnd float64) Bound {
	flight := s.rate * s.rtt.Seconds()
	switch {
	case s.throttled >= s.over/pressedShare:
		return BoundRate
	case !s.pressed():
		return BoundNone
	case s.cpu:
		return BoundCPU
	case flight >= 0.75*float64(s.window):
		return BoundWindow // the peer's, whose windows are taken to be like this node's
	case flight < cwnd/4 && !s.jammed():
		return BoundPeer
	}
	return BoundPath
}

func (r *Rates) add(s load, in, parity float64, b Bound) {
	r.Out += (s.rate - r.Out) * rateGain
	r.In += (in - r.In) * rateGain
	r.Loss += (s.loss - r.Loss) * rateGain
	r.Parity += (parity - r.Parity) * rateGain
	r.Queue = max(s.rtt-s.minRTT, 0)
	r.Busy, r.Window, r.Bound = s.busy, s.window, b
}

// corrected returns how many parity packets the stream to the node got for each
// packet since the last sample, and charges what it added to the node's budget.
func (l *link) corrected(now time.Time) float64 {
	c := l.current.Load()
	if c == nil || c.lease == nil {
		return 0
	}
	st, was := c.lease.Status(), l.sampler.stream
	l.sampler.stream = st
	if l.budget != nil {
		l.budget.chargeParity(now, &st)
	}
	sent := less(st.Sent, was.Sent)
	if sent == 0 {
		return 0
	}
	return float64(less(st.ParitySent, was.ParitySent)) / float64(sent)
}

func (l *link) show(r Rates) {
	l.mu.Lock()
	l.status.Rates = r
	l.mu.Unlock()
}
