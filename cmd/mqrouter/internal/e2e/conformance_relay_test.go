package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// clientRelay stands between an official client and the servers, as a network does
// that breaks at the wrong moment: it carries every call on, and loses the answers
// that it is told to lose, after the server has given them. The routes that pass
// through it name the relay in place of each server, so that clients stay behind it.
type clientRelay struct {
	s      *stage
	asking sync.WaitGroup // of the calls that are carried

	mu     sync.Mutex
	doors  map[string]*relayDoor        // guarded by mu; by the address of the server
	losses []loss                       // guarded by mu: what is still to be lost
	edit   func(*pb.SendMessageRequest) // guarded by mu: changes what clients send; nil: nothing
	calls  []relayedCall                // guarded by mu: those that the server has answered
}

// relayDoor is the relay's address for one server.
type relayDoor struct {
	addr, server string

	mu    sync.Mutex
	pairs map[string]relayPair // guarded by mu; by the client's address
}

// relayPair is a client's connection and the one to the server that goes with it.
type relayPair struct {
	client net.Conn
	server *grpc.ClientConn
}

// close breaks both.
func (p relayPair) close() {
	p.client.Close()
	p.server.Close()
}

// loss is an answer that does not reach its client.
type loss struct {
	rpc string
	cut bool // the connection breaks; else the client hears nothing until it gives up
}

// relayedCall is what the relay keeps of a call for scenarios to look at.
type relayedCall struct {
	rpc     string
	ids     []string // message ids of a send, of a receive's answer, or of what is acknowledged
	attempt string   // attempt id of a receive
	lost    bool
}

// relay puts a relay before the servers of a scenario, until it ends.
func (s *stage) relay() *clientRelay {
	r := &clientRelay{s: s, doors: map[string]*relayDoor{}}
	s.Cleanup(r.asking.Wait) // after its doors are closed
	s.Cleanup(func() {
		if s.Failed() {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, c := range r.calls {
				s.Logf("relayed: %+v", c)
			}
		}
	})
	return r
}

// at is the relay's address for a documented client port.
func (r *clientRelay) at(port int) string {
	r.s.Helper()
	addr, err := r.door(r.s.at(port))
	r.s.must("a relay", err)
	return addr
}

// lose has the next answers of an RPC lost, one for each way. The answer to a
// receive counts when it has messages.
func (r *clientRelay) lose(rpc string, cuts ...bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cut := range cuts {
		r.losses = append(r.losses, loss{rpc, cut})
	}
}

// editing changes what clients send from now on.
func (r *clientRelay) editing(edit func(*pb.SendMessageRequest)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.edit = edit
}

// answered are the calls of an RPC that the server has answered until now.
func (r *clientRelay) answered(rpc string) []relayedCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []relayedCall
	for _, c := range r.calls {
		if c.rpc == rpc {
			all = append(all, c)
		}
	}
	return all
}

// door returns the relay's address for a server, and opens it the first time.
func (r *clientRelay) door(server string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.doors[server]; d != nil {
		return d.addr, nil
	}
	for _, d := range r.doors {
		if d.addr == server { // named so by a server that repeats what it was asked by
			return server, nil
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	d := &relayDoor{addr: ln.Addr().String(), server: server, pairs: map[string]relayPair{}}
	r.doors[server] = d
	srv := grpc.NewServer(grpc.ForceServerCodecV2(asIs{}), grpc.MaxRecvMsgSize(relayMost), grpc.MaxSendMsgSize(relayMost),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return r.carry(d, stream) }))
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(&relayListener{ln, d}) })
	r.s.Cleanup(func() {
		srv.Stop()
		serving.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range d.pairs {
			p.close()
		}
	})
	return d.addr, nil
}

// relayMost bounds a message that the relay passes on, in bytes.
const relayMost = 32 << 20

// carry passes a call on, request by request and answer by answer.
func (r *clientRelay) carry(d *relayDoor, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	md, _ := metadata.FromIncomingContext(client.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(client.Context(), md))
	defer cancel()
	pair, err := d.pair(ctx)
	if err != nil {
		return err
	}
	server, err := pair.server.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	call := &relayedCall{rpc: path.Base(method)}
	asked := make(chan struct{}) // closed with the first request
	r.asking.Go(func() {         // ends with this call, which cannot wait for it
		for first := true; ; first = false {
			var b []byte
			if err := client.RecvMsg(&b); err != nil {
				if first {
					close(asked)
				}
				if errors.Is(err, io.EOF) {
					_ = server.CloseSend()
				} else {
					cancel()
				}
				return
			}
			b = r.request(call, b)
			if first {
				close(asked)
			}
			if server.SendMsg(&b) != nil {
				return // the answers say why
			}
		}
	})
	if call.rpc == "Telemetry" {
		return r.answers(client, server, func(b []byte) []byte { return b })
	}
	<-asked
	var all [][]byte
	err = r.answers(nil, server, func(b []byte) []byte {
		all = append(all, r.answer(call, b))
		return nil
	})
	if err != nil {
		return err
	}
	if cut, ok := r.loses(call); ok {
		if cut {
			pair.close()
		}
		<-client.Context().Done()
		return client.Context().Err()
	}
	for _, b := range all {
		if err := client.SendMsg(&b); err != nil {
			return err
		}
	}
	client.SetTrailer(server.Trailer())
	return nil
}

