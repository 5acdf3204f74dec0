package fec

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/router/link/datagram"
)

// peer is the stream of one node, in both directions.
type peer struct {
	layer *Layer
	node  string
	own   uint32 // the tag of frames to this node

	// Guarded by layer.mu.
	leases int
	addrs  map[netip.AddrPort]int // leases for each address
	alias  netip.AddrPort         // an address that it has moved to

	live  atomic.Bool            // frames are sent
	inbox atomic.Pointer[report] // the newest report, until sendMu's holder has seen it

	sendMu    sync.Mutex // held while a datagram is being written, so that they leave in order
	sender    *sender    // guarded by sendMu; nil before enable
	out       []byte     // guarded by sendMu
	oob       []byte     // guarded by sendMu; of the datagram being written
	block     alarm      // guarded by sendMu; closes the open block
	late      lateQueue  // guarded by sendMu
	lateAlarm alarm      // guarded by sendMu
	to        net.Addr   // guarded by sendMu; where the last packet went
	last      []byte     // guarded by sendMu; control messages of a packet before, for parity
	budget    pacer      // guarded by sendMu

	recvMu   sync.Mutex
	receiver *receiver      // guarded by recvMu
	from     netip.AddrPort // guarded by recvMu; of the last frame
	withheld uint64         // guarded by recvMu; repaired packets that QUIC was not given
}

func newPeer(l *Layer, node string, own uint32) *peer {
	return &peer{layer: l, node: node, own: own, addrs: make(map[netip.AddrPort]int),
		receiver: newReceiver(l.o.Queue), budget: pacer{rate: l.o.Rate}}
}

// enable begins to send with the tag.
func (p *peer) enable(tag, seq uint32) {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	if p.sender != nil && p.sender.tag == tag {
		p.live.Store(true)
		return
	}
	if p.sender != nil {
		p.recvMu.Lock()
		p.receiver = newReceiver(p.layer.o.Queue)
		p.recvMu.Unlock()
	}
	p.inbox.Store(nil)
	p.sender = newSender(tag, seq, newController(p.layer.o.Extra, p.layer.o.ExtraSparse))
	p.live.Store(true)
}

// stop ends sending.
func (p *peer) stop() {
	p.live.Store(false)
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	p.disarm(&p.block)
	p.disarm(&p.lateAlarm)
}

// write sends the packets in b, each of segment bytes but for the last, as frames.
// It reports false when it has not, for the peer takes none any more.
func (p *peer) write(b, oob []byte, segment int, ecn byte, to net.Addr) (bool, error) {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	s := p.sender
	if s == nil || !p.live.Load() {
		return false, nil
	}
	now := time.Now()
	if r := p.inbox.Swap(nil); r != nil {
		s.control.observe(now, r)
	}
	packets := 1
	if segment > 0 {
		packets = (len(b) + segment - 1) / segment
	}
	// A batch is not cut in two where that can be helped.
	if s.packets > 0 && (s.packets+packets > maxData || !now.Before(s.deadline)) {
		p.closeBlock(now)
	}
	p.to = to
	p.remember(oob, segment)
	sent, out, full := p.layer.ticks(now), p.out[:0], false
	for rest := b; len(rest) > 0; {
		n := len(rest)
		if segment > 0 {
			n = min(n, segment)
		}
		if full {
			if err := p.flush(out, oob, segment, to); err != nil {
				return true, err
			}
			p.closeBlock(now)
			out = out[:0]
		}
		out, full = s.add(out, now, sent, rest[:n], ecn, packets > 1)
		rest = rest[n:]
	}
	p.out = out
	if err := p.flush(out, oob, segment, to); err != nil {
		return true, err
	}
	if full {
		p.closeBlock(now)
	} else if s.packets > 0 && s.rows > 0 {
		p.arm(&p.block, s.deadline.Sub(now), p.expire)
	}
	return true, nil
}

// flush writes frames; sendMu is held.
func (p *peer) flush(out, oob []byte, segment int, to net.Addr) error {
	p.out = out
	p.pace(len(out))
	if segment > 0 {
		segment += overhead
	}
	p.oob = append(p.oob[:0], oob...)
	return p.layer.conn.write(out, p.oob, segment, to)
}

// remember keeps the control messages for what is sent later: rather those of a
// batch, which may be those of one again. sendMu is held.
func (p *peer) remember(oob []byte, segment int) {
	if segment > 0 || len(p.last) == 0 {
		p.last = append(p.last[:0], oob...)
	}
}

