package call

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// patience bounds waits of tests with real sockets; reaching it is a failure.
const patience = 3 * time.Minute

// site is a deployment with the sample's topology.
type site struct {
	t         *testing.T
	authority *peer.Authority
	topology  *zone.Topology
}

func newSite(t *testing.T) *site {
	t.Helper()
	top, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		t.Fatal(err)
	}
	a, err := peer.NewAuthority(top.Deployment, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &site{t, a, top}
}

// options are those of a node of the topology.
func (s *site) options(name zone.Node, roles ...zone.Role) peer.Options {
	s.t.Helper()
	id := peer.IdentityFor(s.topology.Deployment, s.topology.FindNode(name))
	dir := s.t.TempDir()
	pair, err := s.authority.Issue(peer.Request{Identity: id, Now: time.Now()})
	if err == nil {
		err = s.authority.Save(dir)
	}
	if err == nil {
		err = pair.Save(dir, string(name))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	certs, err := peer.OpenCertStore(peer.StoreOptions{Files: peer.FilesIn(dir, string(name))})
	if err != nil {
		s.t.Fatal(err)
	}
	calm := peer.Timing{Handshake: patience, Write: patience, Dead: patience, Idle: patience}
	return peer.Options{Self: id, Incarnation: 1, Timing: calm,
		TLS: &peer.TLS{Store: certs, Authorize: peer.AuthorizeBy(func() *zone.Topology { return s.topology }, roles...)}}
}

// listen answers calls to rz01-a at a real socket.
func (s *site) listen(server *Server) (address string) {
	s.t.Helper()
	l, err := peer.NewListener(s.options("rz01-a-1", zone.RoleBroker, zone.RoleRouter), func(ctx context.Context, st *peer.Session) {
		if first, err := st.Recv(ctx); err == nil && first.Type == wire.TypeCall {
			_ = server.Serve(ctx, st.Peer().Node, st, first) // the caller sees what went wrong
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ln); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			s.t.Error(err)
		}
		wg.Wait()
	})
	return ln.Addr().String()
}

func (s *site) client(name zone.Node, address string) *Client {
	s.t.Helper()
	d, err := peer.NewDialer(s.options(name, zone.RoleBroker))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			s.t.Error(err)
		}
	})
	var n uint64
	to := peer.Target{Identity: peer.IdentityFor(s.topology.Deployment, s.topology.FindNode("rz01-a-1")), Addr: address, Class: zone.ClassControl}
	c, err := NewClient(Options{Session: func() uint64 { n++; return n }, Open: func(ctx context.Context, _ zone.Group, session uint64) (wire.Stream, error) {
		st, err := d.Open(ctx, to, session)
		if err != nil {
			return nil, err
		}
		return st, nil
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// Two brokers of one zone over TCP and mutual TLS; everybody else with a good
// certificate of the deployment is refused.
func TestZoneCallsOverRealSockets(t *testing.T) {
	server, err := NewServer(ServerOptions{Handle: func(_ context.Context, kind uint8, body []byte) ([]byte, error) {
		if kind != kindEcho {
			return nil, &Fault{Kind: 3, Text: "no"}
		}
		return body, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	address := s.listen(server)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := s.client("rz01-b-1", address)
	if got, err := c.Call(ctx, "rz01-a", kindEcho, make([]byte, 4<<20)); err != nil || len(got) != 4<<20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	var f *Fault
	if _, err := c.Call(ctx, "rz01-a", kindFault, nil); !errors.As(err, &f) || f.Kind != 3 {
		t.Errorf("a refusal arrives as %v", err)
	}
	for _, name := range []zone.Node{"rz02-a-1", "gz01-a-1", "cz-sh-a-1", "rt-sh-1"} {
		_, err := s.client(name, address).Call(ctx, "rz01-a", kindEcho, nil)
		refusedWith(t, err, wire.CodeWrongIdentity)
	}
	// A node of another deployment, even of the same names, does not get as far.
	stranger := newSite(t)
	_, err = stranger.client("rz01-b-1", address).Call(ctx, "rz01-a", kindEcho, nil)
	notAnswered(t, err, false)
}
