package rocketmq

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// A replica reads what the master answers as fast as it comes, so the master does not see
// whether the client reads. What the client has not read counts here, as it does at the
// master (answers.go): gRPC takes a message or two of each call from the forwarder,
// however large, and a connection has thousands of calls.

// counted is a buffer of an answer that counts for its client's connection until gRPC
// has written it, or has given up to. It implements mem.BufferPool for that one buffer.
type counted struct {
	of   mem.Buffer
	link *link
}

// Get implements mem.BufferPool; a buffer in use is not asked for another one.
func (c *counted) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool.
func (c *counted) Put(b *[]byte) {
	c.link.count(-len(*b))
	c.of.Free()
}

// takeAnswer has an answer count for the connection, if there is room for it; else it
// frees it. Small ones do not count: they are bounded by the number of calls.
func (l *link) takeAnswer(x *frame) error {
	if l == nil {
		return nil // of a listener that is not the forwarder's own
	}
	size := 0
	for _, b := range x.data {
		if n := b.Len(); !mem.IsBelowBufferPoolingThreshold(n) { // gRPC tells of no others
			size += n
		}
	}
	if size < least {
		return nil
	}
	if !l.take(int64(size)) {
		x.data.Free()
		return status.Error(codes.ResourceExhausted, "the client has not read what it was answered: read that first")
	}
	for i, b := range x.data {
		if data := b.ReadOnlyData(); !mem.IsBelowBufferPoolingThreshold(len(data)) {
			data = data[:len(data):len(data)]
			x.data[i] = mem.NewBuffer(&data, &counted{of: b, link: l})
		}
	}
	return nil
}

// sweepLoop closes connections that read nothing, until the forwarder stops.
func (f *Forwarder) sweepLoop() {
	f.answers.sweep(f.stopping.Done(), func(l *link) {
		f.o.Logger.Debug("connection closed that reads no answers", "peer", l.String())
	})
}
