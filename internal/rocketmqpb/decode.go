package rocketmqpb

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Numbers of the fields that decodeSend knows.
const (
	requestMessages = 1

	messageTopic      = 1
	messageProperties = 2
	messageSystem     = 3
	messageBody       = 4

	resourceNamespace = 1
	resourceName      = 2

	digestType     = 1
	digestChecksum = 2

	systemTag      = 1
	systemKeys     = 2
	systemID       = 3
	systemDigest   = 4
	systemEncoding = 5
	systemType     = 6
	systemBorn     = 7
	systemHost     = 8
	systemQueue    = 13
	systemGroup    = 17
	systemTrace    = 18

	timeSeconds = 1
	timeNanos   = 2
)

// decodeSend decodes what clients send: the request that arrives for every
// message. Bodies point into b, and all other text of a message is one string.
// It is false, with req in any state, for whatever is not as clients encode it
// (fields that it does not know, a field twice, bad UTF-8): proto.Unmarshal
// decides then. What it accepts, it decodes as proto.Unmarshal does.
func decodeSend(b []byte, req *SendMessageRequest) bool {
	n := 0
	for c := (cursor{b: b, end: len(b)}); c.at < c.end; n++ {
		if num, typ := c.tag(); num != requestMessages || typ != protowire.BytesType {
			return false
		}
		if c.skip(); c.bad {
			return false
		}
	}
	slab := make([]sent, n)
	req.Messages = make([]*Message, n)
	c := cursor{b: b, end: len(b)}
	for i := range slab {
		c.tag()
		from, to := c.field()
		var before *Message
		if i > 0 {
			before = &slab[i-1].message
		}
		if !slab[i].decode(b[from:to:to], before) {
			return false
		}
		req.Messages[i] = &slab[i].message
	}
	return true
}

// sent is a message with all that usually belongs to it, so that the messages of
// a request are one allocation.
type sent struct {
	message           Message
	system            SystemProperties
	born              timestamppb.Timestamp
	tag, group, trace string
}

// decode decodes one message. before is the one before it in the request, whose
// topic it shares when it is the same.
func (s *sent) decode(b []byte, before *Message) bool {
	m := &s.message
	c := cursor{b: b, end: len(b)}
	if c.text = text(b); c.bad {
		return false
	}
	for seen := fields(0); c.at < c.end; {
		num, typ := c.tag()
		if typ != protowire.BytesType || (num != messageProperties && !seen.first(num)) {
			return false
		}
		in := c.inner()
		switch num {
		case messageTopic:
			m.Topic = in.resource(before)
		case messageProperties:
			in.property(m)
		case messageSystem:
			m.SystemProperties = &s.system
			s.decodeSystem(&in)
		case messageBody:
			m.Body, in.at = b[in.at:in.end:in.end], in.end
		default:
			return false
		}
		if c.bad || in.bad {
			return false
		}
	}
	return true
}

// text copies what is not the body: everything before it, which is where encoders
// put the other fields, else all.
func text(b []byte) string {
	c := cursor{b: b, end: len(b)}
	for c.at < c.end && !c.bad {
		start := c.at
		num, _ := c.tag()
		c.skip()
		if num == messageBody && c.at == c.end {
			return string(b[:start])
		}
	}
	return string(b)
}

func (s *sent) decodeSystem(c *cursor) {
	sp := &s.system
	for seen := fields(0); c.at < c.end && !c.bad; {
		num, typ := c.tag()
		want := protowire.BytesType
		switch num {
		case systemEncoding, systemType, systemQueue:
			want = protowire.VarintType
		}
		if typ != want || (num != systemKeys && !seen.first(num)) {
			c.bad = true
			return
		}
		switch num {
		case systemTag:
			s.tag = c.string()
			sp.Tag = &s.tag
		case systemKeys:
			sp.Keys = append(sp.Keys, c.string())
		case systemID:
			sp.MessageId = c.string()
		case systemDigest:
			sp.BodyDigest = new(Digest)
			in := c.inner()
			in.digest(sp.BodyDigest)
			c.bad = c.bad || in.bad
		case systemEncoding:
			sp.BodyEncoding = Encoding(c.varint())
		case systemType:
			sp.MessageType = MessageType(c.varint())
		case systemBorn:
			sp.BornTimestamp = &s.born
			in := c.inner()
			in.timestamp(&s.born)
			c.bad = c.bad || in.bad
		case systemHost:
			sp.BornHost = c.string()
		case systemQueue:
			sp.QueueId = int32(c.varint())
		case systemGroup:
			s.group = c.string()
			sp.MessageGroup = &s.group
		case systemTrace:
			s.trace = c.string()
			sp.TraceContext = &s.trace
		default:
			c.bad = true
		}
	}
}

