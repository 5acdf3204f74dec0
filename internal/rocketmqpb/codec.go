package rocketmqpb

import (
	"fmt"
	"math/bits"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Codec encodes and decodes for gRPC as its own codec does, cheaper: buffers are
// reused without being cleared, and the requests that carry most of the bytes
// are decoded without copying their bodies. It is safe for concurrent use.
var Codec encoding.CodecV2 = codec{}

type codec struct {
	admit func(m proto.Message, weight int64) bool // nil admits all
}

// NewCodec returns a Codec that asks before it decodes a message into m whether there
// is room for it. weight is about what it takes then, in bytes, which can be hundreds
// of times its size on the wire. What is not admitted stays empty, without an error;
// small messages are not asked about: those of calls that wait when they are small once
// they are decoded, others when they are small on the wire. If decoding fails, it asks again with weight 0.
func NewCodec(admit func(m proto.Message, weight int64) bool) encoding.CodecV2 {
	return codec{admit: admit}
}

// Name is that of gRPC's own codec: the bytes are the same.
func (codec) Name() string { return "proto" }

// Marshal encodes a message into a reused buffer.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	if o, ok := v.(*outgoing); ok {
		return o.box.encode(o.Message)
	}
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("rocketmqpb: %T is no message", v)
	}
	size, opts := proto.Size(m), proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) { // gRPC would not give the buffer back
		b, err := opts.MarshalAppend(make([]byte, 0, size), m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	buf := wireBuffers.Get(size)
	out, err := opts.MarshalAppend((*buf)[:0], m)
	if err != nil {
		wireBuffers.Put(buf)
		return nil, err
	}
	if cap(out) != cap(*buf) { // the message was larger than its size said
		return mem.BufferSlice{mem.SliceBuffer(out)}, nil
	}
	*buf = out
	return mem.BufferSlice{mem.NewBuffer(buf, wireBuffers)}, nil
}

// Unmarshal decodes a message. The bodies of a SendMessageRequest share one
// buffer, which lives as long as any of them.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("rocketmqpb: %T is no message", v)
	}
	if req, ok := v.(*SendMessageRequest); ok {
		return c.decode(data.Materialize(), req)
	}
	buf := data.MaterializeToBuffer(wireBuffers)
	defer buf.Free()
	return c.decode(buf.ReadOnlyData(), m)
}

// decode decodes a message for which there is room.
func (c codec) decode(b []byte, m proto.Message) error {
	weight := int64(0)
	if c.admit != nil && (len(b) > light || waits(m)) {
		weight = weigh(m, b)
	}
	asks := weight > light
	if asks && !c.admit(m, weight) {
		return nil
	}
	if req, ok := m.(*SendMessageRequest); ok && decodeSend(b, req) {
		return nil
	}
	err := proto.Unmarshal(b, m)
	if err != nil && asks {
		c.admit(m, 0)
	}
	return err
}

// Sizes of the pooled buffers, as powers of two. gRPC does not give smaller ones
// back, larger ones are rare and would be held for nothing.
const (
	leastBuffer = 11
	mostBuffer  = 23
)

// bufferPool has a pool for each power of two, so that a buffer is at most twice
// as large as asked. Its buffers hold old bytes: they are for whoever writes all
// that it reads.
type bufferPool struct {
	pools [mostBuffer - leastBuffer + 1]sync.Pool // of *[]byte
}

// wireBuffers holds no state between uses.
var wireBuffers = new(bufferPool)

// Get implements mem.BufferPool.
func (p *bufferPool) Get(n int) *[]byte {
	class := max(bits.Len(uint(max(n, 1)-1)), leastBuffer) - leastBuffer
	if class >= len(p.pools) {
		b := make([]byte, n)
		return &b
	}
	if b, ok := p.pools[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(class+leastBuffer))
	return &b
}

// Put implements mem.BufferPool.
func (p *bufferPool) Put(b *[]byte) {
	class := bits.Len(uint(cap(*b))) - 1 - leastBuffer
	if class < 0 || class >= len(p.pools) || cap(*b) != 1<<(class+leastBuffer) {
		return
	}
	p.pools[class].Put(b)
}
