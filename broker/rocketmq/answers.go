package rocketmq

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mqrouter/mqrouter/internal/bounds"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

const (
	// sendTime is how long a client may take to read the next message of an answer, or
	// a question about a half message: 4 MiB at 1 Mbit/s. Its call ends then.
	sendTime = 30 * time.Second
	// stillTime is how long a connection may read nothing of its answers: longer than
	// the keepalive, so that a client is silent for other reasons until then.
	stillTime = time.Minute
	// sweepEvery is how often connections are looked at.
	sweepEvery = time.Second
	// heldBack is how much of an answer gRPC takes from its handler although the client
	// reads nothing (its quota of a stream), in bytes.
	heldBack = 64 << 10
)

// answers bounds the bytes of answers that clients have not read, over all connections
// and for each: the records of messages from when they are read until their handler
// ends, and encoded answers until gRPC has written them. A record has room for both.
//
//   - One connection may have a quarter of the limit. Above three quarters of the whole
//     it may have little, so that the rest is left to those who read.
//   - A message that has no room is not read, so nobody has to be given it back; its
//     receive or pull is answered with TOO_MANY_REQUESTS, or with what had room.
//   - A connection that holds twice its share, by other answers, begins no more calls.
//   - A connection of which nothing was read for stillTime is closed. Above three
//     quarters of the limit so is, largest first, one that reads so slowly that stillTime
//     would not do.
//
// So the limit is passed by what calls answer that were let in below it, and by what
// buffers are larger than messages.
type answers struct {
	limit int64         // bytes
	used  atomic.Int64  // bytes
	kept  atomic.Int64  // of used: what is kept to be sent later; bytes
	full  atomic.Uint64 // messages that found no room, calls that were refused
	slow  atomic.Int64  // stillTime, or less in tests; nanoseconds
	young atomic.Int64  // idleFirst, or less in tests; nanoseconds

	mu    sync.Mutex
	last  uint64           // guarded by mu: number of the newest connection
	links map[uint64]*link // guarded by mu: open connections by their numbers
	ended time.Time        // guarded by mu: when it was looked for connections that nobody uses (idle.go)
}

func newAnswers(limit int64) *answers {
	a := &answers{limit: limit, links: map[uint64]*link{}}
	a.slow.Store(int64(stillTime))
	a.young.Store(int64(idleFirst))
	return a
}

// Usage tells how full it is.
func (a *answers) Usage() bounds.Usage {
	return bounds.Usage{Name: "client.unread", Unit: "By", Depth: a.used.Load(), Limit: a.limit, Full: a.full.Load()}
}

// share is what one connection may have: see answers.
func (a *answers) share() int64 {
	if a.used.Load() > a.limit/4*3 {
		return a.limit / 64
	}
	return a.limit / 4
}

// link is a connection of a client, and the address by which its calls find it.
type link struct {
	net.Addr
	from   netip.Addr // the other end's; not valid when it is not known
	number uint64     // from 1; 0 = it is not counted
	close  func() error
	all    *answers
	fellow bool // another member's, which passes a client on; set before the first call
	opened time.Time
	called atomic.Int64 // when its last call began, since it was opened; nanoseconds, 0 = none has
	rests  atomic.Int64 // until when nothing is read from it, since it was opened; nanoseconds, 0 = it never rests

	mu      sync.Mutex
	unread  int64 // bytes; guarded by mu, as is all below
	kept    int64 // of unread: what is not sent yet
	written int64 // bytes of answers that gRPC has written, ever
	streams int   // Telemetry streams
	closed  bool
	resting *atomic.Int64 // those of its address that rest; nil = it is not among them

	before  int64         // of written, at the last sweep; the sweep's
	still   time.Duration // how long nothing was read though something waits; the sweep's
	behind  time.Duration // how long too little was; the sweep's
	pending int64         // of unread; the sweep's
}

// open begins to count for a connection.
func (a *answers) open(c net.Conn, shut func() error) *link {
	l := &link{Addr: c.RemoteAddr(), close: shut, all: a, opened: time.Now()}
	l.from, _ = addressOf(l.String())
	a.mu.Lock()
	a.last++
	l.number = a.last
	a.links[l.number] = l
	a.mu.Unlock()
	return l
}

// shut closes the connection; gRPC sees that and ends its calls.
func (l *link) shut() {
	if l.close != nil {
		_ = l.close() // nothing more is wanted of it
	}
}

// leave ends the counting: what the connection held is given up.
func (l *link) leave() {
	l.all.mu.Lock()
	delete(l.all.links, l.number)
	l.all.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.resting != nil {
		l.resting.Add(-1)
	}
	l.all.used.Add(-l.unread)
	l.all.kept.Add(-l.kept)
	l.unread, l.kept = 0, 0
}