// answers reads until the server ends and passes on what each returns, if there
// is a client to pass it on to.
func (r *clientRelay) answers(client grpc.ServerStream, server grpc.ClientStream, each func([]byte) []byte) error {
	for {
		var b []byte
		err := server.RecvMsg(&b)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		b = each(b)
		if client == nil {
			continue
		}
		if err := client.SendMsg(&b); err != nil {
			return err
		}
	}
}

// pair returns the connections of a call.
func (d *relayDoor) pair(ctx context.Context) (relayPair, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return relayPair{}, errors.New("a call without a connection")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	pair, ok := d.pairs[p.Addr.String()]
	if !ok {
		return relayPair{}, fmt.Errorf("no connection of %s", p.Addr)
	}
	return pair, nil
}

// request looks at what a client asks.
func (r *clientRelay) request(call *relayedCall, b []byte) []byte {
	switch call.rpc {
	case "SendMessage":
		req := &pb.SendMessageRequest{}
		if proto.Unmarshal(b, req) != nil {
			return b
		}
		for _, m := range req.GetMessages() {
			call.ids = append(call.ids, m.GetSystemProperties().GetMessageId())
		}
		r.mu.Lock()
		edit := r.edit
		r.mu.Unlock()
		if edit != nil {
			edit(req)
			b, _ = proto.Marshal(req)
		}
	case "ReceiveMessage":
		req := &pb.ReceiveMessageRequest{}
		if proto.Unmarshal(b, req) == nil {
			call.attempt = req.GetAttemptId()
		}
	case "AckMessage":
		req := &pb.AckMessageRequest{}
		if proto.Unmarshal(b, req) == nil {
			for _, e := range req.GetEntries() {
				call.ids = append(call.ids, e.GetMessageId())
			}
		}
	}
	return b
}

// answer looks at what a server says, and puts the relay into routes.
func (r *clientRelay) answer(call *relayedCall, b []byte) []byte {
	switch call.rpc {
	case "QueryRoute":
		resp := &pb.QueryRouteResponse{}
		if proto.Unmarshal(b, resp) == nil {
			b = r.reroute(resp, resp.GetMessageQueues()...)
		}
	case "QueryAssignment":
		resp := &pb.QueryAssignmentResponse{}
		if proto.Unmarshal(b, resp) == nil {
			for _, a := range resp.GetAssignments() {
				b = r.reroute(resp, a.GetMessageQueue())
			}
		}
	case "ReceiveMessage":
		resp := &pb.ReceiveMessageResponse{}
		if proto.Unmarshal(b, resp) == nil && resp.GetMessage() != nil {
			call.ids = append(call.ids, resp.GetMessage().GetSystemProperties().GetMessageId())
		}
	}
	return b
}

func (r *clientRelay) reroute(resp proto.Message, queues ...*pb.MessageQueue) []byte {
	for _, q := range queues {
		for _, a := range q.GetBroker().GetEndpoints().GetAddresses() {
			addr, err := r.door(net.JoinHostPort(a.GetHost(), fmt.Sprint(a.GetPort())))
			if err != nil {
				continue
			}
			host, port, _ := net.SplitHostPort(addr)
			n, _ := strconv.ParseInt(port, 10, 32)
			a.Host, a.Port = host, int32(n)
		}
	}
	b, _ := proto.Marshal(resp)
	return b
}

// loses keeps an answered call and says whether and how its answer is lost.
func (r *clientRelay) loses(call *relayedCall) (cut, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range r.losses {
		if l.rpc == call.rpc && (l.rpc != "ReceiveMessage" || len(call.ids) > 0) {
			r.losses = append(r.losses[:i:i], r.losses[i+1:]...)
			cut, call.lost = l.cut, true
			break
		}
	}
	r.calls = append(r.calls, *call)
	return cut, call.lost
}

// relayListener opens a connection to the server for each that it accepts.
type relayListener struct {
	net.Listener
	door *relayDoor
}

// Accept is net.Listener's.
func (l *relayListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	to, err := grpc.NewClient("passthrough:///"+l.door.server, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asIs{}), grpc.MaxCallRecvMsgSize(relayMost), grpc.MaxCallSendMsgSize(relayMost)))
	if err != nil {
		c.Close()
		return nil, err
	}
	l.door.mu.Lock()
	defer l.door.mu.Unlock()
	l.door.pairs[c.RemoteAddr().String()] = relayPair{c, to}
	return c, nil
}

// asIs is a codec for messages that are bytes already.
type asIs struct{}

// Name is that of gRPC's own codec: the bytes are the same.
func (asIs) Name() string { return "proto" }

// Marshal takes a *[]byte.
func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal fills a *[]byte.
func (asIs) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
