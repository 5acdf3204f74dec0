package record

import (
	"encoding/binary"

	"github.com/mqrouter/mqrouter/zone"
)

// Again says where a message stood that its group lost and stores again: in the tail of
// a log that another lineage has replaced. The zero value says that the record is no
// such message.
type Again struct {
	Lineage  LineageID // that the message was written in; 0 = the record is none
	Epoch    uint64    // of that lineage
	Position Position  // of the message there
	// After is one above the position of what was to be offered before it there, or where
	// the tail begins: between the two is nothing to offer.
	After Position
	// Sent is the position there of the record that left on the flow on which this one
	// leaves: the message itself, or the copy that was delivered when it was due. 0 = none did.
	Sent Position
	// Decides says that the record is the commit of a half message that its group kept.
	Decides bool
	// Groups are the consumer groups that had settled the message there.
	Groups []zone.ConsumerGroup
}

// MaxAgainGroups bounds the groups of an Again: bytes of the names, and two for each.
const MaxAgainGroups = 4 << 10

// againLen is the length of the field without groups: lineage, epoch, position, after,
// sent u64 each, flags u8.
const againLen = 5*8 + 1

const againDecides = 1

func (a *Again) len() int {
	if a.Lineage == 0 {
		return 0
	}
	return fieldHeadLen + againLen + listLen(a.Groups)
}

func (a *Again) append(dst []byte) []byte {
	if a.Lineage == 0 {
		return dst
	}
	le := binary.LittleEndian
	dst = appendFieldHead(dst, tagAgain, againLen+listLen(a.Groups))
	dst = le.AppendUint64(dst, uint64(a.Lineage))
	dst = le.AppendUint64(dst, a.Epoch)
	dst = le.AppendUint64(dst, uint64(a.Position))
	dst = le.AppendUint64(dst, uint64(a.After))
	dst = le.AppendUint64(dst, uint64(a.Sent))
	flags := byte(0)
	if a.Decides {
		flags = againDecides
	}
	dst = append(dst, flags)
	for _, g := range a.Groups {
		dst = appendShort(dst, g)
	}
	return dst
}

// checkAgain checks the field.
func checkAgain(b []byte, s span) error {
	switch {
	case s.len == 0:
		return nil
	case s.len < againLen:
		return &FormatError{Offset: int(s.off), What: "again field cut short"}
	}
	return checkList(b, span{off: s.off + againLen, len: s.len - againLen})
}

// IsAgain reports whether Again is not the zero value.
func (v *View) IsAgain() bool { return v.fields[tagAgain].len > 0 }

// Again returns where the message stood before, without its groups. It does not
// allocate.
func (v *View) Again() (a Again) {
	b := v.field(tagAgain)
	if len(b) < againLen {
		return a
	}
	le := binary.LittleEndian
	return Again{Lineage: LineageID(le.Uint64(b)), Epoch: le.Uint64(b[8:]), Position: Position(le.Uint64(b[16:])),
		After: Position(le.Uint64(b[24:])), Sent: Position(le.Uint64(b[32:])), Decides: b[40]&againDecides != 0}
}

// SettledBefore reports whether the consumer group had settled the message where it
// stood before.
func (v *View) SettledBefore(g zone.ConsumerGroup) bool {
	found := false
	eachShort(v.againGroups(), func(item []byte) bool {
		found = string(item) == string(g)
		return !found
	})
	return found
}

func (v *View) againGroups() []byte {
	b := v.field(tagAgain)
	if len(b) < againLen {
		return nil
	}
	return b[againLen:]
}

// decodeAgain is Again with its groups.
func (v *View) decodeAgain() Again {
	a := v.Again()
	a.Groups = shortStrings[zone.ConsumerGroup](v.againGroups())
	return a
}