// isOpen reports whether the connection of that number stands.
func (a *answers) isOpen(number uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.links[number] != nil
}

// linkOf returns the connection of a call.
func (a *answers) linkOf(ctx context.Context) *link {
	if l, ok := linkFrom(ctx); ok {
		return l
	}
	return &link{all: a} // of a listener that is not the server's own
}

// linkFrom returns the connection of a call, if a listener of this package has it.
func linkFrom(ctx context.Context) (*link, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	at := p.Addr
	if through, ok := at.(*throughAddr); ok {
		at = through.Addr
	}
	l, ok := at.(*link)
	return l, ok
}

// take takes room for a message that is to be read.
func (l *link) take(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.unread > 0 && l.unread+n > l.all.share() {
		l.all.full.Add(1)
		return false
	}
	if l.all.used.Add(n) > l.all.limit {
		l.all.used.Add(-n)
		l.all.full.Add(1)
		return false
	}
	l.unread += n
	return true
}

// count adds to what is unread, whatever the limit. It implements pb.Outbox.Count.
func (l *link) count(delta int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.unread += int64(delta)
	l.all.used.Add(int64(delta))
	if delta < 0 {
		l.written -= int64(delta)
	}
}

// keep counts what is kept to be sent later; n is negative when it is no more. It reports
// whether there is room: what is kept may have an eighth of the limit, and for one
// connection a part of that, so that it takes little from who receives.
func (l *link) keep(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return true
	case n > 0 && (l.kept+n > l.all.limit/64 || l.all.kept.Load()+n > l.all.limit/8):
		return false
	}
	l.kept += n
	l.unread += n
	l.all.kept.Add(n)
	l.all.used.Add(n)
	return true
}

// reads reports whether the client has so little unread that it may be answered with n
// bytes more.
func (l *link) reads(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	unread := l.unread - l.kept
	if unread == 0 || unread+n <= l.all.share() {
		return true
	}
	l.all.full.Add(1)
	return false
}

// maxTelemetry is how many Telemetry streams one connection may have: clients have one
// connection each, but something between may bring many over one.
const maxTelemetry = 1024

// stream counts a Telemetry stream; false when there are too many.
func (l *link) stream() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams >= maxTelemetry {
		l.all.full.Add(1)
		return false
	}
	l.streams++
	return true
}

func (l *link) streamEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams--
}

// give gives back room of records.
func (l *link) give(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.unread -= n
		l.all.used.Add(-n)
	}
}

// enter refuses a call of a connection that reads no answers; nil lets it.
func (a *answers) enter(l *link) error {
	l.mu.Lock()
	unread := l.unread
	l.mu.Unlock()
	if unread < a.limit/2 {
		return nil
	}
	a.full.Add(1)
	return status.Errorf(codes.ResourceExhausted, "the client has not read %d bytes of answers: read them first", unread)
}

// answer is the room of one call's messages, and counts what is sent of them. It
// implements broker.Room for the call, which is one goroutine at a time.
type answer struct {
	link  *link
	taken int64 // bytes of records; as many are taken for their encoding
	spare int64 // of the latter, what no encoded message has used
	box   pb.Outbox
	owes  atomic.Int64 // bytes that gRPC has taken and not written
	again func()       // gives the client new time to read; nil = it needs none
	stop  func()
}

func (a *answers) begin(ctx context.Context) *answer {
	x := &answer{link: a.linkOf(ctx)}
	x.box.Count = x.count
	return x
}

// Take implements broker.Room.
func (a *answer) Take(n int) bool {
	if !a.link.take(2 * int64(n)) {
		return false
	}
	a.taken += int64(n)
	a.spare += int64(n)
	return true
}

// Give implements broker.Room.
func (a *answer) Give(n int) {
	a.link.give(2 * int64(n))
	a.taken -= int64(n)
	a.spare -= int64(n)
}

// hurry bounds the time in which the client may read each message, unless gRPC takes
// them all from the handler at once. The call ends after that time, and the connection
// when its client does not read even that: gRPC keeps what was sent before the end.
func (a *answer) hurry(s *Server, ctx context.Context) {
	if a.taken <= heldBack/2 { // encoded ones are larger
		return
	}
	a.again, a.stop = s.hurry(ctx, func() {
		time.AfterFunc(time.Duration(s.answers.slow.Load()), func() {
			if a.owes.Load() > 0 {
				a.link.shut()
			}
		})
	})
}

