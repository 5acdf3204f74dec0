package rocketmq

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/mqrouter/mqrouter/internal/bounds"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// memory bounds the bytes of requests that the server holds, over all
// connections: what has arrived of requests that are not whole yet, and whole
// sends, and what else is large (weight.go, and headers), until they are answered.
//
//   - A send that begins when three quarters are used, or that does not fit once
//     it is whole, is answered with TOO_MANY_REQUESTS. Acknowledgements and
//     receives go on: they make room.
//   - Each send that is refused so ends the request, of whatever kind, that has been
//     arriving for longest, if that is more than patience, with DEADLINE_EXCEEDED; and
//     when what arrives passes the limit, each frame ends one. A client that falls
//     silent in the middle of a request cannot keep the others out.
//   - One that would be one more than maxReceiving ends some of the address that has
//     most of them, or else those that arrive for longer than patience (cutMost).
//
// So the limit is passed by at most a frame of 16 KiB for each of maxReceiving
// requests. Clients try again after both. Of a Telemetry stream this holds up to its
// first request: afterwards it may be silent for as long as it likes.
type memory struct {
	limit int64         // bytes
	soft  int64         // bytes; no send begins above
	used  atomic.Int64  // bytes
	full  atomic.Uint64 // requests refused or cut off

	most    int  // maxReceiving; tests set less
	anybody bool // every call uses its connection, whoever makes it (idle.go); set before the server runs

	classes [frameClasses]sync.Pool // of *[]byte, by size
	weights sync.Map                // of requests to what they weigh (int64), or tooHeavy

	mu   sync.Mutex
	out  map[weak.Pointer[[]byte]]int64 // guarded by mu: frames in use and their sizes
	line list.List                      // guarded by mu: of *receiving, oldest first
	seen time.Time                      // guarded by mu: when cutMost has looked last
}

// Sizes of frames as powers of two; gRPC takes none above 16 KiB and pools none
// below 1 KiB. Larger buffers, for other uses, are not kept.
const (
	leastFrame   = 10
	frameClasses = 5
)

// maxReceiving is how many requests may be arriving at one time: as many as
// connections by default, each with one that waits for its processor.
const maxReceiving = 1 << 14

// patience is how long a request may take to arrive while others are refused.
const patience = time.Second

func newMemory(limit int64) *memory {
	return &memory{limit: limit, soft: limit / 4 * 3, most: maxReceiving, out: map[weak.Pointer[[]byte]]int64{}}
}

// Usage tells how full it is.
func (m *memory) Usage() bounds.Usage {
	return bounds.Usage{Name: "client.requests", Unit: "By", Depth: m.used.Load(), Limit: m.limit, Full: m.full.Load()}
}

// Get implements mem.BufferPool: a buffer for a frame that is about to be read.
func (m *memory) Get(n int) *[]byte {
	class := max(bits.Len(uint(max(n, 1)-1)), leastFrame) - leastFrame
	var b *[]byte
	size := int64(n)
	if class < len(m.classes) {
		size = 1 << (class + leastFrame)
		b, _ = m.classes[class].Get().(*[]byte)
	}
	if b == nil {
		fresh := make([]byte, size)
		b = &fresh
		// gRPC does not give back what is left of a call that ends early.
		runtime.AddCleanup(b, m.lost, weak.Make(b))
	}
	*b = (*b)[:n]
	m.mu.Lock()
	m.out[weak.Make(b)] = size
	over := m.used.Add(size) > m.limit
	m.mu.Unlock()
	if over {
		m.cutOldest(0)
	}
	return b
}

// Put implements mem.BufferPool.
func (m *memory) Put(b *[]byte) {
	m.lost(weak.Make(b))
	class := bits.Len(uint(cap(*b))) - 1 - leastFrame
	if class >= 0 && class < len(m.classes) && cap(*b) == 1<<(class+leastFrame) {
		m.classes[class].Put(b)
	}
}

// lost forgets a buffer that is in use no more.
func (m *memory) lost(key weak.Pointer[[]byte]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used.Add(-m.out[key])
	delete(m.out, key)
}

// charge takes room for a whole send until release.
func (m *memory) charge(n int64) bool {
	if m.used.Add(n) > m.limit {
		m.used.Add(-n)
		m.full.Add(1)
		return false
	}
	return true
}

func (m *memory) release(n int64) { m.used.Add(-n) }

