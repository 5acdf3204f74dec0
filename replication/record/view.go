package record

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// View reads the fields of an encoded record in place. It is a value that
// points into the bytes given to Parse: neither those bytes nor any slice that
// an accessor returns may be changed, and the view is valid as long as the
// bytes are. It is safe for concurrent use. The zero View has no fields to
// read: only the result of a successful Parse may be used.
type View struct {
	b      []byte
	fields [tagEnd]span
}

// Parse checks an encoded record and returns a view of it. b must be exactly
// one record. It does not read the body (see Verify) and does not allocate
// unless it fails.
//
// Errors: *FormatError, *ChecksumError (header), *UnsupportedError (a newer
// version, a required flag or field, or a codec that this version lacks).
func Parse(b []byte) (View, error) {
	if len(b) < fixedLen {
		return View{}, &FormatError{Offset: len(b), What: "shorter than the fixed header"}
	}
	if b[offVersion] != Version {
		return View{}, &UnsupportedError{What: "version", Value: uint32(b[offVersion])}
	}
	total, header := binary.LittleEndian.Uint32(b[offTotal:]), binary.LittleEndian.Uint32(b[offHeader:])
	switch {
	case total > MaxRecord || uint64(total) != uint64(len(b)):
		return View{}, &FormatError{Offset: offTotal, What: "total length differs from the bytes given"}
	case header < fixedLen || header > total || header > MaxHeader:
		return View{}, &FormatError{Offset: offHeader, What: "header length out of range"}
	}
	if want, got := binary.LittleEndian.Uint32(b[offHeaderSum:]), headerSum(b, int(header)); want != got {
		return View{}, &ChecksumError{Part: "header", Want: want, Got: got}
	}
	flags := Flags(binary.LittleEndian.Uint16(b[offFlags:]))
	switch {
	case flags&requiredFlags&^knownFlags != 0:
		return View{}, &UnsupportedError{What: "flags", Value: uint32(flags & requiredFlags &^ knownFlags)}
	case b[offCodec] != 0:
		return View{}, &UnsupportedError{What: "codec", Value: uint32(b[offCodec])}
	case b[offType] == 0:
		return View{}, &FormatError{Offset: offType, What: "type 0"}
	case b[offChannel] > 1:
		return View{}, &FormatError{Offset: offChannel, What: "channel is neither 0 nor 1"}
	}
	v := View{b: b}
	if err := parseFields(b, fixedLen, int(header), v.fields[:]); err != nil {
		return View{}, err
	}
	if err := checkList(b, v.fields[tagResidency]); err != nil {
		return View{}, err
	}
	if err := checkList(b, v.fields[tagKeys]); err != nil {
		return View{}, err
	}
	if err := checkProperties(b, v.fields[tagProperties]); err != nil {
		return View{}, err
	}
	if err := checkOnce(v.fields[tagOnce]); err != nil {
		return View{}, err
	}
	if err := checkAgain(b, v.fields[tagAgain]); err != nil {
		return View{}, err
	}
	return v, nil
}

// Verify checks the body against its checksum: *ChecksumError.
func (v View) Verify() error {
	if want, got := v.BodyChecksum(), crc32.Checksum(v.Body(), castagnoli); want != got {
		return &ChecksumError{Part: "body", Want: want, Got: got}
	}
	return nil
}

func (v *View) field(tag int) []byte { return v.fields[tag].of(v.b) }
func (v *View) u16(off int) uint16   { return binary.LittleEndian.Uint16(v.b[off:]) }
func (v *View) u32(off int) uint32   { return binary.LittleEndian.Uint32(v.b[off:]) }
func (v *View) u64(off int) uint64   { return binary.LittleEndian.Uint64(v.b[off:]) }

// Bytes returns the whole encoded record.
func (v View) Bytes() []byte { return v.b }

// HeaderChecksum names the content of a stamped record; see the package comment.
func (v View) HeaderChecksum() uint32 { return v.u32(offHeaderSum) }

// BodyChecksum is the CRC32C that the body had when it was encoded.
func (v View) BodyChecksum() uint32 { return v.u32(offBodySum) }

// Type is never 0 but may be one that this version does not know.
func (v View) Type() Type { return Type(v.b[offType]) }

// Flags returns all flags, unknown optional ones included.
func (v View) Flags() Flags { return Flags(v.u16(offFlags)) }

// Group is the broker group that first appended the record.
func (v View) Group() []byte { return v.field(tagGroup) }

// Incarnation is part of the original identity; 0 before Stamp.
func (v View) Incarnation() Incarnation { return Incarnation(v.u64(offIncarnation)) }

// Epoch is the lineage epoch of the original identity; 0 before Stamp.
func (v View) Epoch() uint64 { return v.u64(offEpoch) }

// Position is the position of the original identity; 0 before Stamp.
func (v View) Position() Position { return Position(v.u64(offPosition)) }

// Identity returns the original identity. It allocates.
func (v View) Identity() Identity {
	return Identity{Group: zone.Group(v.Group()), Incarnation: v.Incarnation(), Epoch: v.Epoch(), Position: v.Position()}
}

// Topic is empty for records that belong to no topic.
func (v View) Topic() []byte { return v.field(tagTopic) }

