package rocketmq

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// await waits for what goes on elsewhere.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(enough); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// TestPullsThatNobodyReadsAreBounded: a client pulls large messages and reads nothing.
// Beyond its share a pull is asked to come again, with the offset that it came with,
// while another client is served; when the time to read is over the call ends, and all
// is given back.
func TestPullsThatNobodyReadsAreBounded(t *testing.T) {
	b := startReal(t, func(o *Options) { o.unread = 64 << 20 })
	c := b.dial(t, nil)
	for i := range 64 { // some land in each queue
		want(t, send(t, c, large(fmt.Sprint("m", i), 1<<20)).GetStatus(), pb.Code_OK)
	}
	slow := pb.NewMessagingServiceClient(b.dialSlow(t))
	unread := fetchBegin(t, slow, fetching(at(0), 0))
	await(t, "a pull has its share", func() bool { return b.answers.used.Load() > 14<<20 })
	if got := fetch(t, slow, fetching(at(0), 3)); got.status.GetCode() != pb.Code_TOO_MANY_REQUESTS || len(got.msgs) != 0 || got.next != 3 {
		t.Errorf("%v with %d messages, next %d; want TOO_MANY_REQUESTS and the same offset", got.status, len(got.msgs), got.next)
	}
	if got := fetch(t, c, fetching(at(0), 3)); got.status.GetCode() != pb.Code_OK || len(got.msgs) < 6 {
		t.Errorf("another client got %v with %d messages", got.status, len(got.msgs))
	}
	if u := b.answers.Usage(); u.Full == 0 || u.Depth > u.Limit {
		t.Errorf("usage %+v", u)
	}
	if got := fetchAll(t, unread); got.status.GetCode() != pb.Code_OK || len(got.msgs) < 6 {
		t.Errorf("%v with %d messages, want all once they are read", got.status, len(got.msgs))
	}
	await(t, "all is given back", func() bool { return b.answers.used.Load() == 0 })
	b.sendTime = time.Millisecond
	unread = fetchBegin(t, slow, fetching(at(0), 0))
	await(t, "the messages are read", func() bool { return b.answers.used.Load() != 0 })
	await(t, "the call is ended", func() bool { return b.answers.used.Load() <= 4<<20 }) // what gRPC has taken is left
	for {
		if _, err := unread.Recv(); err != nil {
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%v, want DEADLINE_EXCEEDED", err)
			}
			break
		}
	}
	await(t, "that is given back", func() bool { return b.answers.used.Load() == 0 })
	b.answers.slow.Store(int64(time.Millisecond)) // so long it may take to read the end of a call
	if _, err := slow.Heartbeat(as(t, "c"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PULL_CONSUMER}); err != nil {
		t.Fatal(err)
	}
	fetchBegin(t, slow, fetching(at(0), 0))
	await(t, "the messages are read", func() bool { return b.answers.used.Load() != 0 })
	await(t, "the connection is closed", func() bool { return b.answers.used.Load() == 0 })
}

// dialSlow connects a client whose windows stay as small as they begin, so that little
// of an answer leaves the server while nothing is read.
func (b *bench) dialSlow(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func pushing(group, topic string) *pb.ReceiveMessageRequest {
	return &pb.ReceiveMessageRequest{Group: res(group), MessageQueue: &pb.MessageQueue{Topic: res(topic)}, BatchSize: 32, AutoRenew: true,
		FilterExpression: &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: "*"}}
}

// heap is what is in use; the collector has run.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestReceivesThatNobodyReadsAreBounded: clients of several connections receive by many
// streams and read nothing. What is held for them is bounded, in the heap, too; another
// client goes on to receive, and gets what they leave, for the first time.
func TestReceivesThatNobodyReadsAreBounded(t *testing.T) {
	const (
		count, size = 128, 512 << 10
		slow, calls = 6, 4
		limit       = 32 << 20
	)
	b := startReal(t, func(o *Options) { o.unread = limit })
	c := b.dial(t, nil)
	for i := range count {
		want(t, send(t, c, large(fmt.Sprint("m", i), size)).GetStatus(), pb.Code_OK)
	}
	before := heap()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for i := range slow {
		conn := pb.NewMessagingServiceClient(b.dialSlow(t))
		for range calls {
			if _, err := conn.ReceiveMessage(metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", fmt.Sprint("slow", i)), pushing("g", "t")); err != nil {
				t.Fatal(err)
			}
		}
	}
	await(t, "there is no room", func() bool { return b.answers.full.Load() > slow && b.answers.used.Load() > limit/4*3-size })
	// Buffers of two encoded messages of a call may be twice as large as they are.
	if held := b.answers.used.Load(); held > limit+2*slow*calls*size {
		t.Errorf("%d bytes are held, want at most %d and what is being written", held, limit)
	}
	if grown := heap() - before; grown > limit+4*slow*calls*size {
		t.Errorf("the heap has grown by %d bytes, the limit is %d", grown, limit)
	}
	seen, attempts := map[string]bool{}, 0
	drain := func(upTo int) {
		t.Helper()
		await(t, fmt.Sprintf("%d messages were received", upTo), func() bool {
			for _, m := range pull(t, c, simple("g", "t", 32)).msgs {
				id := m.GetSystemProperties().GetMessageId()
				if seen[id] {
					t.Errorf("%s came twice", id)
				}
				seen[id] = true
				attempts += int(m.GetSystemProperties().GetDeliveryAttempt()) - 1
				want(t, acked(t, c, "g", "t", m), pb.Code_OK)
			}
			return len(seen) >= upTo
		})
	}
	drain(count - limit/size/2) // the others have no more, as what is to be encoded counts twice
	leave()
	drain(count - 2*slow*calls) // of each call gRPC may have taken two, which come later
	if attempts > 0 {
		t.Errorf("%d attempts were burnt by messages that were not sent", attempts)
	}
	await(t, "all is given back", func() bool { return b.answers.used.Load() == 0 })
}

