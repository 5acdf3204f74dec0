package record

import (
	"encoding/binary"
	"time"
)

// Once has the group that stores a record let it count once: another record of the
// topic with the same key, stored less than Window after the first one, is not
// another message. Elsewhere it means nothing.
type Once struct {
	Window  time.Duration // whole milliseconds; 0 = the record may come again
	Key     [16]byte      // stands for the client's message id
	Content uint64        // stands for everything else that makes two messages the same
}

// onceLen is the length of the field: window in milliseconds u64, key, content u64.
const onceLen = 8 + 16 + 8

func (o *Once) len() int {
	if o.Window == 0 {
		return 0
	}
	return fieldHeadLen + onceLen
}

func (o *Once) append(dst []byte) []byte {
	if o.Window == 0 {
		return dst
	}
	dst = appendFieldHead(dst, tagOnce, onceLen)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(o.Window.Milliseconds()))
	dst = append(dst, o.Key[:]...)
	return binary.LittleEndian.AppendUint64(dst, o.Content)
}

// checkOnce checks the field; a later version's may be longer.
func checkOnce(s span) error {
	if s.len > 0 && s.len < onceLen {
		return &FormatError{Offset: int(s.off), What: "once field cut short"}
	}
	return nil
}

// Once returns the zero value when the record may come again. It does not
// allocate.
func (v *View) Once() (o Once) {
	b := v.field(tagOnce)
	if len(b) < onceLen {
		return o
	}
	const most = uint64(1<<63-1) / uint64(time.Millisecond)
	o.Window = time.Duration(min(binary.LittleEndian.Uint64(b), most)) * time.Millisecond
	copy(o.Key[:], b[8:])
	o.Content = binary.LittleEndian.Uint64(b[24:])
	return o
}
