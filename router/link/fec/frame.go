package fec

import (
	"encoding/binary"
	"time"
)

// The first byte of a frame. A QUIC packet has 0x40 in it (RFC 9000 section 17),
// and RFC 9443 gives the values 4 to 15 to nobody.
const (
	typeBare   = 0x04 // a packet of no block
	typeData   = 0x05 // a packet of a block that gets no parity
	typeCoded  = 0x06 // a packet of a block that gets parity
	typeParity = 0x07
	typeReport = 0x08
	typeReset  = 0x09 // says that nobody has the tag of a frame
	quicBit    = 0x40
)

// Sizes in bytes.
const (
	headerSize = 12
	metaSize   = 2 // ahead of a packet, coded with it
	overhead   = headerSize + metaSize
	reportSize = 32
	resetSize  = 6

	// MaxPacket is the largest packet that is corrected: quic-go reads no larger
	// ones.
	MaxPacket = 1452
	maxShard  = metaSize + MaxPacket
	maxFrame  = headerSize + maxShard
)

// tick is the unit of send times: 16 bits of it last 4.2 s, far more than a packet
// is under way.
const tick = 64 * time.Microsecond

var be = binary.BigEndian

// frame is what a datagram says.
type frame struct {
	kind   byte
	index  uint8 // in the block, of data or of parity
	tag    uint32
	seq    uint32 // of the packet; parity: of the first packet of its block
	sent   uint16 // ticks; data only
	data   uint8  // packets of the block; parity only
	parity uint8  // parity packets of the block; parity only
	shard  []byte // a part of the datagram
}

// appendHeader appends the header of a packet or of parity.
func appendHeader(dst []byte, f *frame) []byte {
	dst = append(dst, f.kind, f.index)
	dst = be.AppendUint32(dst, f.tag)
	dst = be.AppendUint32(dst, f.seq)
	if f.kind == typeParity {
		return append(dst, f.data, f.parity)
	}
	return be.AppendUint16(dst, f.sent)
}

// isFrame reports whether a datagram may be a frame; a QUIC packet is none.
func isFrame(b []byte) bool {
	return len(b) >= resetSize && b[0] >= typeBare && b[0] <= typeReset
}

// parseFrame parses a datagram that carries a packet or parity. It reports false for what no
// sender makes.
func parseFrame(b []byte) (frame, bool) {
	if !isFrame(b) || b[0] > typeParity || len(b) <= overhead || len(b) > maxFrame {
		return frame{}, false
	}
	f := frame{kind: b[0], index: b[1], tag: be.Uint32(b[2:]), seq: be.Uint32(b[6:]), shard: b[headerSize:]}
	if f.kind == typeParity {
		f.data, f.parity = b[10], b[11]
		return f, f.data >= 1 && f.data <= maxData && f.parity <= maxParity && f.index < f.parity
	}
	f.sent = be.Uint16(b[10:])
	size, _ := meta(f.shard)
	return f, f.index < maxData && size == len(f.shard)-metaSize
}

// appendMeta appends what is coded with a packet besides its bytes: its length and
// its ECN field (RFC 3168 section 5), 14 and 2 bits.
func appendMeta(dst []byte, size int, ecn byte) []byte {
	return be.AppendUint16(dst, uint16(ecn&3)<<14|uint16(size))
}

// meta reads it from a shard of at least two bytes.
func meta(shard []byte) (size int, ecn byte) {
	v := be.Uint16(shard)
	return int(v & 0x3fff), byte(v >> 14)
}

// report is what a receiver tells about what came. The counts are of its whole
// life, modulo 2^32, so that a lost report costs nothing.
type report struct {
	tag       uint32
	congested bool
	overflows bool // packets are lost when others take longest: in a full queue
	missed    bool // not sent: a report that the sender did not get to see said congested
	received  uint32
	lost      uint32 // never came
	bursts    uint32 // runs of packets lost one after the other
	recovered uint32 // of the lost
	own       uint32 // datagrams that the receiver's socket dropped, of all streams
	longest   uint8  // packets of the longest run since the report before
	queue     time.Duration
}

// Flags of a report; others are skipped.
const (
	flagCongested = 1 << iota
	flagOverflows
)

// appendReport appends the datagram of a report.
func appendReport(dst []byte, r *report) []byte {
	flags := byte(0)
	if r.congested {
		flags = flagCongested
	}
	if r.overflows {
		flags |= flagOverflows
	}
	dst = append(dst, typeReport, flags)
	dst = be.AppendUint32(dst, r.tag)
	for _, v := range [...]uint32{r.received, r.lost, r.bursts, r.recovered} {
		dst = be.AppendUint32(dst, v)
	}
	dst = be.AppendUint32(dst, uint32(min(max(r.queue/time.Microsecond, 0), 1<<31)))
	return append(be.AppendUint32(append(dst, r.longest), r.own), 0)
}

// parseReport parses a datagram whose first byte is typeReport.
func parseReport(b []byte) (report, bool) {
	if len(b) != reportSize || b[0] != typeReport {
		return report{}, false
	}
	return report{
		congested: b[1]&flagCongested != 0, overflows: b[1]&flagOverflows != 0, tag: be.Uint32(b[2:]), received: be.Uint32(b[6:]), lost: be.Uint32(b[10:]),
		bursts: be.Uint32(b[14:]), recovered: be.Uint32(b[18:]),
		queue: time.Duration(be.Uint32(b[22:])) * time.Microsecond, longest: b[26], own: be.Uint32(b[27:]),
	}, true
}

// appendReset appends the datagram that answers a frame with a tag that nobody has.
// Its proof of origin is that tag.
func appendReset(dst []byte, tag uint32) []byte {
	return be.AppendUint32(append(dst, typeReset, 0), tag)
}