// acked acknowledges a message.
func acked(t *testing.T, c pb.MessagingServiceClient, group, topic string, m *pb.Message) *pb.Status {
	t.Helper()
	resp, err := c.AckMessage(as(t, "consumer"), &pb.AckMessageRequest{Group: res(group), Topic: res(topic), Entries: []*pb.AckMessageEntry{
		{MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()}}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetStatus()
}

// TestUnreadAnswersOfAnyCallAreBounded: acknowledgements are answered with all their
// handles. A connection that reads none of that begins no more calls; others do.
func TestUnreadAnswersOfAnyCallAreBounded(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxRequests = 1 })
	conn := b.dialSlow(t)
	req := &pb.AckMessageRequest{Group: res("g"), Topic: res("t")}
	for range maxAckEntries {
		req.Entries = append(req.Entries, &pb.AckMessageEntry{ReceiptHandle: strings.Repeat("x", maxHandle)})
	}
	for n := 0; ; n++ {
		if n > 100 {
			t.Fatalf("%d calls were let in, with %d bytes unread", n, b.answers.used.Load())
		}
		before := b.answers.used.Load()
		stream, err := conn.NewStream(as(t, "slow"), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, pb.MessagingService_AckMessage_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(req); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		await(t, "it is answered or refused", func() bool { return b.answers.used.Load() > before || b.answers.full.Load() > 0 })
		if b.answers.full.Load() > 0 {
			if err := stream.RecvMsg(new(pb.AckMessageResponse)); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%v, want RESOURCE_EXHAUSTED", err)
			}
			break
		}
	}
	if held := b.answers.used.Load(); held > b.answers.limit/2+5<<20 {
		t.Errorf("%d bytes are held", held)
	}
	mustSend(t, b.dial(t, nil), msg("t", "M", nil))
	conn.Close()
	await(t, "all is given back", func() bool { return b.answers.used.Load() == 0 })
}

// TestConnectionsThatDoNotReadAreClosed: one of which nothing is read, after its time;
// under pressure one that reads too slowly, the largest first, until there is room.
func TestConnectionsThatDoNotReadAreClosed(t *testing.T) {
	a := newAnswers(64 << 20)
	a.slow.Store(int64(10 * time.Second))
	connection := func(unread int64) *link {
		l := &link{all: a}
		a.last++
		l.number = a.last
		a.links[l.number] = l
		l.count(int(unread))
		return l
	}
	silent, steady, idle := connection(100), connection(1000), connection(0)
	for tick := range 9 {
		steady.count(-1)
		if got := a.stalled(time.Second); len(got) != 0 {
			t.Fatalf("%d connections are closed after %d ticks", len(got), tick)
		}
	}
	steady.count(-1)
	if got := a.stalled(time.Second); len(got) != 1 || got[0] != silent {
		t.Fatalf("closed are %v, want the silent one", got)
	}
	silent.leave()
	large, larger, fast := connection(10<<20), connection(20<<20), connection(20<<20)
	for tick := range 3 {
		for _, l := range []*link{large, larger, steady} { // a trickle
			l.count(-1)
		}
		fast.count(-4 << 20)
		fast.count(4 << 20)
		got := a.stalled(time.Second)
		if tick == 2 && (len(got) != 1 || got[0] != larger) || tick == 0 && len(got) != 0 {
			t.Fatalf("tick %d: %d connections are closed, want the largest of those that are slow, in time", tick, len(got))
		}
		for _, l := range got {
			l.leave()
		}
		if tick == 1 && len(got) == 1 {
			break
		}
	}
	if a.isOpen(larger.number) || a.used.Load() > 64<<20/4*3 {
		t.Errorf("the larger one is open, or %d bytes are held", a.used.Load())
	}
	for _, l := range []*link{large, steady, idle, fast} {
		if !a.isOpen(l.number) {
			t.Error("a connection is closed that should not be")
		}
		l.leave()
	}
	if n := a.used.Load(); n != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
}
