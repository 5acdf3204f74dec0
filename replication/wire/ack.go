package wire

// Ack tells the committed settled prefix of a flow, the outcomes other than
// landed since the last one, and the credit.
//
//	through (8), outcomes, credit
type Ack struct {
	Through  uint64
	Outcomes []Outcome
	Credit   Credit
}

// Append appends the payload to dst.
func (a *Ack) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, a.Through)
	dst = appendOutcomes(dst, a.Outcomes)
	return appendCredit(dst, a.Credit)
}

// ParseAck parses a payload. It keeps no reference to b.
func ParseAck(b []byte) (Ack, error) {
	var a Ack
	err := a.Decode(b)
	return a, err
}

// Decode is ParseAck into a, whose slice it uses again. After an error a has no
// meaning.
func (a *Ack) Decode(b []byte) error {
	r := reader{typ: TypeAck, b: b}
	a.Through = r.u64("through")
	a.Outcomes = r.outcomes(a.Outcomes)
	a.Credit = r.credit()
	return r.done()
}
