package wire

import (
	"math"

	"github.com/mqrouter/mqrouter/replication/record"
)

// MaxStretch bounds what Ship frames carry of one stretch, in bytes: an entry of
// the largest size, with envelope and framing, fits.
const MaxStretch = record.MaxRecord + record.MaxEnvelope + 4<<10

// ShipHead is the length of a Ship's payload besides its data.
const ShipHead = 1 + 3*8 + 2*4 + 4

const shipBase = 0x01

// Ship carries a stretch of the master's log: whole frames as they stand on its
// disk. A stretch that is too large for a frame comes in several, the parts in
// order, the fields alike but for Offset. Without a stretch (Size 0) it says that
// the master lives, and what is committed.
//
//	flags (1, bit 0 = from is the base of a segment), committed (8), from (8),
//	next (8), offset (4), size (4), data (blob), begin (8; only without a stretch,
//	and left out when it is 0)
type Ship struct {
	Committed record.Position // by the group; may be above what was sent
	Base      bool            // From is the base of a segment, whose header is not sent
	From      record.Position // where the stretch begins
	Next      record.Position // where it ends
	Offset    uint32          // of Data in the stretch's bytes
	Size      uint32          // bytes of the whole stretch, at most MaxStretch; 0 = none
	Data      []byte
	Begin     record.Position // without a stretch: the oldest that the master keeps; 0 = not told
}

// Append appends the payload to dst.
func (x *Ship) Append(dst []byte) []byte {
	dst = append(dst, make([]byte, ShipHead)...)
	x.PutHead(dst[len(dst)-ShipHead:], len(x.Data))
	dst = append(dst, x.Data...)
	if x.Size == 0 && x.Begin != 0 {
		dst = le.AppendUint64(dst, uint64(x.Begin))
	}
	return dst
}

// PutHead writes the fields before n bytes of data into b, which has at least
// ShipHead bytes: whoever has room before the data need not copy it.
func (x *Ship) PutHead(b []byte, n int) {
	b[0] = bit(x.Base, shipBase)
	le.PutUint64(b[1:], uint64(x.Committed))
	le.PutUint64(b[9:], uint64(x.From))
	le.PutUint64(b[17:], uint64(x.Next))
	le.PutUint32(b[25:], x.Offset)
	le.PutUint32(b[29:], x.Size)
	le.PutUint32(b[33:], uint32(n))
}

// ParseShip parses a payload. Data is a part of b, not a copy.
func ParseShip(b []byte) (Ship, error) {
	r := reader{typ: TypeShip, b: b}
	x := Ship{Base: r.u8("flags")&shipBase != 0, Committed: r.position("committed")}
	x.From, x.Next = r.position("from"), r.position("next")
	x.Offset, x.Size = r.u32("offset"), r.u32("size")
	x.Data = r.blob("data", MaxPayload)
	if r.err == nil && x.Size == 0 && len(r.b) > 0 {
		x.Begin = r.position("begin")
	}
	switch {
	case r.err != nil:
	case x.Size > MaxStretch:
		r.fail("size", errTooLarge)
	case uint64(x.Offset)+uint64(len(x.Data)) > uint64(x.Size) || (len(x.Data) == 0) != (x.Size == 0):
		r.fail("offset", errRange)
	case x.Next < x.From || uint64(x.Next-x.From) < uint64(x.Size) || x.Next > math.MaxInt64:
		r.fail("next", errRange)
	}
	return x, r.done()
}

// ShipAck says how far a replica is, and how much more it takes. It is sent when
// something was made durable, and by timer.
//
//	written (8), synced (8), credit (8)
type ShipAck struct {
	Written record.Position // end of what is written in the replica's log
	Synced  record.Position // end of what is durable there
	// Credit is how many bytes of stretches and files of this session may be sent
	// in all, from its beginning.
	Credit uint64
}

// Append appends the payload to dst.
func (x *ShipAck) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, uint64(x.Written))
	dst = le.AppendUint64(dst, uint64(x.Synced))
	return le.AppendUint64(dst, x.Credit)
}

// ParseShipAck parses a payload.
func ParseShipAck(b []byte) (ShipAck, error) {
	r := reader{typ: TypeShipAck, b: b}
	x := ShipAck{Written: r.position("written"), Synced: r.position("synced"), Credit: r.u64("credit")}
	if x.Synced > x.Written {
		r.fail("synced", errRange)
	}
	return x, r.done()
}
