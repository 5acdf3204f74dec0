package tracing

import (
	"encoding/binary"
	"math/rand/v2"

	"go.opentelemetry.io/otel/trace"
)

// Layout of a W3C traceparent, version 00: version, trace id, span id and flags
// in lower-case hexadecimal, separated by dashes (W3C Trace Context, section 3.2).
const (
	parentLen = 55 // characters
	traceAt   = 3
	spanAt    = 36
	flagsAt   = 53
)

// Parse returns the trace context of a W3C traceparent. ok is false when text is
// none; what else clients put there is theirs. A longer text of a later version
// is read as far as it is known. It does not allocate.
func Parse[T ~string | ~[]byte](text T) (sc trace.SpanContext, ok bool) {
	if len(text) < parentLen || text[2] != '-' || text[traceAt+32] != '-' || text[spanAt+16] != '-' {
		return sc, false
	}
	version, ok := pair(text[0], text[1])
	if !ok || version == 0xff || len(text) > parentLen && (version == 0 || text[parentLen] != '-') {
		return sc, false
	}
	c := trace.SpanContextConfig{Remote: true}
	for i := range c.TraceID {
		if c.TraceID[i], ok = pair(text[traceAt+2*i], text[traceAt+2*i+1]); !ok {
			return sc, false
		}
	}
	for i := range c.SpanID {
		if c.SpanID[i], ok = pair(text[spanAt+2*i], text[spanAt+2*i+1]); !ok {
			return sc, false
		}
	}
	flags, ok := pair(text[flagsAt], text[flagsAt+1])
	if !ok {
		return sc, false
	}
	c.TraceFlags = trace.TraceFlags(flags)
	sc = trace.NewSpanContext(c)
	return sc, sc.IsValid()
}

// Sampled is Parse for whoever only asks about traced messages: ok is false also
// when the context says that the message is not traced. Most messages cost one
// comparison or two.
func Sampled[T ~string | ~[]byte](text T) (sc trace.SpanContext, ok bool) {
	if len(text) < parentLen {
		return sc, false
	}
	if low, ok := digit(text[flagsAt+1]); !ok || low&1 == 0 {
		return sc, false
	}
	return Parse(text)
}

// Format returns the traceparent of a context.
func Format(sc trace.SpanContext) string {
	var b [parentLen]byte
	b[0], b[1], b[2] = '0', '0', '-'
	id, span := sc.TraceID(), sc.SpanID()
	hex(b[traceAt:], id[:])
	b[traceAt+32] = '-'
	hex(b[spanAt:], span[:])
	b[spanAt+16] = '-'
	hex(b[flagsAt:], []byte{byte(sc.TraceFlags())})
	return string(b[:])
}

// Unsampled returns the traceparent of a message whose trace goes on without
// spans from here: the same trace, and a parent that nobody made, since whoever
// clears the flag has to name a new one (W3C Trace Context, section 3.4).
func Unsampled(sc trace.SpanContext) string {
	var id trace.SpanID
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1) // zero is none
	return Format(sc.WithSpanID(id).WithTraceFlags(sc.TraceFlags() &^ trace.FlagsSampled))
}

func hex(dst, src []byte) {
	const digits = "0123456789abcdef"
	for i, c := range src {
		dst[2*i], dst[2*i+1] = digits[c>>4], digits[c&0xf]
	}
}

// digit returns the value of a hexadecimal digit; capitals are none here.
func digit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

func pair(high, low byte) (byte, bool) {
	h, ok1 := digit(high)
	l, ok2 := digit(low)
	return h<<4 | l, ok1 && ok2
}
