package rocketmq

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// in is the field with the number n that holds b.
func in(n protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
}

// TestRequestsThatGrowWhenTheyAreDecodedAreRefused: requests of empty parts, which take
// two bytes each on the wire and hundreds in memory. None is decoded, each is answered,
// and a request that is only large is served.
func TestRequestsThatGrowWhenTheyAreDecodedAreRefused(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxRequests = 1 })
	conn, err := grpc.NewClient(b.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	empty := func(n protowire.Number) []byte { return bytes.Repeat(in(n, nil), 2_000_000) }
	before := heap()
	for call, request := range map[string][]byte{
		"SendMessage": empty(1), "AckMessage": empty(3), "SyncLiteSubscription": empty(4), "QueryRoute": in(2, empty(2)),
	} {
		answers, err := exchange(t, conn, call, request)
		var st pb.AckMessageResponse // the status is the first field of all
		if err != nil || len(answers) != 1 || proto.Unmarshal(answers[0], &st) != nil || st.GetStatus().GetCode() != pb.Code_PAYLOAD_TOO_LARGE {
			t.Errorf("%s: %v, %v", call, st.GetStatus(), err)
		}
	}
	for call, request := range map[string][]byte{"Telemetry": in(2, in(5, empty(1))), "ReceiveMessage": in(2, in(4, in(3, empty(2))))} {
		if _, err := exchange(t, conn, call, request); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: %v, want RESOURCE_EXHAUSTED", call, err)
		}
	}
	if grown := heap() - before; grown > leastRequests {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	c := pb.NewMessagingServiceClient(conn)
	want(t, send(t, c, large("large", 4<<20)).GetStatus(), pb.Code_OK)
	many := &pb.AckMessageRequest{Group: res("g"), Topic: res("t")}
	for range 50_000 {
		many.Entries = append(many.Entries, &pb.AckMessageEntry{ReceiptHandle: "x"})
	}
	ack, err := c.AckMessage(as(t, "c"), many)
	if err != nil {
		t.Fatal(err)
	}
	want(t, ack.GetStatus(), pb.Code_BAD_REQUEST)
	emptied(t, b)
	b.memory.weights.Range(func(req, _ any) bool {
		t.Errorf("a request of type %T counts for ever", req)
		return true
	})
}

// TestLargeHeadersCount: calls that wait, with as large headers as there may be, fill
// what requests may have; then only such calls are refused. Clients go on.
func TestLargeHeadersCount(t *testing.T) {
	b := start(t, func(o *Options) { o.MaxRequests = 1 })
	b.store.lasting = true // or the first may end while the last are begun
	attack := b.dial(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", "attacker", "x-junk", strings.Repeat("~", 60<<10))
	refused := false
	for i := 0; !refused; i++ {
		if i > int(b.memory.limit>>15) {
			t.Fatalf("%d calls were let in, with %d bytes", i, b.memory.used.Load())
		}
		before := b.memory.used.Load()
		if _, err := attack.ReceiveMessage(ctx, push("g", "t", time.Minute)); err != nil {
			t.Fatal(err)
		}
		await(t, "the call is let in or refused", func() bool {
			refused = before >= b.memory.soft
			return refused || b.memory.used.Load() > before
		})
	}
	honest := b.dial(t, nil)
	if h, err := honest.Heartbeat(as(t, "honest"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER}); err != nil {
		t.Errorf("a call of a client: %v, %v", h, err)
	}
	if _, err := attack.Heartbeat(ctx, &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more with large headers: %v, want RESOURCE_EXHAUSTED", err)
	}
	leave()
	emptied(t, b)
	mustSend(t, honest, msg("t", "A", nil))
}

// TestOneMoreWaitingCallEndsTheOldest: as many wait as may; one more is refused while
// all are young, and else ends the oldest, which is told to ask again.
func TestOneMoreWaitingCallEndsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{polls: &polls{max: 2}, stopping: t.Context()}
		var err error
		if s.metrics, err = newInstruments((Options{}).withDefaults().Meter, func() int { return 0 }); err != nil {
			t.Fatal(err)
		}
		defer s.metrics.close()
		begin := func() (context.Context, func(), *pb.Status) { return s.beginPoll(t.Context()) }
		oldest, endOldest, _ := begin()
		time.Sleep(patience / 2)
		second, endSecond, _ := begin()
		if _, _, st := begin(); st.GetCode() != pb.Code_TOO_MANY_REQUESTS {
			t.Errorf("%v while the others are young", st)
		}
		time.Sleep(patience / 2)
		third, endThird, st := begin()
		if st != nil || oldest.Err() == nil || second.Err() != nil || third.Err() != nil || s.polls.size() != 2 {
			t.Fatalf("%v, the oldest %v, the others %v and %v, %d wait", st, oldest.Err(), second.Err(), third.Err(), s.polls.size())
		}
		want(t, s.unanswered(oldest, oldest.Err()), pb.Code_MESSAGE_NOT_FOUND)
		for _, end := range []func(){endOldest, endSecond, endThird} {
			end()
		}
		if u := s.polls.Usage(); u.Depth != 0 || u.Full != 2 {
			t.Errorf("usage %+v, want 2 that found no place of their own", u)
		}
	})
}

