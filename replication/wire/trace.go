package wire

// FlagTrace says that the payload ends with a TraceContext. It is optional: a
// reader that does not know it finds bytes behind the known fields, which it
// ignores.
const FlagTrace = 0x0001

// TraceSize is the length of an encoded TraceContext in bytes.
const TraceSize = 16 + 8 + 1

// TraceContext is the context of the span that a frame was sent in, as W3C Trace
// Context has it: that of the first traced record of a batch. It stands behind
// the fields, uncompressed, so that a router reads it without the rest:
//
//	trace id (16), span id (8), flags (1)
type TraceContext struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   byte
}

// AppendTrace appends c to a frame's payload. The frame must have FlagTrace.
func AppendTrace(payload []byte, c *TraceContext) []byte {
	payload = append(payload, c.TraceID[:]...)
	payload = append(payload, c.SpanID[:]...)
	return append(payload, c.Flags)
}

// Trace returns the frame's trace context; ok is false when it has none. It
// reads the end of the payload only and does not allocate.
func (f *Frame) Trace() (c TraceContext, ok bool) {
	if f.Flags&FlagTrace == 0 || len(f.Payload) < TraceSize {
		return c, false
	}
	b := f.Payload[len(f.Payload)-TraceSize:]
	copy(c.TraceID[:], b)
	copy(c.SpanID[:], b[16:])
	c.Flags = b[24]
	return c, true
}
