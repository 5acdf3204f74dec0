package rocketmqpb

import (
	"sync"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What the parts of a decoded message take besides their bytes, about; bytes.
const (
	textCost    = 32 // a string: its header, and what the allocator rounds up
	messageCost = 64 // a message, with its place in a list or map
	fieldCost   = 16 // each field that its type has, set or not
)

// light is the size of encoded messages below which nobody asks what they weigh: they
// are gone before they add up. Those of calls that wait are not, and tens of thousands of
// these may wait: light is what they may weigh uncounted.
const light = 4 << 10

// waits reports whether a message is the request of a call that may wait for long, which
// holds it meanwhile.
func waits(m proto.Message) bool {
	switch m.(type) {
	case *ReceiveMessageRequest, *PullMessageRequest:
		return true
	}
	return false
}

// weigh returns about how many bytes of memory the encoded message takes once it is
// decoded. An empty part takes two bytes on the wire and may be hundreds of them
// afterwards. Bytes that are no message weigh what was decoded of them.
func weigh(m proto.Message, b []byte) int64 {
	return int64(len(b)) + planOf(m.ProtoReflect().Descriptor()).weigh(b)
}

// plan says what the fields of a message type cost, by their numbers.
type plan struct {
	own   int64   // of one message
	parts []*plan // nil: no message
	texts []bool  // a string or bytes
}

// plans are those made before, by the full names of their types.
var plans sync.Map // of protoreflect.FullName to *plan

// planOf makes the plan of a type once. No type of the protocol contains itself.
func planOf(d protoreflect.MessageDescriptor) *plan {
	if p, ok := plans.Load(d.FullName()); ok {
		return p.(*plan)
	}
	fields := d.Fields()
	most := protoreflect.FieldNumber(0)
	for i := range fields.Len() {
		most = max(most, fields.Get(i).Number())
	}
	p := &plan{own: messageCost + int64(fields.Len())*fieldCost, parts: make([]*plan, most+1), texts: make([]bool, most+1)}
	if d.FullName() == (*Message)(nil).ProtoReflect().Descriptor().FullName() {
		p.own = int64(unsafe.Sizeof(sent{})) // decodeSend has all of it in one place
	}
	for i := range fields.Len() {
		switch f := fields.Get(i); f.Kind() {
		case protoreflect.MessageKind:
			p.parts[f.Number()] = planOf(f.Message())
		case protoreflect.StringKind, protoreflect.BytesKind:
			p.texts[f.Number()] = true
		}
	}
	plans.Store(d.FullName(), p)
	return p
}

// weigh returns what the fields of a message cost besides their bytes.
func (p *plan) weigh(b []byte) int64 {
	total := int64(0)
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return total
		}
		b = b[n:]
		if typ != protowire.BytesType || int(num) >= len(p.parts) {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return total
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return total
		}
		b = b[n:]
		switch part := p.parts[num]; {
		case part != nil:
			total += part.own + part.weigh(v)
		case p.texts[num]:
			total += textCost
		}
	}
	return total
}
