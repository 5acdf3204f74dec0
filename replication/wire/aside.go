package wire

// Aside stands on a session's own stream in the place of its next frame, which is
// the next one on a side stream: a unidirectional one that its sender has opened
// for the session. So the order of frames is that of the session's own stream,
// while what may be on its way is the windows of all its streams together. A side
// stream begins with the number of the session's own stream (8).
//
//	stream (8), last (1)
type Aside struct {
	Stream uint64 // number of the side stream, as QUIC counts them
	Last   bool   // that frame is the last on it
}

// MaxAside bounds the payload of Aside in bytes, fields of later versions included.
const MaxAside = 64

// Append appends the payload to dst.
func (a *Aside) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, a.Stream)
	if a.Last {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// ParseAside parses a payload.
func ParseAside(b []byte) (Aside, error) {
	r := reader{typ: TypeAside, b: b}
	a := Aside{Stream: r.u64("stream"), Last: r.u8("last") != 0}
	return a, r.done()
}