// receiving is the context of a call whose request is arriving.
type receiving struct {
	context.Context
	cancel context.CancelFunc
	since  time.Time
	link   *link         // its connection; nil = of a listener that is not the server's own
	late   atomic.Bool   // it was cut off
	place  *list.Element // guarded by memory.mu; nil: it is whole, or cut off
	unread func() bool   // guarded by memory.mu; stops waiting for the end of a call that is never read; nil: it was stopped
}

type receivingKey struct{}

// Err implements context.Context. gRPC tells the client what it returns.
func (r *receiving) Err() error {
	err := r.Context.Err()
	if err != nil && r.late.Load() {
		return context.DeadlineExceeded
	}
	return err
}

// Value implements context.Context.
func (r *receiving) Value(key any) any {
	if key == (receivingKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// freeHeaders is what the headers of a call may have without being counted, in bytes:
// clients send some hundred, and a session token at times. With more they count until
// the call ends.
const freeHeaders = 4 << 10

// sizeOfHeaders is what a call's headers hold, about.
func sizeOfHeaders(info *tap.Info) int64 {
	n := int64(0)
	if info == nil {
		return n
	}
	for k, values := range info.Header {
		for _, v := range values {
			n += int64(len(k) + len(v))
		}
	}
	return n
}

// begin is called before a call is read. It gets a context that memory can end, and
// a place in the line that whole takes back.
func (m *memory) begin(ctx context.Context, info *tap.Info) (context.Context, error) {
	if m.anybody {
		used(ctx)
	}
	r := &receiving{since: time.Now()}
	r.link, _ = linkFrom(ctx)
	r.Context, r.cancel = context.WithCancel(ctx)
	m.mu.Lock()
	full := m.line.Len() >= m.most
	m.mu.Unlock()
	if full && !m.cutMost(r) {
		r.cancel()
		m.full.Add(1)
		return nil, status.Errorf(codes.Unavailable, "%d requests are arriving, which is the limit: try again", m.most)
	}
	// The last reason to refuse: gRPC does not end the context of a call that is refused.
	if n := sizeOfHeaders(info); n > freeHeaders {
		if m.used.Load() >= m.soft || !m.charge(n) {
			r.cancel()
			return nil, status.Errorf(codes.ResourceExhausted, "the headers have %d bytes, and there is no room for more than %d now", n, freeHeaders)
		}
		context.AfterFunc(ctx, func() { m.release(n) })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.place = m.line.PushBack(r)
	// A unary call that ends before it was read is never handed over.
	r.unread = context.AfterFunc(ctx, func() { m.whole(r) })
	return r, nil
}

// whole takes a request that has arrived, or failed to, out of the line.
func (m *memory) whole(r *receiving) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.place != nil {
		m.line.Remove(r.place)
		r.place = nil
	}
	if r.unread != nil {
		r.unread()
		r.unread = nil
	}
}

// cutOldest ends the request that has been arriving for longest, if that is at least
// the age, and reports whether it did.
func (m *memory) cutOldest(age time.Duration) bool {
	m.mu.Lock()
	e := m.line.Front()
	if e == nil || time.Since(e.Value.(*receiving).since) < age {
		m.mu.Unlock()
		return false
	}
	r := m.line.Remove(e).(*receiving)
	r.place = nil
	m.mu.Unlock()
	m.full.Add(1)
	r.late.Store(true)
	r.cancel()
	return true
}

// arrived is the interceptor that takes a unary call out of the line: gRPC hands it
// over once it was read.
func (m *memory) arrived(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if r, ok := ctx.Value(receivingKey{}).(*receiving); ok {
		m.whole(r)
		defer r.cancel()
	}
	counts, st := m.look(req)
	if st != nil {
		return refusalOf(req, st), nil
	}
	if counts {
		defer m.settle(req)
	}
	return handler(ctx, req)
}

// arriving is the interceptor that takes a stream out of the line once its first
// request was read.
func (m *memory) arriving(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r, ok := ss.Context().Value(receivingKey{}).(*receiving)
	if !ok {
		return handler(srv, ss)
	}
	// gRPC ends r's parent, and so r, after it has written how the call ended. Ended
	// before that, a reader beside the handler would have gRPC write CANCELED first.
	s := &firstRead{ServerStream: ss, memory: m, read: func() { m.whole(r) }}
	defer s.settle(nil)
	return handler(srv, s)
}

// firstRead tells of the first request that was read, or failed to be, and has the last
// one count.
type firstRead struct {
	grpc.ServerStream
	memory *memory
	read   func()              // nil: it was told; used by the stream's reader only
	last   atomic.Pointer[any] // the last request; nil: none
}

// RecvMsg implements grpc.ServerStream.
func (s *firstRead) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if s.read != nil {
		s.read()
		s.read = nil
	}
	if err != nil {
		s.memory.settle(m) // a request may have been decoded before another one too many
		return err
	}
	counts, st := s.memory.look(m)
	switch {
	case st != nil:
		return errHeavy(st)
	case counts:
		s.keep(m)
	case s.last.Load() != nil:
		s.settle(nil)
	}
	return nil
}

// keep has a request count until the next one, or the end.
func (s *firstRead) keep(m any) { s.settle(&m) }

// settle has the next request count instead of the last one; nil: none.
func (s *firstRead) settle(next *any) {
	if last := s.last.Swap(next); last != nil {
		s.memory.settle(*last)
	}
}

// overhead is what a message takes besides its body and properties, about; bytes.
const overhead = 1 << 10

// sizeOf is what a whole send holds, about.
func sizeOf(msgs []*pb.Message) int64 {
	n := int64(0)
	for _, m := range msgs {
		n += int64(len(m.GetBody())) + overhead
		for k, v := range m.GetUserProperties() {
			n += int64(len(k) + len(v))
		}
	}
	return n
}

// noRoom is the answer to a send for which there is no room.
func (m *memory) noRoom() *pb.Status {
	return refuse(pb.Code_TOO_MANY_REQUESTS, fmt.Sprintf("the broker holds %d bytes of requests, the limit is %d: try again", m.used.Load(), m.limit))
}

// withSend returns the service with SendMessage served by serveSend: gRPC hands a
// unary call over only once it was read.
func withSend(desc grpc.ServiceDesc, s *Server) *grpc.ServiceDesc {
	desc.Methods = slices.DeleteFunc(s.memory.settling(desc.Methods), func(m grpc.MethodDesc) bool { return m.MethodName == sendName })
	desc.Streams = append(slices.Clone(desc.Streams), grpc.StreamDesc{StreamName: sendName, Handler: s.judgeSend})
	return &desc
}

const sendName = "SendMessage"

// judgeSend puts access control before serveSend: gRPC passes no interceptor for a
// stream that is said to be none in either direction.
func (s *Server) judgeSend(srv any, stream grpc.ServerStream) error {
	info := &grpc.StreamServerInfo{FullMethod: pb.MessagingService_SendMessage_FullMethodName}
	judged := s.serveSend
	if s.guard != nil {
		judged = func(srv any, stream grpc.ServerStream) error { return s.stream(srv, stream, info, s.serveSend) }
	}
	if s.sealed() {
		return s.sealedStream(srv, stream, info, judged)
	}
	return judged(srv, stream)
}

// serveSend reads and answers a SendMessage.
func (s *Server) serveSend(_ any, stream grpc.ServerStream) error {
	ctx := stream.Context()
	r, ok := ctx.Value(receivingKey{}).(*receiving)
	if !ok {
		return status.Error(codes.Internal, "the call did not pass the tap")
	}
	defer r.cancel()
	if s.memory.used.Load() >= s.memory.soft {
		s.memory.whole(r)
		s.memory.full.Add(1)
		s.memory.cutOldest(patience)
		return stream.SendMsg(&pb.SendMessageResponse{Status: s.memory.noRoom()})
	}
	l := s.answers.linkOf(ctx)
	if err := s.answers.enter(l); err != nil {
		s.memory.whole(r)
		return err
	}
	req := new(pb.SendMessageRequest)
	err := stream.RecvMsg(req)
	s.memory.whole(r)
	heavy := s.memory.settle(req) // SendMessage counts it from here on
	if call, ok := stream.(*guarded); ok && errors.Is(err, errDenied) {
		return call.answerSend()
	}
	if err != nil {
		return err
	}
	if heavy != nil {
		return stream.SendMsg(&pb.SendMessageResponse{Status: heavy})
	}
	resp, err := s.SendMessage(ctx, req)
	if err != nil {
		return err
	}
	return stream.SendMsg(l.counting(resp))
}
