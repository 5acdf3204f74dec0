package wire

import "strconv"

// The frame types. Their values are part of the format.
const (
	TypeHello      Type = iota + 1 // both ways, first frame of a connection
	TypeOpen                       // opener: begin a flow's session
	TypeAccept                     // answer to Open
	TypeBatch                      // records of a flow
	TypeAck                        // committed prefix, outcomes, credit
	TypeSkip                       // numbers that are not for this destination
	TypeGap                        // numbers that are lost
	TypeSeal                       // refuse everything above the settled prefix for ever
	TypeSealed                     // answer to Seal
	TypeRefuse                     // answer to Open, Want or Seal: no
	TypeDrain                      // move elsewhere before a deadline
	TypeProbe                      // are you there, and how far
	TypeProbeReply                 // answer to Probe
	TypeEnd                        // the session is over
	TypeWant                       // opener: read landings
	TypeFound                      // answer to Want
	TypeLanded                     // landings
	TypeApplied                    // progress and credit of a reader of landings
	TypeVia                        // the cities that a session has left, before its first frame; routers only
	TypeReach                      // the cities that a router reaches, on session 0 of a link
	TypeCall                       // opener: do this; between the brokers of a zone
	TypeReply                      // answer to Call
	TypeFollow                     // opener: give me the log of our broker group
	TypeLead                       // answer to Follow: the log follows
	TypeShip                       // a stretch of the log
	TypeShipAck                    // how far a replica is
	TypeSeed                       // answer to Follow: another store follows
	TypePart                       // a part of a seed's file
	TypeFetch                      // opener: give me this part of the log, which is damaged here
	TypeAside                      // the session's next frame is on another stream; links only
	TypeDictionary                 // what batches that follow are compressed with
	typeEnd
)

var typeNames = [typeEnd]string{
	TypeHello: "hello", TypeOpen: "open", TypeAccept: "accept", TypeBatch: "batch",
	TypeAck: "ack", TypeSkip: "skip", TypeGap: "gap", TypeSeal: "seal",
	TypeSealed: "sealed", TypeRefuse: "refuse", TypeDrain: "drain", TypeProbe: "probe",
	TypeProbeReply: "probe-reply", TypeEnd: "end", TypeWant: "want", TypeFound: "found",
	TypeLanded: "landed", TypeApplied: "applied", TypeVia: "via", TypeReach: "reach",
	TypeCall: "call", TypeReply: "reply",
	TypeFollow: "follow", TypeLead: "lead", TypeShip: "ship", TypeShipAck: "ship-ack",
	TypeSeed: "seed", TypePart: "part", TypeFetch: "fetch",
	TypeAside: "aside", TypeDictionary: "dictionary",
}

// Known reports whether this version knows the type.
func (t Type) Known() bool { return t > 0 && t < typeEnd }

// String returns the type's name, the form used in logs.
func (t Type) String() string {
	if !t.Known() {
		return "type-" + strconv.Itoa(int(t))
	}
	return typeNames[t]
}
