package rocketmqpb

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Outbox counts the bytes of encoded messages, with what their buffers have besides,
// from their encoding until gRPC has written them, or has given up to. One is made for a call; Of is for one goroutine.
type Outbox struct {
	Count func(delta int) // called from any goroutine; must not block

	out outgoing
}

// outgoing is a message that Codec encodes into a buffer of its Outbox.
type outgoing struct {
	proto.Message
	box *Outbox
}

// Of returns what to send instead of the message, before the next call of Of.
func (o *Outbox) Of(m proto.Message) any {
	o.out = outgoing{m, o}
	return &o.out
}

// Sent returns the message that Of made something else of; nil when it did not.
func Sent(v any) proto.Message {
	if o, ok := v.(*outgoing); ok {
		return o.Message
	}
	return nil
}

// Get implements mem.BufferPool. The buffer is of a size that gRPC gives back.
func (o *Outbox) Get(n int) *[]byte { return wireBuffers.Get(n) }

// Put implements mem.BufferPool.
func (o *Outbox) Put(b *[]byte) {
	o.Count(-cap(*b))
	wireBuffers.Put(b)
}

// encode is Marshal for a message of the outbox.
func (o *Outbox) encode(m proto.Message) (mem.BufferSlice, error) {
	size := proto.Size(m)
	buf := o.Get(size)
	out, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*buf)[:0], m)
	if err != nil {
		wireBuffers.Put(buf)
		return nil, err
	}
	if cap(out) != cap(*buf) { // the message was larger than its size said
		return mem.BufferSlice{mem.SliceBuffer(out)}, nil
	}
	*buf = out
	o.Count(cap(out))
	return mem.BufferSlice{mem.NewBuffer(buf, o)}, nil
}