// TestUnusedIsWhatNobodyCalls: a connection counts as unused that never had a call, or
// none for long and no stream; the former go first.
func TestUnusedIsWhatNobodyCalls(t *testing.T) {
	a := newAnswers(leastRequests)
	now := time.Now()
	var shut []string
	open := func(name string, age, called time.Duration, streams int) {
		l := &link{all: a, opened: now.Add(-age), streams: streams, close: func() error {
			shut = append(shut, name)
			return nil
		}}
		l.called.Store(int64(called))
		a.last++
		a.links[a.last] = l
	}
	open("new", idleFirst/2, 0, 0)
	open("never", idleFirst, 0, 0)
	open("called", idleAfter, time.Second, 0)
	open("long ago", idleAfter+time.Minute, time.Minute, 0)
	open("streaming", time.Hour, time.Second, 1)
	if n := a.endIdle(now); n != 2 || fmt.Sprint(shut) != "[never long ago]" {
		t.Errorf("%d were ended, %v", n, shut)
	}
	if n := a.endIdle(now.Add(endIdleEvery / 2)); n != 0 {
		t.Errorf("%d were ended at once after that", n)
	}
}

// TestUnusedConnectionsMakeRoom: somebody has opened all connections that there may be
// and says nothing, or said something once. A client finds a place all the same, and
// keeps it while it calls or has its stream.
func TestUnusedConnectionsMakeRoom(t *testing.T) {
	const limit = 8
	b := start(t, func(o *Options) { o.MaxConnections = limit })
	client := b.dial(t, nil)
	mustSend(t, client, msg("t", "A", nil))
	streaming := b.dial(t, nil)
	reply(t, stream(t, streaming, "s", producerSettings("t")))
	for range limit - 2 {
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := http2.NewFramer(c, nil).WriteSettings(); err != nil {
			t.Fatal(err)
		}
	}
	open := func() int { return int(b.sniff.Load().Usage()[0].Depth) }
	await(t, "all are open", func() bool { return open() == limit })
	newcomer := func() error {
		_, err := b.dial(t, nil).Heartbeat(as(t, "newcomer"), &pb.HeartbeatRequest{ClientType: pb.ClientType_PRODUCER})
		return err
	}
	if err := newcomer(); status.Code(err) != codes.Unavailable {
		t.Fatalf("%v, want no place while all are young", err)
	}
	mustSend(t, client, msg("t", "B", nil))
	b.answers.young.Store(1)
	await(t, "the newcomer has a place", func() bool { return newcomer() == nil })
	mustSend(t, client, msg("t", "C", nil))
	mustSend(t, streaming, msg("t", "D", nil))
}

// TestMadeUpClientsMakeRoom: ids that are used once fill the registry. A client that
// comes then has a place, and those that have streams, or go on calling, keep theirs.
func TestMadeUpClientsMakeRoom(t *testing.T) {
	const limit = 10
	r := newRegistry(limit)
	later := func(d time.Duration) { r.begin = r.begin.Add(-d) }
	r.attach("streaming", newSession())
	r.see(t.Context(), "calling", pb.ClientType_PUSH_CONSUMER)
	later(briefTime)
	r.see(t.Context(), "calling", pb.ClientType_PUSH_CONSUMER)
	for i := range limit - 2 {
		r.see(t.Context(), fmt.Sprint("made up ", i), pb.ClientType_PUSH_CONSUMER)
	}
	if _, known := r.see(t.Context(), "young", pb.ClientType_PRODUCER); known {
		t.Error("a place was found while all are young")
	}
	later(briefTime)
	if _, known := r.see(t.Context(), "client", pb.ClientType_PRODUCER); !known {
		t.Error("no place was found for a client")
	}
	for _, id := range []string{"streaming", "calling", "client"} {
		if r.clients[id] == nil {
			t.Errorf("%s is forgotten", id)
		}
	}
	if len(r.clients) != 3 || len(r.left) != limit-2 {
		t.Errorf("%d clients, %d to be told of; want 3 and the others", len(r.clients), len(r.left))
	}
}

// TestAnswersThatNobodyReadsAtAReplicaAreBounded: a client pulls large messages through
// a replica, by many calls, and reads none. The replica holds a share for it, another
// client is served beside it, and its connection is closed in the end.
func TestAnswersThatNobodyReadsAtAReplicaAreBounded(t *testing.T) {
	const size, calls = 1 << 20, 300
	master := startReal(t)
	r := startReplica(t, newThrone(master.addr), func(o *ForwarderOptions) { o.MaxRequests = 1 })
	c := stubAt(t, r.addr)
	want(t, send(t, c, large("m", size-100)).GetStatus(), pb.Code_OK)
	queue := at(0)
	if len(fetch(t, c, fetching(queue, 0)).msgs) == 0 {
		queue = at(1)
	}
	slow := pb.NewMessagingServiceClient((&bench{addr: r.addr}).dialSlow(t))
	before := heap()
	for range calls {
		fetchBegin(t, slow, fetching(queue, 0))
	}
	await(t, "there is no room", func() bool { return r.answers.full.Load() > 0 })
	if held := r.answers.used.Load(); held > r.answers.limit/2 {
		t.Errorf("%d bytes are held for one connection, of %d", held, r.answers.limit)
	}
	if got := fetch(t, c, fetching(queue, 0)); got.status.GetCode() != pb.Code_OK || len(got.msgs) != 1 {
		t.Errorf("another client gets %v with %d messages", got.status, len(got.msgs))
	}
	if grown := heap() - before; grown > calls*size/2 {
		t.Errorf("the heap has grown by %d bytes, all answers have %d", grown, calls*size)
	}
	r.answers.slow.Store(int64(time.Millisecond))
	await(t, "the connection is closed, and all given back", func() bool { return r.answers.used.Load() == 0 })
	if got := fetch(t, c, fetching(queue, 0)); len(got.msgs) != 1 {
		t.Errorf("another client gets %v then", got.status)
	}
}
