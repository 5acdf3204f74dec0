package wire

import "time"

// Refuse answers Open, Want or Seal with no. The session is over.
//
//	code (2), retry after (4, milliseconds), master, text (texts), epoch (8)
//
// The epoch is left out when it is 0, which older versions of this format always do.
type Refuse struct {
	Code       Code
	RetryAfter time.Duration // a hint, whole milliseconds; 0 = none
	Master     string        // with CodeNotMaster: who is, when known
	Epoch      uint64        // with CodeNotMaster: of the coordinator's term, in which Master is, or nobody; 0 = not known
	Text       string        // detail for people
}

// Append appends the payload to dst.
func (x *Refuse) Append(dst []byte) []byte {
	dst = le.AppendUint16(dst, uint16(x.Code))
	dst = le.AppendUint32(dst, millis(x.RetryAfter))
	dst = appendText(dst, x.Master)
	dst = appendProse(dst, x.Text)
	if x.Epoch != 0 {
		dst = le.AppendUint64(dst, x.Epoch)
	}
	return dst
}

// ParseRefuse parses a payload. It keeps no reference to b.
func ParseRefuse(b []byte) (Refuse, error) {
	r := reader{typ: TypeRefuse, b: b}
	x := Refuse{
		Code: Code(r.u16("code")), RetryAfter: time.Duration(r.u32("retry after")) * time.Millisecond,
		Master: r.name("master", ""), Text: r.text("text", MaxText, ""),
	}
	if len(r.b) > 0 {
		x.Epoch = r.u64("epoch")
	}
	return x, r.done()
}

// millis clamps a duration to what fits.
func millis(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 0), 1<<32-1))
}

// Drain asks the opener to move its sessions elsewhere before the deadline.
//
//	deadline (4, milliseconds from now)
type Drain struct {
	Deadline time.Duration // whole milliseconds
}

// Append appends the payload to dst.
func (x *Drain) Append(dst []byte) []byte { return le.AppendUint32(dst, millis(x.Deadline)) }

// ParseDrain parses a payload.
func ParseDrain(b []byte) (Drain, error) {
	r := reader{typ: TypeDrain, b: b}
	x := Drain{Deadline: time.Duration(r.u32("deadline")) * time.Millisecond}
	return x, r.done()
}

// End is the last frame of a session in its direction.
//
//	code (2), text (text)
type End struct {
	Code Code
	Text string // detail for people
}

// Append appends the payload to dst.
func (x *End) Append(dst []byte) []byte {
	return appendProse(le.AppendUint16(dst, uint16(x.Code)), x.Text)
}

// ParseEnd parses a payload. It keeps no reference to b.
func ParseEnd(b []byte) (End, error) {
	r := reader{typ: TypeEnd, b: b}
	x := End{Code: Code(r.u16("code")), Text: r.text("text", MaxText, "")}
	return x, r.done()
}
