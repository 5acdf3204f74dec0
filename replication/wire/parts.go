package wire

import "github.com/mqrouter/mqrouter/replication/record"

// Mark is one row of a flow's lineage table: numbers from First on, up to the
// next row's First, belong to the lineage.
type Mark struct {
	Epoch uint64
	ID    record.LineageID
	First uint64
}

// Fingerprint identifies the content behind a number. The zero value is "none".
type Fingerprint struct {
	Lineage  record.LineageID
	Number   uint64
	Checksum uint32 // the record's header checksum
}

// Outcome is how a range of numbers that did not land was settled.
type Outcome struct {
	First, Through uint64
	Outcome        record.Outcome
	Reason         record.Reason
}

// Credit is absolute: what may have been sent in the session altogether.
type Credit struct {
	Number uint64 // highest number (or offset) that may be sent
	Bytes  uint64 // sum of data bytes that may be sent in the session
}

// Range is an inclusive range of numbers. The zero value is "none".
type Range struct{ First, Through uint64 }

const (
	markSize    = 8 + 8 + 8
	outcomeSize = 8 + 8 + 1 + 2
)

func appendMarks(dst []byte, marks []Mark) []byte {
	dst = le.AppendUint16(dst, uint16(len(marks)))
	for _, m := range marks {
		dst = le.AppendUint64(dst, m.Epoch)
		dst = le.AppendUint64(dst, uint64(m.ID))
		dst = le.AppendUint64(dst, m.First)
	}
	return dst
}

func (r *reader) marks(old []Mark) []Mark {
	n := r.count("lineage", MaxMarks, markSize)
	old = old[:0]
	for range n {
		old = append(old, Mark{Epoch: r.u64("lineage"), ID: record.LineageID(r.u64("lineage")), First: r.u64("lineage")})
	}
	return old
}

func appendOutcomes(dst []byte, outcomes []Outcome) []byte {
	dst = le.AppendUint16(dst, uint16(len(outcomes)))
	for _, o := range outcomes {
		dst = le.AppendUint64(dst, o.First)
		dst = le.AppendUint64(dst, o.Through)
		dst = append(dst, byte(o.Outcome))
		dst = le.AppendUint16(dst, uint16(o.Reason))
	}
	return dst
}

// outcomes reads a list of outcomes: ranges that ascend and do not overlap.
func (r *reader) outcomes(old []Outcome) []Outcome {
	n := r.count("outcomes", MaxOutcomes, outcomeSize)
	old = old[:0]
	var last uint64
	for range n {
		o := Outcome{
			First: r.u64("outcomes"), Through: r.u64("outcomes"),
			Outcome: record.Outcome(r.u8("outcomes")), Reason: record.Reason(r.u16("outcomes")),
		}
		r.orderly("outcomes", o.First, o.Through)
		if o.First <= last {
			r.fail("outcomes", errRange)
		}
		last = o.Through
		old = append(old, o)
	}
	return old
}

func appendFingerprint(dst []byte, f *Fingerprint) []byte {
	dst = le.AppendUint64(dst, uint64(f.Lineage))
	dst = le.AppendUint64(dst, f.Number)
	return le.AppendUint32(dst, f.Checksum)
}

func (r *reader) fingerprint() Fingerprint {
	return Fingerprint{
		Lineage: record.LineageID(r.u64("fingerprint")), Number: r.u64("fingerprint"),
		Checksum: r.u32("fingerprint"),
	}
}

func appendCredit(dst []byte, c Credit) []byte {
	dst = le.AppendUint64(dst, c.Number)
	return le.AppendUint64(dst, c.Bytes)
}

func (r *reader) credit() Credit {
	return Credit{Number: r.u64("credit"), Bytes: r.u64("credit")}
}

// AppendItem appends one item (a record, or an envelope) of a frame's data: its
// length and its bytes.
func AppendItem(dst, item []byte) []byte { return appendBlob(dst, item) }

// NextItem returns the first item of a frame's data and what follows it. Both
// are parts of data, not copies. It fails with a *FrameError when data is cut
// off.
func NextItem(data []byte) (item, rest []byte, err error) {
	if len(data) < lenSize {
		return nil, nil, &FrameError{Type: TypeBatch, Code: CodeMalformed, Field: "data", Err: errShort}
	}
	n := le.Uint32(data)
	if uint64(n) > uint64(len(data)-lenSize) {
		return nil, nil, &FrameError{Type: TypeBatch, Code: CodeMalformed, Field: "data", Err: errShort}
	}
	end := lenSize + int(n)
	return data[lenSize:end:end], data[end:], nil
}

// ItemSize is the number of bytes that AppendItem appends for an item of n
// bytes.
func ItemSize(n int) int { return lenSize + n }
