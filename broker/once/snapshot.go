package once

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/mqrouter/mqrouter/zone"
)

// entryBytes is the length of an entry in a snapshot.
const entryBytes = 16 + 8 + 8 + 8 + 8 + 2 + 1

// ErrSnapshot says that bytes are no snapshot of a table.
var ErrSnapshot = errors.New("once: malformed snapshot")

// Append appends the snapshot of the table. Equal tables have equal bytes.
func (t *Table) Append(dst []byte) []byte {
	dst = slices.Grow(dst, t.total*entryBytes+64*len(t.topics)+8)
	dst = binary.AppendUvarint(dst, uint64(len(t.topics)))
	for _, x := range t.topics {
		dst = binary.AppendUvarint(dst, uint64(len(x.name)))
		dst = append(dst, x.name...)
		dst = binary.AppendUvarint(dst, uint64(x.n))
		for i := range uint32(x.n) {
			dst = x.at(x.first + i).append(dst)
		}
	}
	return dst
}

func (e *entry) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = append(dst, e.key[:]...)
	dst = le.AppendUint64(dst, uint64(e.until))
	dst = le.AppendUint64(dst, e.content)
	dst = le.AppendUint64(dst, e.place.Offset)
	dst = le.AppendUint64(dst, e.place.Extra)
	dst = le.AppendUint16(dst, e.place.Queue)
	return append(dst, e.place.Flags)
}

// Parse reads a snapshot from the beginning of b and returns what follows it. It
// keeps nothing of b. The error is ErrSnapshot.
func Parse(b []byte) (t *Table, rest []byte, err error) {
	t = &Table{}
	topics, b, ok := count(b, 1)
	for range topics {
		var name, n uint64
		if name, b, ok = count(b, 1); !ok {
			break
		}
		x := &topic{name: zone.Topic(b[:name]), byKey: map[[16]byte]uint32{}}
		if n, b, ok = count(b[name:], entryBytes); !ok {
			break
		}
		if len(t.topics) > 0 && t.topics[len(t.topics)-1].name >= x.name {
			ok = false
			break
		}
		for range n {
			x.push(parseEntry(b))
			b = b[entryBytes:]
		}
		t.topics = append(t.topics, x)
		t.total += x.n
	}
	if !ok {
		return nil, nil, ErrSnapshot
	}
	return t, b, nil
}

// count reads a count of things that take at least size bytes each.
func count(b []byte, size uint64) (n uint64, rest []byte, ok bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used)/size {
		return 0, nil, false
	}
	return n, b[used:], true
}

func parseEntry(b []byte) (e entry) {
	le := binary.LittleEndian
	copy(e.key[:], b)
	e.until = int64(le.Uint64(b[16:]))
	e.content = le.Uint64(b[24:])
	e.place = Place{Offset: le.Uint64(b[32:]), Extra: le.Uint64(b[40:]), Queue: le.Uint16(b[48:]), Flags: b[50]}
	return e
}
