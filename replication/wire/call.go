package wire

import "time"

// Bounds of calls.
const (
	// MaxCall bounds the body of a call or of its reply, in bytes: a record of the
	// largest legal size and what is said about it fit.
	MaxCall = 8 << 20
	// callFields are the bytes of a Call's fields besides its body; those of a Reply
	// are fewer, but for its text.
	callFields = 1 + 4 + 4
)

// FeatureCalls in Hello says that the node answers calls.
const FeatureCalls uint64 = 1 << 0

// Call asks another broker of the same zone to do something. It is the only frame
// of its session in its direction, and the session's number is the number of the
// request: what is done is done for whoever waits on that session, and ends with it.
//
//	kind (1), time (4, milliseconds), body (blob)
type Call struct {
	Kind uint8         // what is asked; package broker has the kinds. Not 0
	Time time.Duration // how long the caller waits from now on, whole milliseconds; at least one
	Body []byte        // at most MaxCall bytes
}

// Append appends the payload to dst.
func (x *Call) Append(dst []byte) []byte {
	dst = append(dst, x.Kind)
	dst = le.AppendUint32(dst, max(millis(x.Time), 1))
	return appendBlob(dst, x.Body)
}

// CallSize is the length of the payload of a call with a body of n bytes.
func CallSize(n int) int { return callFields + n }

// ParseCall parses a payload. Body is a part of b, not a copy.
func ParseCall(b []byte) (Call, error) {
	r := reader{typ: TypeCall, b: b}
	x := Call{Kind: r.u8("kind"), Time: time.Duration(r.u32("time")) * time.Millisecond}
	if r.err == nil && (x.Kind == 0 || x.Time == 0) {
		r.fail("kind", errRange)
	}
	x.Body = r.blob("body", MaxCall)
	return x, r.done()
}

// Reply answers Call, and ends the session in its direction. A call that was not
// looked at is answered with Refuse.
//
//	fault (2), text (text), body (blob)
type Reply struct {
	Fault uint16 // 0 = it was done; else what is wrong, in the terms of package broker
	Text  string // detail for people, of a fault
	Body  []byte // at most MaxCall bytes; not with a fault
}

// Append appends the payload to dst.
func (x *Reply) Append(dst []byte) []byte {
	dst = le.AppendUint16(dst, x.Fault)
	dst = appendProse(dst, x.Text)
	return appendBlob(dst, x.Body)
}

// ParseReply parses a payload. Body is a part of b, not a copy.
func ParseReply(b []byte) (Reply, error) {
	r := reader{typ: TypeReply, b: b}
	x := Reply{Fault: r.u16("fault"), Text: r.text("text", MaxText, "")}
	x.Body = r.blob("body", MaxCall)
	return x, r.done()
}
