package wire

import (
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Want begins a session that reads landings of a topic under a durable
// subscription.
//
//	subscription, topic (texts), incarnation (8), offset (8), credit
type Want struct {
	Subscription zone.ConsumerGroup
	Topic        zone.Topic
	Incarnation  record.Incarnation // of the landing group that Offset belongs to; 0 = unknown
	Offset       uint64             // first offset wanted
	Credit       Credit             // offsets and bytes that may be sent
}

// Append appends the payload to dst.
func (w *Want) Append(dst []byte) []byte {
	dst = appendText(dst, string(w.Subscription))
	dst = appendText(dst, string(w.Topic))
	dst = le.AppendUint64(dst, uint64(w.Incarnation))
	dst = le.AppendUint64(dst, w.Offset)
	return appendCredit(dst, w.Credit)
}

// ParseWant parses a payload. It keeps no reference to b.
func ParseWant(b []byte) (Want, error) {
	r := reader{typ: TypeWant, b: b}
	w := Want{
		Subscription: zone.ConsumerGroup(r.name("subscription", "")), Topic: zone.Topic(r.name("topic", "")),
		Incarnation: record.Incarnation(r.u64("incarnation")), Offset: r.u64("offset"), Credit: r.credit(),
	}
	return w, r.done()
}

// Found answers Want.
//
//	group (text), incarnation (8), first (8), next (8), head (8)
type Found struct {
	Group       zone.Group
	Incarnation record.Incarnation
	First       uint64 // lowest offset that can still be read
	Next        uint64 // offset that will be sent first
	Head        uint64 // offset after the newest
}

// Append appends the payload to dst.
func (f *Found) Append(dst []byte) []byte {
	dst = appendText(dst, string(f.Group))
	dst = le.AppendUint64(dst, uint64(f.Incarnation))
	dst = le.AppendUint64(dst, f.First)
	dst = le.AppendUint64(dst, f.Next)
	return le.AppendUint64(dst, f.Head)
}

// ParseFound parses a payload. It keeps no reference to b.
func ParseFound(b []byte) (Found, error) {
	r := reader{typ: TypeFound, b: b}
	f := Found{
		Group: zone.Group(r.name("group", "")), Incarnation: record.Incarnation(r.u64("incarnation")),
		First: r.u64("first"), Next: r.u64("next"), Head: r.u64("head"),
	}
	return f, r.done()
}

// Landed carries landings of a topic, in order of their offsets and without
// holes.
//
//	first (8), count (4), codec (1), dictionary (4), raw size (4), data (blob)
type Landed struct {
	First   uint64 // offset of the first landing
	Count   uint32 // 1 to MaxCount
	Codec   Codec
	RawSize uint32 // bytes of the data once decompressed
	// Data is a series of items (see AppendItem), two a landing: envelope and
	// record, compressed as a whole. A record that was published in this very
	// group has an empty envelope.
	Data []byte
}

// Append appends the payload to dst.
func (l *Landed) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, l.First)
	dst = le.AppendUint32(dst, l.Count)
	dst = append(dst, byte(l.Codec))
	dst = le.AppendUint32(dst, 0)
	dst = le.AppendUint32(dst, l.RawSize)
	return appendBlob(dst, l.Data)
}

// ParseLanded parses a payload. Data is a part of b, not a copy.
func ParseLanded(b []byte) (Landed, error) {
	r := reader{typ: TypeLanded, b: b}
	l := Landed{First: r.u64("first"), Count: r.u32("count")}
	if l.Count == 0 || l.Count > MaxCount || l.First+uint64(l.Count) < l.First {
		r.fail("count", errRange)
	}
	var dictionary uint32
	l.Codec, dictionary, l.RawSize, l.Data = r.data()
	if dictionary != 0 && r.err == nil {
		r.fail("dictionary", errUnknown) // a reader of landings has none
		r.err.Code = CodeUnsupported
	}
	return l, r.done()
}

// Applied moves the reader's durable subscription and renews its credit.
//
//	offset (8), credit
type Applied struct {
	Offset uint64 // everything below is applied
	Credit Credit
}

// Append appends the payload to dst.
func (a *Applied) Append(dst []byte) []byte {
	return appendCredit(le.AppendUint64(dst, a.Offset), a.Credit)
}

// ParseApplied parses a payload.
func ParseApplied(b []byte) (Applied, error) {
	r := reader{typ: TypeApplied, b: b}
	a := Applied{Offset: r.u64("offset"), Credit: r.credit()}
	return a, r.done()
}