// send sends a message of the answer. It blocks while the client does not read.
func (a *answer) send(stream grpc.ServerStream, m proto.Message) error {
	err := stream.SendMsg(a.box.Of(m))
	if a.again != nil {
		a.again()
	}
	return err
}

// end gives back what the records took. What gRPC has not written goes on to count.
func (a *answer) end() {
	if a.stop != nil {
		a.stop()
	}
	if a.taken > 0 {
		a.link.give(a.taken + a.spare)
		a.taken, a.spare = 0, 0
	}
}

// count is told of encoded messages: of the handler's goroutine when there are more
// bytes, and of any when they are written.
func (a *answer) count(delta int) {
	a.owes.Add(int64(delta))
	if delta > 0 {
		from := min(a.spare, int64(delta))
		a.spare -= from
		delta -= int(from)
	}
	a.link.count(delta)
}

// least is the size below which an answer is not counted, in bytes: a connection can
// have Options.MaxStreams of them.
const least = 1 << 10

// counted is the interceptor that bounds the answers of unary calls.
func (a *answers) counted(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	l := a.linkOf(ctx)
	if err := a.enter(l); err != nil {
		return nil, err
	}
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, err
	}
	return l.counting(resp), nil
}

// entering is the interceptor that refuses streams of a connection that reads nothing.
func (a *answers) entering(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := a.enter(a.linkOf(ss.Context())); err != nil {
		return err
	}
	return handler(srv, ss)
}

// counting returns what to send for an answer.
func (l *link) counting(resp any) any {
	m, ok := resp.(proto.Message)
	if !ok || small(m) {
		return resp
	}
	return (&pb.Outbox{Count: l.count}).Of(m)
}

// small reports whether an answer is below least, cheaply for those of each message.
func small(m proto.Message) bool {
	n := 0
	switch m := m.(type) {
	case *pb.AckMessageResponse:
		for _, e := range m.GetEntries() {
			n += len(e.GetReceiptHandle()) + len(e.GetMessageId()) + len(e.GetStatus().GetMessage())
		}
	case *pb.SendMessageResponse:
		n = len(m.GetEntries()) * 256
	default:
		n = proto.Size(m)
	}
	return n < least
}

// sweepLoop closes connections that read nothing, until the server stops.
func (s *Server) sweepLoop() {
	s.answers.sweep(s.stopping.Done(), func(l *link) {
		s.metrics.refuse("unread")
		s.opts.Logger.Debug("connection closed that reads no answers", "peer", l.String())
	})
}

// sweep closes connections that read nothing until stop is closed, and tells of each.
func (a *answers) sweep(stop <-chan struct{}, tell func(*link)) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			for _, l := range a.stalled(sweepEvery) {
				tell(l)
				l.shut()
			}
		}
	}
}

// stalled looks at all connections once every interval and returns those that are to
// be closed.
func (a *answers) stalled(every time.Duration) []*link {
	a.mu.Lock()
	links := make([]*link, 0, len(a.links))
	for _, l := range a.links {
		links = append(links, l)
	}
	a.mu.Unlock()
	within := time.Duration(a.slow.Load())
	var over, slow []*link
	for _, l := range links {
		switch l.look(every, within); {
		case l.still >= within:
			over = append(over, l)
		case l.behind >= 2*every && l.pending > a.limit/64:
			slow = append(slow, l)
		}
	}
	slices.SortFunc(slow, func(x, y *link) int { return int(min(max(y.pending-x.pending, -1), 1)) })
	excess := a.used.Load() - a.limit/4*3
	for _, l := range slow {
		if excess <= 0 {
			break
		}
		excess -= l.pending
		over = append(over, l)
	}
	return over
}

// look notes whether the client reads: at all, and fast enough to be done within the
// time.
func (l *link) look(every, within time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read := l.written - l.before
	l.before, l.pending = l.written, l.unread-l.kept
	l.still += every
	if read > 0 || l.pending == 0 {
		l.still = 0
	}
	l.behind += every
	if l.pending == 0 || read >= l.pending/int64(max(within/every, 1)) {
		l.behind = 0
	}
}

// hurry ends the call when again was not called for the time to read, and stop neither;
// then it calls late.
func (s *Server) hurry(ctx context.Context, late func()) (again, stop func()) {
	r, ok := ctx.Value(receivingKey{}).(*receiving)
	if !ok {
		return func() {}, func() {}
	}
	t := time.AfterFunc(s.sendTime, func() {
		r.late.Store(true)
		r.cancel()
		late()
	})
	return func() { t.Reset(s.sendTime) }, func() { t.Stop() }
}
