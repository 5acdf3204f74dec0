// Package wire is the format of what brokers and routers say to each other:
// the frame header, a file for each frame's payload, and the table of codes.
//
// It owns bytes only. It never does I/O beyond [ReadFrame], holds no state and
// starts no goroutine; everything in it is a function of its arguments and safe
// for concurrent use. Order is the business of the [Stream] that carries the
// frames.
//
// # Header
//
// Every frame starts with 28 bytes, little endian:
//
//	offset size
//	0      1    version, 1
//	1      1    type (Type)
//	2      2    flags; the upper eight bits are required: a reader that does
//	            not know one refuses the frame; unknown lower ones are ignored
//	4      4    payload length, at most MaxPayload
//	8      8    session: random, from the opener; 0 = the connection itself
//	16     1    class (zone.Class)
//	17     1    hops: city crossings so far
//	18     2    reserved, 0
//	20     4    CRC32C of the payload
//	24     4    CRC32C of the bytes 0 to 23
//
// A relay changes hops and the header checksum, nothing else.
//
// # Payloads
//
// Integers are little endian. A text is preceded by its length in two bytes, a
// list by its count in two bytes, a blob by its length in four. Each has a
// bound, named beside its field. Bytes behind the known fields belong to a
// later version and are ignored, so that fields can be added at the end. One flag
// is defined, FlagTrace (0x0001, optional): the payload ends with 25 bytes of
// trace context; see [TraceContext].
//
// A flow id is: origin (text), incarnation (8), target (text), flags (1, bit 0
// = the target is a channel), class (1), lane (1). Credit is: number (8), bytes
// (8). A list of outcomes is: first (8), through (8), outcome (1), reason (2)
// each. An epoch is: term (8), number (8).
//
// # Sessions
//
//	opener                                   answerer
//	Open      -->                       <--  Accept | Refuse | Open (in answer to OpenPull, the sides change)
//	Batch, Skip, Gap, Seal, Probe  -->  <--  Ack, Sealed, ProbeReply, Drain
//	Dictionary (after an Accept that takes them) -->
//	Want      -->                       <--  Found | Refuse
//	Applied   -->                       <--  Landed, Gap
//	Call      -->                       <--  Reply | Refuse
//	Follow    -->                       <--  Lead | Seed | Refuse
//	ShipAck   -->                       <--  Ship (after Lead), Part (after Seed)
//	Fetch     -->                       <--  Ship | Refuse
//	End       <->                            either side, once
//
// Session 0 carries Hello in both directions before anything else, then Probe,
// ProbeReply and Drain about the connection as a whole, and on links Reach. On a
// link, Via may stand before the opener's first frame, and Aside in place of any
// other.
package wire