// fields is a set of the field numbers below 64.
type fields uint64

// first adds a number and reports whether it is new. Numbers that the set cannot
// hold never are.
func (f *fields) first(num protowire.Number) bool {
	if num >= 64 || *f&(1<<uint(num)) != 0 {
		return false
	}
	*f |= 1 << uint(num)
	return true
}

// cursor reads fields one after the other. After a fault it stays bad, and what
// it returns means nothing.
type cursor struct {
	b       []byte
	text    string // the beginning of b once more; strings are parts of it
	at, end int
	bad     bool
}

func (c *cursor) varint() uint64 {
	v, n := protowire.ConsumeVarint(c.b[c.at:c.end])
	if n < 0 {
		c.bad, c.at = true, c.end
		return 0
	}
	c.at += n
	return v
}

// tag returns number and type of the next field; the number is 0 after a fault.
func (c *cursor) tag() (protowire.Number, protowire.Type) {
	num, typ, n := protowire.ConsumeTag(c.b[c.at:c.end])
	if n < 0 {
		c.bad, c.at = true, c.end
		return 0, -1
	}
	c.at += n
	return num, typ
}

// field returns where the bytes of a field begin and end, and passes over them.
func (c *cursor) field() (from, to int) {
	n := c.varint()
	if c.bad || n > uint64(c.end-c.at) {
		c.bad, c.at = true, c.end
		return c.end, c.end
	}
	from, to = c.at, c.at+int(n)
	c.at = to
	return from, to
}

func (c *cursor) skip() { c.field() }

// inner returns a cursor over the message in the next field.
func (c *cursor) inner() cursor {
	from, to := c.field()
	return cursor{b: c.b, text: c.text, at: from, end: to}
}

func (c *cursor) string() string {
	from, to := c.field()
	if c.bad || to > len(c.text) || !utf8.ValidString(c.text[from:to]) {
		c.bad = true
		return ""
	}
	return c.text[from:to]
}

// strings reads a message of nothing but the two strings with the numbers a and b.
func (c *cursor) strings(a, b protowire.Number) (first, second string) {
	for seen := fields(0); c.at < c.end && !c.bad; {
		num, typ := c.tag()
		if typ != protowire.BytesType || !seen.first(num) {
			c.bad = true
			return
		}
		switch num {
		case a:
			first = c.string()
		case b:
			second = c.string()
		default:
			c.bad = true
		}
	}
	return first, second
}

func (c *cursor) resource(before *Message) *Resource {
	ns, name := c.strings(resourceNamespace, resourceName)
	if t := before.GetTopic(); t != nil && t.Name == name && t.ResourceNamespace == ns {
		return t
	}
	return &Resource{ResourceNamespace: ns, Name: name}
}

func (c *cursor) property(m *Message) {
	key, value := c.strings(1, 2)
	if m.UserProperties == nil {
		m.UserProperties = make(map[string]string)
	}
	m.UserProperties[key] = value
}

func (c *cursor) digest(d *Digest) {
	for seen := fields(0); c.at < c.end && !c.bad; {
		num, typ := c.tag()
		switch {
		case !seen.first(num):
			c.bad = true
		case num == digestType && typ == protowire.VarintType:
			d.Type = DigestType(c.varint())
		case num == digestChecksum && typ == protowire.BytesType:
			d.Checksum = c.string()
		default:
			c.bad = true
		}
	}
}

func (c *cursor) timestamp(t *timestamppb.Timestamp) {
	for seen := fields(0); c.at < c.end && !c.bad; {
		num, typ := c.tag()
		switch {
		case typ != protowire.VarintType || !seen.first(num):
			c.bad = true
		case num == timeSeconds:
			t.Seconds = int64(c.varint())
		case num == timeNanos:
			t.Nanos = int32(c.varint())
		default:
			c.bad = true
		}
	}
}
