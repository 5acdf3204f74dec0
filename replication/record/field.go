package record

import "encoding/binary"

// A field head is a u32: tag in the lower 8 bits, length in the upper 24.
const (
	fieldHeadLen = 4
	tagRequired  = 128 // tags from here on must be known to the reader
)

func fieldLen(n int) int {
	if n == 0 {
		return 0
	}
	return fieldHeadLen + n
}

func appendField[S ~string | ~[]byte](dst []byte, tag uint8, value S) []byte {
	if len(value) == 0 {
		return dst
	}
	dst = appendFieldHead(dst, tag, len(value))
	return append(dst, value...)
}

func appendFieldHead(dst []byte, tag uint8, n int) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(n)<<8|uint32(tag))
}

func appendShort[S ~string](dst []byte, s S) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}

// appendList appends a field of short strings.
func appendList[S ~string](dst []byte, tag uint8, list []S) []byte {
	if len(list) == 0 {
		return dst
	}
	dst = appendFieldHead(dst, tag, listLen(list))
	for _, s := range list {
		dst = appendShort(dst, s)
	}
	return dst
}

func listLen[S ~string](list []S) int {
	n := 0
	for _, s := range list {
		n += 2 + len(s)
	}
	return n
}

// span is where a field's value stands in the encoded bytes.
type span struct{ off, len uint32 }

func (s span) of(b []byte) []byte { return b[s.off : s.off+s.len : s.off+s.len] }

// parseFields fills spans by tag (index 0 is unused) from the fields in
// b[from:to]. It checks lengths, order and required tags.
func parseFields(b []byte, from, to int, spans []span) error {
	last := uint8(0)
	for at := from; at < to; {
		if to-at < fieldHeadLen {
			return &FormatError{Offset: at, What: "field head cut short"}
		}
		head := binary.LittleEndian.Uint32(b[at:])
		tag, n := uint8(head), int(head>>8)
		switch {
		case tag <= last:
			return &FormatError{Offset: at, What: "fields out of order"}
		case n > to-at-fieldHeadLen:
			return &FormatError{Offset: at, What: "field passes the end of the header"}
		case int(tag) < len(spans):
			spans[tag] = span{off: uint32(at + fieldHeadLen), len: uint32(n)}
		case tag >= tagRequired:
			return &UnsupportedError{What: "field", Value: uint32(tag)}
		}
		last = tag
		at += fieldHeadLen + n
	}
	return nil
}

// checkList checks a field of short strings.
func checkList(b []byte, s span) error {
	for v, at := s.of(b), 0; at < len(v); {
		if len(v)-at < 2 {
			return &FormatError{Offset: int(s.off) + at, What: "list item cut short"}
		}
		at += 2 + int(binary.LittleEndian.Uint16(v[at:]))
		if at > len(v) {
			return &FormatError{Offset: int(s.off), What: "list item passes the end of its field"}
		}
	}
	return nil
}

// eachShort calls fn for every item of a list that checkList accepted.
func eachShort(v []byte, fn func(item []byte) bool) {
	for len(v) > 0 {
		n := 2 + int(binary.LittleEndian.Uint16(v))
		if !fn(v[2:n:n]) {
			return
		}
		v = v[n:]
	}
}

// countShort returns the number of items of a checked list.
func countShort(v []byte) int {
	count := 0
	for len(v) > 0 {
		v = v[2+int(binary.LittleEndian.Uint16(v)):]
		count++
	}
	return count
}

// checkProperties checks the properties field.
func checkProperties(b []byte, s span) error {
	for v, at := s.of(b), 0; at < len(v); {
		if len(v)-at < 2 {
			return &FormatError{Offset: int(s.off) + at, What: "property key cut short"}
		}
		at += 2 + int(binary.LittleEndian.Uint16(v[at:]))
		if at > len(v) || len(v)-at < 4 {
			return &FormatError{Offset: int(s.off), What: "property value cut short"}
		}
		n := binary.LittleEndian.Uint32(v[at:])
		at += 4
		if uint64(n) > uint64(len(v)-at) {
			return &FormatError{Offset: int(s.off) + at, What: "property passes the end of its field"}
		}
		at += int(n)
	}
	return nil
}
