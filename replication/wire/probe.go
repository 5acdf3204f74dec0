package wire

// Probe asks whether the destination lives and how far it is. On session 0 it
// is about the connection, and only Nonce and SentAt count.
//
//	nonce (8), sent at (8), head (8), cursor (8)
type Probe struct {
	Nonce  uint64
	SentAt uint64 // the sender's own clock, returned unchanged; nanoseconds
	Head   uint64 // highest number given
	Cursor uint64 // the origin's cursor: what its outcomes up to here ask for is durable there
}

// Append appends the payload to dst.
func (p *Probe) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, p.Nonce)
	dst = le.AppendUint64(dst, p.SentAt)
	dst = le.AppendUint64(dst, p.Head)
	return le.AppendUint64(dst, p.Cursor)
}

// ParseProbe parses a payload.
func ParseProbe(b []byte) (Probe, error) {
	r := reader{typ: TypeProbe, b: b}
	p := Probe{Nonce: r.u64("nonce"), SentAt: r.u64("sent at"), Head: r.u64("head"), Cursor: r.u64("cursor")}
	return p, r.done()
}

// ProbeReply answers Probe.
//
//	nonce (8), sent at (8), settled (8), credit, held (2), text (text)
type ProbeReply struct {
	Nonce   uint64
	SentAt  uint64 // from the probe
	Settled uint64 // committed settled prefix
	Credit  Credit
	Held    Code   // why nothing can land now; CodeOK = it can
	Text    string // detail for people
}

// Append appends the payload to dst.
func (p *ProbeReply) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, p.Nonce)
	dst = le.AppendUint64(dst, p.SentAt)
	dst = le.AppendUint64(dst, p.Settled)
	dst = appendCredit(dst, p.Credit)
	dst = le.AppendUint16(dst, uint16(p.Held))
	return appendProse(dst, p.Text)
}

// ParseProbeReply parses a payload. It keeps no reference to b.
func ParseProbeReply(b []byte) (ProbeReply, error) {
	r := reader{typ: TypeProbeReply, b: b}
	p := ProbeReply{
		Nonce: r.u64("nonce"), SentAt: r.u64("sent at"), Settled: r.u64("settled"),
		Credit: r.credit(), Held: Code(r.u16("held")), Text: r.text("text", MaxText, ""),
	}
	return p, r.done()
}
