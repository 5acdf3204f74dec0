package rocketmqclient

import (
	"errors"
	"math"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// TestWhoDoesNotAnswerIsPassedOver: after a request without an answer the next ones go to
// another broker of the route, acknowledgements of what the silent one delivered, too;
// the route is asked for again at once, and what it no longer names is not used.
func TestWhoDoesNotAnswerIsPassedOver(t *testing.T) {
	dead, living := &fake{}, &fake{}
	gone := func(*pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
		return nil, status.Error(codes.Unavailable, "the master changes")
	}
	dead.send = gone
	dead.serve(t)
	at := living.serve(t)
	both := []*pb.MessageQueue{living.queue("b1", 0, pb.Permission_READ_WRITE), dead.queue("b2", 0, pb.Permission_READ_WRITE)}
	asked := make(chan struct{}, 16)
	living.mu.Lock()
	living.queues, living.routed = both, func() { asked <- struct{}{} }
	living.mu.Unlock()

	p := producer(t, Config{Endpoint: at}, "t")
	<-asked
	settled(t, p.core, both)
	var oe *OpError
	for range 2 { // in rotation
		_, err := p.Send(t.Context(), &Message{Topic: "t", Body: []byte("x")})
		if err != nil && !errors.As(err, &oe) {
			t.Fatal(err)
		}
	}
	if oe == nil || oe.Endpoint == at {
		t.Fatalf("%v; want that the second broker did not answer", oe)
	}
	silent, err := p.core.endpoint(oe.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	staysSilent(t, silent)
	living.mu.Lock()
	living.queues = both[:1]
	living.mu.Unlock()
	for range 6 {
		if _, err := p.Send(t.Context(), &Message{Topic: "t", Body: []byte("x")}); err != nil {
			t.Errorf("a broker that is known not to answer was asked: %v", err)
		}
	}
	select {
	case <-asked:
	case <-time.After(routeEvery / 2):
		select {
		case <-asked: // both came while the machine stood still
		default:
			t.Error("the route was not asked for again")
		}
	}
}

// settled waits until the endpoints of the queues have answered the client's Settings:
// such an answer ends that one is passed over.
func settled(t *testing.T, c *core, queues []*pb.MessageQueue) {
	t.Helper()
	for _, q := range queues {
		at := q.GetBroker().GetEndpoints().GetAddresses()[0]
		ep, err := c.endpoint(net.JoinHostPort(at.GetHost(), strconv.Itoa(int(at.GetPort()))))
		if err == nil {
			err = ep.waitReady(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// staysSilent has an endpoint that is passed over be so for as long as the test may take;
// for how long it is else, TestWhoAnswersAgainIsAskedAgain says.
func staysSilent(t *testing.T, ep *endpoint) {
	t.Helper()
	if ep.silent.Load() == 0 {
		t.Errorf("%s did not answer, and is not passed over", ep.addr)
	}
	ep.silent.Store(math.MaxInt64)
}

// TestAnAcknowledgementGoesRoundASilentBroker: see TestWhoDoesNotAnswerIsPassedOver.
func TestAnAcknowledgementGoesRoundASilentBroker(t *testing.T) {
	living := &fake{}
	living.serve(t)
	living.receive = []*pb.ReceiveMessageResponse{statusAnswer(pb.Code_OK), delivery("M1", "h1")}
	c := consumer(t, living)
	ms, err := c.Receive(t.Context(), 1, time.Minute)
	if err != nil || len(ms) != 1 {
		t.Fatal(ms, err)
	}
	closed := &fake{}
	addr := closed.serve(t)
	ep, err := c.core.endpoint(addr)
	if err != nil {
		t.Fatal(err)
	}
	ms[0].ep = ep // as if that one had delivered it
	settled(t, c.core, []*pb.MessageQueue{closed.queue("b2", 0, pb.Permission_READ)})
	ep.heard(status.Error(codes.Unavailable, "gone"))
	staysSilent(t, ep)
	if err := c.Ack(t.Context(), ms[0]); err != nil || len(living.acks) != 1 || len(closed.acks) != 0 {
		t.Errorf("%v; the broker that answers got %d, the silent one %d", err, len(living.acks), len(closed.acks))
	}
	ep.heard(nil)
	if err := c.Ack(t.Context(), ms[0]); err != nil || len(closed.acks) != 1 {
		t.Errorf("%v; who delivered is asked again once it answers, it got %d", err, len(closed.acks))
	}
}

// TestWhoAnswersAgainIsAskedAgain: an endpoint that was Unavailable is passed over for a
// moment only, one that let a request wait until a heartbeat is due, and each no longer
// when it has answered anything.
func TestWhoAnswersAgainIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		e := &endpoint{conns: []*grpc.ClientConn{conn}, stale: make(chan struct{}, 1)}
		for _, c := range []struct {
			code codes.Code
			over time.Duration
		}{{codes.Unavailable, passOverFor}, {codes.DeadlineExceeded, heartbeatEvery}} {
			e.heard(status.Error(c.code, ""))
			time.Sleep(c.over - time.Millisecond)
			if !e.broken() {
				t.Errorf("%s: asked again before %v", c.code, c.over)
			}
			time.Sleep(time.Millisecond)
			if e.broken() {
				t.Errorf("%s: passed over for more than %v", c.code, c.over)
			}
			e.heard(status.Error(c.code, ""))
			e.heard(nil)
			if e.broken() {
				t.Errorf("%s: passed over after an answer", c.code)
			}
		}
	})
}