// closeBlock sends the parity of the open block, if it gets any, or has a part of
// it sent later; what cannot be sent is lost, as on the way. sendMu is held.
func (p *peer) closeBlock(now time.Time) {
	s := p.sender
	packets := s.packets
	parity := s.finish()
	if len(parity) == 0 {
		return
	}
	if later, wait := s.putOff(packets, len(parity)); later > 0 && p.late.push(now.Add(wait), parity[len(parity)-later:]) {
		parity = parity[:len(parity)-later]
		p.arm(&p.lateAlarm, wait, p.lateDue)
		if len(parity) == 0 {
			return
		}
	}
	all := p.out[:0]
	for _, f := range parity {
		all = append(all, f...)
	}
	p.out = all
	p.writeParity(all, len(parity[0]))
}

// writeParity sends parity frames of one size; sendMu is held.
func (p *peer) writeParity(all []byte, size int) {
	p.pace(len(all))
	p.oob = append(p.oob[:0], p.last...)
	if hasSegment(p.oob) {
		if p.layer.conn.write(all, p.oob, size, p.to) == nil {
			return
		}
		p.last = p.last[:0] // the device cannot cut
	}
	for ; len(all) > 0; all = all[size:] {
		p.oob = append(p.oob[:0], p.last...)
		_ = p.layer.conn.write(all[:size], p.oob, 0, p.to)
	}
}

// alarm is a timer that the layer joins.
type alarm struct {
	timer *time.Timer
	armed bool // it will fire
}

// arm has f called after d; sendMu is held. An alarm that is armed already fires no
// later than that, or is armed again when it has.
func (p *peer) arm(a *alarm, d time.Duration, f func()) {
	if a.armed {
		return
	}
	select {
	case <-p.layer.stopped:
		return
	default:
	}
	a.armed = true
	p.layer.timers.Add(1)
	if a.timer == nil {
		a.timer = time.AfterFunc(d, f)
		return
	}
	a.timer.Reset(d)
}

// disarm stops an alarm; sendMu is held.
func (p *peer) disarm(a *alarm) {
	if a.armed && a.timer.Stop() {
		a.armed = false
		p.layer.timers.Done()
	}
}

// expire closes the block if it is old enough.
func (p *peer) expire() {
	defer p.layer.timers.Done()
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	p.block.armed = false
	s := p.sender
	if !p.live.Load() || s.packets == 0 || s.rows == 0 {
		return
	}
	now := time.Now()
	if left := s.deadline.Sub(now); left > 0 {
		p.arm(&p.block, left, p.expire)
		return
	}
	p.closeBlock(now)
}

// pace waits until the rate allows n bytes; sendMu is held.
func (p *peer) pace(n int) {
	wait := p.budget.take(time.Now(), n)
	if wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.layer.stopped:
	}
}

// take takes a frame of the peer's that came at a time, and returns the packets that
// it brings; they are valid until the next call.
func (p *peer) take(now, came time.Time, f *frame, from net.Addr) []delivery {
	ap, _ := datagram.AddrPort(from)
	p.recvMu.Lock()
	p.receiver.crowd.overflowed(now, p.layer.dropped.Load())
	out := p.receiver.take(now, p.layer.ticks(came), f)
	due := p.receiver.due(now)
	moved := ap != p.from && ap.IsValid()
	p.from = ap
	p.recvMu.Unlock()
	if moved {
		p.layer.moved(p, ap)
	}
	if due {
		p.answer(now, from)
	}
	return out
}

// answer sends a report, if no packet is being written just now; if one is, the
// next frame will do.
func (p *peer) answer(now time.Time, to net.Addr) {
	if !p.sendMu.TryLock() {
		return
	}
	defer p.sendMu.Unlock()
	if p.sender == nil || !p.live.Load() {
		return
	}
	p.recvMu.Lock()
	r := p.receiver.report(now)
	p.recvMu.Unlock()
	r.tag = p.sender.tag
	p.out = appendReport(p.out[:0], &r)
	p.oob = append(p.oob[:0], p.last...)
	_ = p.layer.conn.write(p.out, p.oob, reportSize, to) // the next one will do
}

// withhold reports whether QUIC must not get a packet: it was lost for want of
// room, was repaired, and cannot carry a mark of that. Then QUIC finds the loss,
// as it would have.
func (p *peer) withhold(d *delivery, marked bool) bool {
	if !d.repaired || !d.congested || marked {
		return false
	}
	p.recvMu.Lock()
	p.withheld++
	p.recvMu.Unlock()
	return true
}

// pacer is a rate limit. It is pure.
type pacer struct {
	rate float64   // bytes a second; 0 = none
	free time.Time // when what was taken has been sent at that rate
}

// burst is how far ahead of its rate a peer may be: about what one batch takes at
// 100 Mbit/s, so that batches are not cut.
const burst = 2 * time.Millisecond

// take takes n bytes and returns how long to wait before they are sent.
func (p *pacer) take(now time.Time, n int) time.Duration {
	if p.rate <= 0 {
		return 0
	}
	if p.free.Before(now) {
		p.free = now
	}
	wait := p.free.Sub(now) - burst
	p.free = p.free.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	return max(wait, 0)
}
