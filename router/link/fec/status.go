package fec

import "time"

// Status is what is known of the stream of a peer.
type Status struct {
	On        bool          // packets to the peer go as frames
	Loss      float64       // share of this node's packets that get lost, as the peer reports; 0 until three are
	Residual  float64       // share of them that stayed lost, of all since the start
	Burst     float64       // mean length of a run of losses
	Parity    int           // parity packets that a full block gets now
	Congested bool          // the peer sees a queue on the way to it
	Queue     time.Duration // which is so long
	Crowded   uint64        // times that the peer reported losses for want of room

	Sent       uint64 // packets
	ParitySent uint64 // parity packets
	Extra      uint64 // bytes of headers and parity
	Recovered  uint64 // packets of the peer's that were repaired here, modulo 2^32
	Marked     uint64 // of them, those that were lost while a queue stood, and told QUIC so
	Withheld   uint64 // of them, those that QUIC was not given, for it could not be told
}

func (p *peer) status() Status {
	var st Status
	p.sendMu.Lock()
	if s := p.sender; s != nil {
		c := s.control
		r := &c.last
		st = Status{
			On: p.live.Load(), Loss: c.measured(), Burst: c.burst, Parity: c.rows(s.rate < sparseRate),
			Congested: r.congested, Queue: r.queue, Crowded: c.crowded, Sent: s.sent, ParitySent: s.parity, Extra: s.extra,
		}
		if all := float64(r.received) + float64(r.lost); all > 0 && r.lost > r.recovered {
			st.Residual = float64(r.lost-r.recovered) / all
		}
	}
	p.sendMu.Unlock()
	p.recvMu.Lock()
	st.Recovered, st.Withheld = uint64(p.receiver.recovered), p.withheld
	st.Marked = p.receiver.marked - p.withheld
	p.recvMu.Unlock()
	return st
}
