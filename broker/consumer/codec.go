package consumer

import (
	"encoding/binary"
	"time"
)

// maxText bounds a name in bytes; the protocol's longest is 127 plus a prefix.
const maxText = 512

// maxQueues bounds the queue numbers; they are 16 bits wide everywhere.
const maxQueues = 1 << 16

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendRanges writes each range as the distance from the end of the one
// before and its length.
func appendRanges(dst []byte, ranges []Range) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(ranges)))
	last := uint64(0)
	for _, r := range ranges {
		dst = binary.AppendUvarint(dst, r.From-last)
		dst = binary.AppendUvarint(dst, r.To-r.From)
		last = r.To
	}
	return dst
}

// appendRetries writes each retry as the distance from the offset before, its
// attempts, its instant in Unix milliseconds (0 for the zero time) and its attempt
// id.
func appendRetries(dst []byte, retries []Retry) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(retries)))
	last := uint64(0)
	for _, r := range retries {
		dst = binary.AppendUvarint(dst, r.Offset-last)
		dst = binary.AppendUvarint(dst, uint64(r.Attempts))
		dst = binary.AppendVarint(dst, toMillis(r.Visible))
		dst = binary.AppendUvarint(dst, r.Attempt)
		last = r.Offset
	}
	return dst
}

func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// decoder reads what the functions above wrote. The first fault sticks; all
// later reads return zero values.
type decoder struct {
	what string
	b    []byte
	at   int
	err  *FormatError
}

func (d *decoder) fail(reason string) {
	if d.err == nil {
		d.err = &FormatError{What: d.what, Offset: d.at, Reason: reason}
	}
}

func (d *decoder) byte() byte {
	if d.err != nil || d.at >= len(d.b) {
		d.fail("too short")
		return 0
	}
	d.at++
	return d.b[d.at-1]
}

func (d *decoder) uvarint() uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.b[d.at:])
	if n <= 0 {
		d.fail("bad number")
		return 0
	}
	d.at += n
	return v
}

func (d *decoder) varint() int64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Varint(d.b[d.at:])
	if n <= 0 {
		d.fail("bad number")
		return 0
	}
	d.at += n
	return v
}

// count reads a number of elements that take at least size bytes each, so that
// nobody can ask for more memory than a multiple of what was sent.
func (d *decoder) count(size int) int {
	v := d.uvarint()
	if v > uint64((len(d.b)-d.at)/size) {
		d.fail("count beyond the end")
		return 0
	}
	return int(v)
}

func (d *decoder) text() string {
	n := d.count(1)
	if n > maxText {
		d.fail("text too long")
		return ""
	}
	if d.err != nil {
		return ""
	}
	d.at += n
	return string(d.b[d.at-n : d.at])
}

func (d *decoder) queue() uint16 {
	v := d.uvarint()
	if v >= maxQueues {
		d.fail("queue number too large")
		return 0
	}
	return uint16(v)
}

// ranges reads ranges that ascend and are not empty.
func (d *decoder) ranges() []Range {
	n := d.count(2)
	if n == 0 {
		return nil
	}
	out := make([]Range, 0, n)
	last := uint64(0)
	for range n {
		gap, size := d.uvarint(), d.uvarint()
		if d.err != nil {
			return nil
		}
		if size == 0 || last+gap < last || last+gap+size < last+gap {
			d.fail("ranges do not ascend")
			return nil
		}
		out = append(out, Range{From: last + gap, To: last + gap + size})
		last += gap + size
	}
	return out
}

// retries reads retries with ascending offsets.
func (d *decoder) retries() []Retry {
	n := d.count(4)
	if n == 0 {
		return nil
	}
	out := make([]Retry, 0, n)
	last := uint64(0)
	for i := range n {
		gap, attempts, visible, attempt := d.uvarint(), d.uvarint(), d.varint(), d.uvarint()
		if d.err != nil {
			return nil
		}
		if (i > 0 && gap == 0) || last+gap < last || attempts > maxAttempts {
			d.fail("retries do not ascend")
			return nil
		}
		last += gap
		out = append(out, Retry{Offset: last, Attempts: uint32(attempts), Visible: fromMillis(visible), Attempt: attempt})
	}
	return out
}

// maxAttempts bounds the attempts of a message; far above every policy.
const maxAttempts = 1<<32 - 1

// end refuses bytes behind what was read.
func (d *decoder) end() error {
	if d.err == nil && d.at != len(d.b) {
		d.fail("bytes behind the end")
	}
	if d.err != nil {
		return d.err
	}
	return nil
}
