package fec

import "time"

// How long a block stays open for more packets: it is what a repair adds to a
// packet's way at most. Packets that come seldom share their parity for longer: at
// 1,000 a second four with three parity packets lose less than one with one, for
// fewer bytes.
const (
	blockTime       = 2 * time.Millisecond
	blockTimeSparse = 4 * time.Millisecond
)

// probePackets is how many packets larger than those before, and of one size, are
// taken for probes of the path's MTU (RFC 8899) at most. A probe is in no block:
// its loss says nothing of the path, and parity of its size would be lost as well.
const probePackets = 8

// sender makes frames of the packets that go to one peer. It is pure but for the
// buffers that it keeps; a datagram that it returns is valid until the next call.
// Its user guards it.
type sender struct {
	tag     uint32
	control *controller

	seq   uint32 // of the next packet
	size  int    // the largest packet that goes into blocks
	probe int    // size of the last larger one
	tries int    // how many of that size came one after the other

	// The open block; packets 0 = none is open.
	first    uint32 // seq of its first packet
	packets  int
	bytes    int // of all shards
	longest  int // of the longest shard
	rows     int // parity packets that are being summed up
	sparse   bool
	deadline time.Time
	sums     [][]byte // rows of maxFrame bytes: header, then sum

	rateAt time.Time // start of the interval that is being counted
	rateIn int       // bytes in it
	rate   float64   // bytes a second, of the interval before

	sent, parity, extra uint64 // packets, parity packets, bytes beside the packets
}

// sizeAtFirst is quic-go's packet size before it has probed the path, in bytes.
const sizeAtFirst = 1280

func newSender(tag, seq uint32, c *controller) *sender {
	return &sender{tag: tag, seq: seq, control: c, size: sizeAtFirst}
}

// add appends the frame of a packet to dst. The block is full when full is true:
// then finish must be called before the next add. Packets of a batch are those that
// are handed over at once with others of their size.
func (s *sender) add(dst []byte, now time.Time, sent uint16, packet []byte, ecn byte, batch bool) (out []byte, full bool) {
	f := frame{kind: typeBare, tag: s.tag, seq: s.seq, sent: sent}
	s.count(now, len(packet)+overhead)
	if s.isProbe(len(packet), batch) {
		f.seq = 0
		return append(appendMeta(appendHeader(dst, &f), len(packet), ecn), packet...), false
	}
	if s.packets == 0 {
		s.open(now)
	}
	f.kind, f.index = typeData, uint8(s.packets)
	if s.rows > 0 {
		f.kind = typeCoded
	}
	dst = appendHeader(dst, &f)
	at := len(dst)
	dst = append(appendMeta(dst, len(packet), ecn), packet...)
	shard := dst[at:]
	for i := range s.rows {
		addTo(s.sums[i][headerSize:], i, s.packets, shard)
	}
	s.seq++
	s.packets++
	s.bytes += len(shard)
	s.longest = max(s.longest, len(shard))
	return dst, s.packets == maxData
}

// isProbe reports whether a packet is a probe of the path's MTU, by its size.
func (s *sender) isProbe(size int, batch bool) bool {
	if size <= s.size {
		return false
	}
	if size != s.probe {
		s.probe, s.tries = size, 0
	}
	if s.tries++; batch || s.tries > probePackets {
		s.size = size
		return false
	}
	return true
}

// open begins a block.
func (s *sender) open(now time.Time) {
	s.first, s.bytes, s.longest = s.seq, 0, 0
	s.deadline = now.Add(blockTime)
	if s.sparse = s.rate < sparseRate; s.sparse {
		s.deadline = now.Add(blockTimeSparse)
	}
	s.rows = s.control.rows(s.sparse)
	for len(s.sums) < s.rows {
		s.sums = append(s.sums, make([]byte, maxFrame))
	}
	for i := range s.rows {
		s.sums[i] = s.sums[i][:maxFrame]
		clear(s.sums[i])
	}
}

// finish closes the open block and returns its parity frames, all of one size.
func (s *sender) finish() [][]byte {
	n := 0
	if s.packets > 0 && s.rows > 0 && !s.control.congested {
		n = min(s.rows, s.control.parity(s.sparse, s.rate, s.packets, s.bytes, s.longest))
	}
	size := headerSize + s.longest
	for i := range n {
		f := frame{kind: typeParity, index: uint8(i), tag: s.tag, seq: s.first, data: uint8(s.packets), parity: uint8(n)}
		appendHeader(s.sums[i][:0], &f)
		s.sums[i] = s.sums[i][:size]
	}
	s.packets = 0
	s.parity += uint64(n)
	s.extra += uint64(n * size)
	return s.sums[:n]
}

// count measures the rate over intervals of about a tenth of a second.
func (s *sender) count(now time.Time, n int) {
	const interval = 100 * time.Millisecond
	if passed := now.Sub(s.rateAt); passed >= interval {
		s.rate = float64(s.rateIn) / passed.Seconds()
		if s.rateAt.IsZero() {
			s.rate = 0
		}
		s.rateAt, s.rateIn = now, 0
	}
	s.rateIn += n
	s.sent++
	s.extra += overhead
}
