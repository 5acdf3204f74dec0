package rocketmq

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// tallied is a connection that is counted while it is open.
type tallied struct {
	net.Conn
	left func()
}

func (c *tallied) Close() error {
	c.left()
	return c.Conn.Close()
}

// TestAMasterIsDialledForFewClientsAtOnce: many clients call at a replica whose master
// takes connections and shakes no hands. No more handshakes are begun at one time than
// there are places; and when there is a master that answers, all calls reach it.
func TestAMasterIsDialledForFewClientsAtOnce(t *testing.T) {
	const clients = 3 * maxDials
	ring := newCircle(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var open, most, dialled atomic.Int64
	s := newThrone(silent.Addr().String())
	s.now.TLS = ring.way
	r := startReplica(t, s, func(o *ForwarderOptions) {
		o.Hold = enough
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil || addr != silent.Addr().String() {
				return c, err
			}
			dialled.Add(1)
			for n := open.Add(1); ; {
				was := most.Load()
				if was >= n || most.CompareAndSwap(was, n) {
					return &tallied{c, sync.OnceFunc(func() { open.Add(-1) })}, nil
				}
			}
		}
	})
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, clients)
	for range clients {
		stub, ctx := stubFrom(t, r.addr, "127.0.0.1", insecure.NewCredentials()), as(t, "c")
		wg.Go(func() {
			resp, err := stub.QueryRoute(ctx, &pb.QueryRouteRequest{Topic: res("t")})
			if err == nil && resp.GetStatus().GetCode() != pb.Code_OK {
				err = fmt.Errorf("%v", resp.GetStatus())
			}
			failed <- err
		})
	}
	await(t, "more were dialled than there are places", func() bool { return dialled.Load() > maxDials })
	if n := most.Load(); n > maxDials {
		t.Errorf("%d connections are being made at one time, there are %d places", n, maxDials)
	}
	master := ring.master(t, nil)
	s.mu.Lock()
	s.now = Upstream{Node: zone.Node(master.addr), Epoch: 2, Addr: master.addr, TLS: ring.way}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	for range clients {
		if err := <-failed; err != nil {
			t.Errorf("a call that waited: %v", err)
		}
	}
	await(t, "all places are given back", func() bool { return len(r.dials.places) == 0 })
}

// TestACallDoesNotWaitLongerForAPlaceThanForAMaster: all places are taken for ever; a
// call is told to try again as if there were no master, and not only by its deadline.
func TestACallDoesNotWaitLongerForAPlaceThanForAMaster(t *testing.T) {
	ring := newCircle(t)
	master := ring.master(t, nil)
	s := newThrone(master.addr)
	s.now.TLS = ring.way
	r := startReplica(t, s, func(o *ForwarderOptions) { o.Hold = 50 * time.Millisecond })
	for range maxDials {
		r.dials.places <- struct{}{}
	}
	stub := stubFrom(t, r.addr, "127.0.0.1", insecure.NewCredentials())
	if code := routeOf(t, stub, as(t, "c")); code != pb.Code_TOO_MANY_REQUESTS {
		t.Errorf("%v, want to be told to try again", code)
	}
	<-r.dials.places
	await(t, "a call has the place", func() bool { return routeOf(t, stub, as(t, "c")) == pb.Code_OK })
}
