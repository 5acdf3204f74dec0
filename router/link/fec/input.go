package fec

import (
	"net"
	"time"

	"github.com/mqrouter/mqrouter/router/link/datagram"
)

// resetEvery is the least time between two answers to unknown frames: a flood of
// them costs next to nothing and is not answered by another.
const resetEvery = 10 * time.Millisecond

// input takes a datagram that has waited for a while to be read now. What is a frame
// brings packets, perhaps none; ok is false for what goes to QUIC as it is.
func (l *Layer) input(now time.Time, b []byte, from net.Addr, lag time.Duration) (out []delivery, p *peer, ok bool) {
	if len(b) == 0 || b[0] < typeBare || b[0] > typeReset {
		return nil, nil, false
	}
	if !isFrame(b) {
		l.unknown.Add(1)
		return nil, nil, true
	}
	tag := be.Uint32(b[2:]) // in every frame; of a bare packet and the like too
	switch b[0] {
	case typeReset:
		l.reset(b, tag, from)
		return nil, nil, true
	case typeReport:
		if r, ok := parseReport(b); ok {
			if p := (*l.byTag.Load())[tag]; p != nil {
				if was := p.inbox.Load(); was != nil {
					r.missed = was.congested || was.missed
				}
				p.inbox.Store(&r)
				return nil, nil, true
			}
		}
		l.unknown.Add(1)
		return nil, nil, true
	}
	p = (*l.byTag.Load())[tag]
	if p == nil {
		l.unknown.Add(1)
		l.refuse(now, tag, from)
		return nil, nil, true
	}
	f, valid := parseFrame(b)
	if !valid {
		l.unknown.Add(1)
		return nil, nil, true
	}
	return p.take(now, now.Add(-lag), &f, from), p, true
}

// refuse tells a sender that nobody has its tag: it has not heard of a restart.
// The answer is shorter than what it answers.
func (l *Layer) refuse(now time.Time, tag uint32, to net.Addr) {
	at, told := int64(now.Sub(l.start)), l.told.Load()
	if told != 0 && at-told < int64(resetEvery) || !l.told.CompareAndSwap(told, at) {
		return
	}
	_ = l.conn.write(appendReset(nil, tag), nil, 0, to) // it will ask again
}

// reset takes such an answer: packets to the peer go as they are until it greets
// again.
func (l *Layer) reset(b []byte, tag uint32, from net.Addr) {
	ap, ok := datagram.AddrPort(from)
	p := (*l.byAddr.Load())[ap]
	if !ok || p == nil || len(b) != resetSize {
		l.unknown.Add(1)
		return
	}
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	if p.sender != nil && p.sender.tag == tag {
		p.live.Store(false)
	}
}
