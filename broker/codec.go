package broker

import (
	"encoding/binary"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// encoder writes the small binary form of control records and snapshots:
// unsigned varints, bytes with a varint length before them, fixed numbers
// little endian.
type encoder struct{ b []byte }

func (e *encoder) byte(v byte)   { e.b = append(e.b, v) }
func (e *encoder) uint(v uint64) { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) u32(v uint32)  { e.b = binary.LittleEndian.AppendUint32(e.b, v) }
func (e *encoder) u64(v uint64)  { e.b = binary.LittleEndian.AppendUint64(e.b, v) }
func (e *encoder) raw(v []byte)  { e.b = append(e.b, v...) }

func (e *encoder) str(v string) {
	e.uint(uint64(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) bool(v bool) {
	if v {
		e.byte(1)
		return
	}
	e.byte(0)
}

func (e *encoder) flow(id record.FlowID) {
	e.str(string(id.Origin))
	e.u64(uint64(id.Incarnation))
	e.str(id.Target)
	e.bool(id.Channel)
	e.byte(byte(id.Class))
	e.byte(id.Lane)
}

// decoder reads what encoder wrote. The first fault sticks: everything read
// after it is zero, so that callers check ok once, at the end.
type decoder struct {
	b   []byte
	bad bool
}

// ok reports whether everything was read without a fault and nothing is left.
func (d *decoder) ok() bool { return !d.bad && len(d.b) == 0 }

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) bool() bool { return d.byte() != 0 }

func (d *decoder) uint() uint64 {
	if d.bad {
		return 0
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) u32() uint32 {
	if v := d.take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if v := d.take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (d *decoder) bytes() []byte { return d.take(d.uint()) }
func (d *decoder) str() string   { return string(d.bytes()) }

// count reads a count of elements that take at least one byte each, so that a
// damaged count cannot make anybody allocate more than the input is long.
func (d *decoder) count() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) flow() record.FlowID {
	return record.FlowID{
		Origin:      zone.Group(d.str()),
		Incarnation: record.Incarnation(d.u64()),
		Target:      d.str(),
		Channel:     d.bool(),
		Class:       zone.Class(d.byte()),
		Lane:        d.byte(),
	}
}
