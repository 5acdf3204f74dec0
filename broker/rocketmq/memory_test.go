package rocketmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// slowStore holds publishes until it is let go.
type slowStore struct {
	*memStore
	entered chan struct{}
	free    chan struct{}
}

func (s *slowStore) Publish(ctx context.Context, msgs []broker.Message, out []broker.PublishResult) error {
	s.entered <- struct{}{}
	<-s.free
	return s.memStore.Publish(ctx, msgs, out)
}

func large(id string, size int) *pb.Message {
	return msg("t", id, func(m *pb.Message) { m.Body = make([]byte, size) })
}

// TestSendsAboveTheMemoryAreAskedToComeAgain: whole sends that wait for the store
// fill the memory; the next is refused with a status that clients repeat, receives
// go on, and everything is given back.
func TestSendsAboveTheMemoryAreAskedToComeAgain(t *testing.T) {
	store := &slowStore{entered: make(chan struct{}, 100), free: make(chan struct{})}
	b := start(t, func(o *Options) {
		store.memStore = o.Store.(*memStore)
		o.Store, o.MaxRequests = store, 1 // as few as there may be
	})
	free := sync.OnceFunc(func() { close(store.free) })
	defer free() // else a failure waits for the calls
	c := b.dial(t, nil)
	const size = 4 << 20
	waiting := make(chan *pb.SendMessageResponse, 100)
	sent := 0
	for ; b.memory.used.Load() < b.memory.soft; sent++ {
		go func() {
			resp, err := c.SendMessage(as(t, "producer"), &pb.SendMessageRequest{Messages: []*pb.Message{large(fmt.Sprint("m", sent), size)}})
			if err != nil {
				t.Error(err)
			}
			waiting <- resp
		}()
		<-store.entered
	}
	if sent < 10 || sent > leastRequests/size {
		t.Fatalf("%d sends of 4 MiB found room in %d bytes", sent, b.memory.limit)
	}
	want(t, send(t, c, large("one too many", size)).GetStatus(), pb.Code_TOO_MANY_REQUESTS)
	if b.memory.charge(b.memory.limit - b.memory.used.Load() + 1) {
		t.Error("more was charged than there is room for")
	}
	if got := pull(t, c, simple("g", "t", 1)); got.status.GetCode() == pb.Code_TOO_MANY_REQUESTS {
		t.Error("a receive was refused as well")
	}
	u := b.memory.Usage()
	if u.Full == 0 || u.Depth < int64(sent)*size || u.Depth > u.Limit {
		t.Errorf("usage %+v, want %d sends and a refusal", u, sent)
	}
	free()
	for range sent {
		want(t, (<-waiting).GetStatus(), pb.Code_OK)
	}
	go func() { <-store.entered }()
	want(t, send(t, c, large("again", size)).GetStatus(), pb.Code_OK)
	emptied(t, b)
}

// comeAgain reports whether a send was refused in one of the ways after which
// clients send again.
func comeAgain(resp *pb.SendMessageResponse, err error) bool {
	return status.Code(err) == codes.DeadlineExceeded || err == nil && resp.GetStatus().GetCode() == pb.Code_TOO_MANY_REQUESTS
}

// emptied waits until nothing is held.
func emptied(t *testing.T, b *bench) {
	t.Helper()
	arriving := func() int {
		b.memory.mu.Lock()
		defer b.memory.mu.Unlock()
		return b.memory.line.Len()
	}
	// A crowded machine may take long to come to it; the promise is that it ends.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(enough); b.memory.used.Load() != 0 || arriving() != 0; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are held and %d requests are arriving, want none", b.memory.used.Load(), arriving())
		}
		runtime.GC() // finds what gRPC does not give back
	}
}

// halfOf begins calls of a method on one connection of which it never sends the
// end, with size bytes each, and returns the connection.
func halfOf(t *testing.T, addr, method string, sends, size int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go func() { // the server's frames are of no interest, but must be taken
		var sink [4096]byte
		for {
			if _, err := conn.Read(sink[:]); err != nil {
				return
			}
		}
	}()
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for i := range sends {
		head.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", addr},
			{"content-type", "application/grpc"}, {"te", "trailers"}, {"x-mq-client-id", "slow-" + strconv.Itoa(i)}} {
			if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				t.Fatal(err)
			}
		}
		id := uint32(2*i + 1)
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true}); err != nil {
			return conn // cut off already
		}
		prefix := binary.BigEndian.AppendUint32([]byte{0}, maxRequestBytes)
		data := append(prefix, make([]byte, size)...)
		for len(data) > 0 {
			n := min(len(data), 16<<10)
			if err := f.WriteData(id, false, data[:n]); err != nil {
				return conn
			}
			data = data[n:]
		}
	}
	return conn
}

// TestHalfSentRequestsCannotFillTheMemory: clients that begin large requests, of any
// kind, and fall silent hold no more than the limit; the oldest are cut off, and who
// sends whole requests still gets through.
func TestHalfSentRequestsCannotFillTheMemory(t *testing.T) {
	for _, method := range []string{
		pb.MessagingService_SendMessage_FullMethodName, pb.MessagingService_AckMessage_FullMethodName,
		pb.MessagingService_ReceiveMessage_FullMethodName, pb.MessagingService_Telemetry_FullMethodName,
	} {
		t.Run(path.Base(method), func(t *testing.T) { halfSent(t, method) })
	}
}

func halfSent(t *testing.T, method string) {
	b := start(t, func(o *Options) { o.MaxRequests = 1 })
	const each = 60 << 10 // within a stream's first window
	sends := 2 * int(b.memory.limit) / each
	slow := halfOf(t, b.addr, method, sends, each)
	c := b.dial(t, nil)
	limit := b.memory.limit + int64(sends)*16<<10
	for i := 0; ; i++ {
		if held := b.memory.used.Load(); held > limit {
			t.Fatalf("%d bytes are held, want at most %d", held, limit)
		}
		resp, err := c.SendMessage(as(t, "producer"), &pb.SendMessageRequest{Messages: []*pb.Message{msg("t", fmt.Sprint("m", i), nil)}})
		stored := err == nil && resp.GetStatus().GetCode() == pb.Code_OK
		if !stored && !comeAgain(resp, err) {
			t.Fatalf("%v, %v, want a send, or to be asked to come again", resp, err)
		}
		if b.memory.full.Load() > 0 && stored {
			break
		}
	}
	slow.Close()
	emptied(t, b)
}

// TestSilentRequestsMakeRoom: as many requests as may arrive have begun and are
// silent; after a while each new one ends the oldest, and what ends unread leaves.
func TestSilentRequestsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(leastRequests)
		stream, cancel := context.WithCancel(t.Context())
		var first context.Context
		for range maxReceiving {
			ctx, err := m.begin(stream, nil)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = ctx
			}
		}
		if _, err := m.begin(stream, nil); status.Code(err) != codes.Unavailable {
			t.Fatalf("%v, want UNAVAILABLE while all have just begun", err)
		}
		time.Sleep(patience)
		if _, err := m.begin(stream, nil); err != nil {
			t.Fatalf("%v, want a place", err)
		}
		if err := first.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the oldest has %v, want its end", err)
		}
		cancel()
		synctest.Wait()
		if n := m.line.Len(); n != 0 {
			t.Errorf("%d that have ended are in the line", n)
		}
	})
}
