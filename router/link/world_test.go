package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/mqrouter/mqrouter/replication/peer"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const testDeployment = "test"

// authority issues the certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

var (
	validFrom  = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) // a bubble starts in 2000
	validUntil = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: validFrom, NotAfter: validUntil, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert: cert, key: key, pool: pool}
}

// issue returns the TLS configuration of a node; the subject names it.
func (a *authority) issue(t testing.TB, id peer.Identity) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject: pkix.Name{
			CommonName: string(id.Name), Locality: []string{string(id.City)},
			Organization: []string{id.Deployment}, OrganizationalUnit: []string{fmt.Sprint(uint8(id.Role))},
		},
		NotBefore: validFrom, NotAfter: validUntil, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"node"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      a.pool, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert,
		ServerName: "node", MinVersion: tls.VersionTLS13, NextProtos: []string{ALPN},
	}
}

func identify(c *x509.Certificate) (peer.Identity, error) {
	var role uint8
	if _, err := fmt.Sscan(c.Subject.OrganizationalUnit[0], &role); err != nil {
		return peer.Identity{}, err
	}
	return peer.Identity{
		Deployment: c.Subject.Organization[0], City: zone.City(c.Subject.Locality[0]),
		Role: zone.Role(role), Name: zone.Node(c.Subject.CommonName),
	}, nil
}

// lossy is a simulated network whose loss a test decides for each packet.
type lossy struct {
	simnet.PerfectRouter
	drop atomic.Pointer[func(simnet.Packet) bool]
}

func (l *lossy) SendPacket(p simnet.Packet) error {
	if f := l.drop.Load(); f != nil && (*f)(p) {
		return nil
	}
	return l.PerfectRouter.SendPacket(p)
}

// world is a simulated network with routers, inside a synctest bubble.
type world struct {
	t     *testing.T
	net   *lossy
	sim   *simnet.Simnet
	ca    *authority
	next  byte
	delay time.Duration // one way
	wg    sync.WaitGroup
	ends  []func()
	all   []*node
	links []*simnet.SimulatedLink // of all's sockets
}

func newWorld(t *testing.T, oneWay time.Duration) *world {
	w := &world{t: t, net: &lossy{}, ca: newAuthority(t), delay: oneWay}
	w.sim = &simnet.Simnet{Router: w.net}
	return w
}

// close stops every node and waits for what they started.
func (w *world) close() {
	for i := len(w.ends) - 1; i >= 0; i-- {
		w.ends[i]()
	}
	w.wg.Wait()
	time.Sleep(time.Minute) // simulated: timers of quic-go that nobody joins
	synctest.Wait()
}

// socket adds an endpoint to the network.
func (w *world) socket() *simnet.SimConn {
	w.next++
	addr := &net.UDPAddr{IP: net.IPv4(10, 0, 0, w.next).To4(), Port: 4433}
	l := &simnet.SimulatedLink{Latency: w.delay, UploadPacket: w.net}
	c := simnet.NewBlockingSimConn(addr, l)
	w.net.AddNode(addr, l)
	w.links = append(w.links, l)
	l.Start()
	w.ends = append(w.ends, func() {
		_ = c.Close()
		_ = l.Close()
	})
	return c
}

// node is a running manager.
type node struct {
	*Manager
	peer   Peer
	cancel context.CancelFunc
	done   chan error
	sock   *simnet.SimConn
}

// start runs a manager; handle may be nil.
func (w *world) start(name zone.Node, city zone.City, incarnation record.Incarnation, handle func(context.Context, *Session), change func(*Options)) *node {
	w.t.Helper()
	sock := w.socket()
	conf := w.ca.issue(w.t, peer.Identity{Deployment: testDeployment, City: city, Role: zone.RoleRouter, Name: name})
	if handle == nil {
		handle = func(ctx context.Context, s *Session) { echo(ctx, s) }
	}
	o := Options{
		Deployment: testDeployment, City: city, Node: name, Incarnation: incarnation, PacketConn: sock,
		TLS: func(*Peer) *tls.Config { return conf }, Identify: identify, Handle: handle,
		Classes: []zone.Class{zone.ClassUrgent}, Rand: mrand.New(mrand.NewPCG(1, uint64(w.next))),
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	m, err := New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{Manager: m, cancel: cancel, done: make(chan error, 1), sock: sock,
		peer: Peer{Node: name, City: city, Addr: sock.LocalAddr().String()}}
	w.all = append(w.all, n)
	w.wg.Go(func() { n.done <- m.Run(ctx) })
	w.ends = append(w.ends, func() {
		cancel()
		if err := <-n.done; err != nil {
			w.t.Errorf("%s: Run: %v", name, err)
		}
	})
	return n
}

func echo(ctx context.Context, s *Session) {
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return
		}
		if err := s.Send(ctx, f); err != nil {
			return
		}
	}
}

// until waits in simulated time; it fails the test when cond does not come true.
func (w *world) until(limit time.Duration, what string, cond func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > limit {
			for _, n := range w.all {
				w.t.Logf("%s: %+v, refused %d", n.peer.Node, n.Status(), n.Refusals())
			}
			w.t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start)
}

func up(n *node, to *node) func() bool {
	return func() bool {
		_, ok := n.Up(to.peer.Node, zone.ClassUrgent)
		return ok
	}
}

func statusOf(n *node, peer zone.Node) Status {
	for _, s := range n.Status() {
		if s.Node == peer {
			return s
		}
	}
	return Status{}
}

// pair starts two nodes that know each other.
func (w *world) pair(handle func(context.Context, *Session), change func(*Options)) (a, b *node) {
	a = w.start("a", "amsterdam", 11, handle, change)
	b = w.start("b", "berlin", 12, handle, change)
	a.SetPeers([]Peer{b.peer})
	b.SetPeers([]Peer{a.peer})
	return a, b
}

func (w *world) setDrop(f func(simnet.Packet) bool) {
	if f == nil {
		w.net.drop.Store(nil)
		return
	}
	w.net.drop.Store(&f)
}

func frame(session uint64, payload string) wire.Frame {
	return wire.Frame{Type: wire.TypeBatch, Session: session, Class: zone.ClassUrgent, Payload: []byte(payload)}
}