// Queue is the queue chosen at the origin.
func (v View) Queue() uint16 { return v.u16(offQueue) }

// Kind is the message kind of the topic.
func (v View) Kind() zone.MessageKind { return zone.MessageKind(v.b[offKind]) }

// Class is the priority class.
func (v View) Class() zone.Class { return zone.Class(v.b[offClass]) }

// Durability is what the acknowledgement promised.
func (v View) Durability() zone.Durability { return zone.Durability(v.b[offDurability]) }

// Shard is NoShard when the route has none.
func (v View) Shard() uint32 { return v.u32(offShard) }

// Slot is below zone.Slots in records of this project's encoders; bytes from
// outside may hold any value.
func (v View) Slot() zone.Slot { return zone.Slot(v.u16(offSlot)) }

// GroupHash is the hash of the message group; 0 when there is none.
func (v View) GroupHash() uint64 { return v.u64(offGroupHash) }

// Target is the flow's destination: a broker group, or a channel when Channel
// is true; empty for a record that stays in its group.
func (v View) Target() []byte { return v.field(tagTarget) }

// Channel says what Target is.
func (v View) Channel() bool { return v.b[offChannel] != 0 }

// Lane is the lane of the flow.
func (v View) Lane() uint8 { return v.b[offLane] }

// RouteEpoch is the epoch of the topology that resolved the record.
func (v View) RouteEpoch() zone.Epoch {
	return zone.Epoch{Term: v.u64(offRouteTerm), Number: v.u64(offRouteNumber)}
}

// Residency calls fn for each city that the record may enter until fn returns
// false. No call means every city.
func (v View) Residency(fn func(city []byte) bool) { eachShort(v.field(tagResidency), fn) }

// Unrestricted reports that the record may enter every city.
func (v View) Unrestricted() bool { return v.fields[tagResidency].len == 0 }

// MayEnter reports whether the residency allows the city.
func (v View) MayEnter(city zone.City) bool {
	if v.Unrestricted() {
		return true
	}
	for list := v.field(tagResidency); len(list) > 0; {
		n := 2 + int(binary.LittleEndian.Uint16(list))
		if string(list[2:n]) == string(city) {
			return true
		}
		list = list[n:]
	}
	return false
}

// Born is the client's clock; the zero time when the client sent none.
func (v View) Born() time.Time { return getTime(v.b[offBorn:]) }

// Stored is the origin's clock.
func (v View) Stored() time.Time { return getTime(v.b[offStored:]) }

// DeliverAt is zero for "at once".
func (v View) DeliverAt() time.Time { return getTime(v.b[offDeliver:]) }

// ExpireAt is zero for "never".
func (v View) ExpireAt() time.Time { return getTime(v.b[offExpire:]) }

// MessageID is the client's message id.
func (v View) MessageID() []byte { return v.field(tagMessageID) }

// Tag is the message's tag.
func (v View) Tag() []byte { return v.field(tagTag) }

// Keys calls fn for each key in order until fn returns false.
func (v View) Keys(fn func(key []byte) bool) { eachShort(v.field(tagKeys), fn) }

// MessageGroup is the message group.
func (v View) MessageGroup() []byte { return v.field(tagMessageGroup) }

// Attempt is the publish attempt.
func (v View) Attempt() uint32 { return v.u32(offAttempt) }

// TraceContext is the W3C traceparent as the client sent it.
func (v View) TraceContext() []byte { return v.field(tagTrace) }

// BornHost is the client's host as it told.
func (v View) BornHost() []byte { return v.field(tagBornHost) }

// Encoding is how the client encoded the body.
func (v View) Encoding() Encoding { return Encoding(v.b[offEncoding]) }

// Digest returns the client's digest of the body: type (0 = none) and text.
func (v View) Digest() (kind uint8, checksum []byte) {
	if f := v.field(tagDigest); len(f) > 0 {
		return f[0], f[1:]
	}
	return 0, nil
}

// Priority is the message priority.
func (v View) Priority() int32 { return int32(v.u32(offPriority)) }

// Properties calls fn for each user property in order until fn returns false.
func (v View) Properties(fn func(key, value []byte) bool) {
	for p := v.field(tagProperties); len(p) > 0; {
		key, value, rest := nextProperty(p)
		if !fn(key, value) {
			return
		}
		p = rest
	}
}

// Property returns the value of the first property with the key.
func (v View) Property(key string) (value []byte, ok bool) {
	for p := v.field(tagProperties); len(p) > 0; {
		k, val, rest := nextProperty(p)
		if string(k) == key {
			return val, true
		}
		p = rest
	}
	return nil, false
}

func nextProperty(p []byte) (key, value, rest []byte) {
	k := 2 + int(binary.LittleEndian.Uint16(p))
	n := k + 4 + int(binary.LittleEndian.Uint32(p[k:]))
	return p[2:k:k], p[k+4 : n : n], p[n:]
}

// Cause is what a dead letter or a re-route settles; package broker encodes it.
func (v View) Cause() []byte { return v.field(tagCause) }

// Body is the body as the client sent it.
func (v View) Body() []byte { return v.b[v.u32(offHeader):] }

// Equal reports whether both views show the same bytes.
func (v View) Equal(o View) bool { return bytes.Equal(v.b, o.b) }
