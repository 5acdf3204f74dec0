package fec

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// listenUDP binds a socket of the loopback interface.
func listenUDP(t testing.TB) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadBuffer(4 << 20)
	return c
}

// relay passes datagrams between two addresses and loses what lose says; each end
// sees the other at the relay's address.
type relay struct {
	conn *net.UDPConn
	done chan struct{}
}

func newRelay(t testing.TB, server net.Addr, lose func([]byte) bool) *relay {
	r := &relay{conn: listenUDP(t), done: make(chan struct{})}
	to := server.(*net.UDPAddr).AddrPort()
	go func() {
		defer close(r.done)
		var client netip.AddrPort
		buf := make([]byte, 4096)
		for {
			n, from, err := r.conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			dst := client
			if from != to {
				client, dst = from, to
			}
			if !lose(buf[:n]) {
				_, _ = r.conn.WriteToUDPAddrPort(buf[:n], dst)
			}
		}
	}()
	return r
}

func (r *relay) close() {
	_ = r.conn.Close()
	<-r.done
}

// end is a layer and its transport.
type end struct {
	layer     *Layer
	transport *quic.Transport
	lease     *Lease
	close     func()
}

func newEnd(t testing.TB, conn net.PacketConn, seed uint64) *end {
	l := New(conn, Options{Rand: mrand.New(mrand.NewPCG(seed, 0)), Queue: time.Minute})
	tr := &quic.Transport{Conn: l.PacketConn()}
	e := &end{layer: l, transport: tr, lease: l.Lease("peer")}
	e.close = func() {
		_ = tr.Close()
		l.Close()
		_ = conn.Close()
	}
	return e
}

// connect makes a connection from a to b, over the relay, and enables both.
func connect(t testing.TB, a, b *end, via net.Addr) (client, server *quic.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ln, err := b.transport.Listen(&tls.Config{Certificates: []tls.Certificate{certificate(t)}, NextProtos: []string{"test"}}, &quic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client, err = a.transport.Dial(ctx, via, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"test"}}, &quic.Config{}) //nolint:gosec // the test's own peer
	if err != nil {
		t.Fatal(err)
	}
	server, err = ln.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a.lease.Enable(client.RemoteAddr(), b.lease.Tag())
	b.lease.Enable(server.RemoteAddr(), a.lease.Tag())
	return client, server
}

// transfer sends n bytes from one end to the other and compares them.
func transfer(t testing.TB, from, to *quic.Conn, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	body := make([]byte, n)
	rng := mrand.New(mrand.NewPCG(9, 9))
	for i := 0; i+8 <= n; i += 8 {
		be.PutUint64(body[i:], rng.Uint64())
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		s, err := from.OpenStreamSync(ctx)
		if err == nil {
			_, err = s.Write(body)
			err = errors.Join(err, s.Close())
		}
		if err != nil {
			t.Errorf("sending: %v", err)
		}
	})
	s, err := to.AcceptStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(s)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(body) {
		t.Fatalf("%d bytes of %d came, equal %v, %v", len(got), n, bytes.Equal(got, body), err)
	}
}

// plainly hides that a socket is a UDP socket, as one of another system is.
type plainly struct{ net.PacketConn }

func TestLossyPathOverRealSockets(t *testing.T) {
	for _, c := range []struct {
		name string
		wrap func(*net.UDPConn) net.PacketConn
	}{
		{"with control messages", func(c *net.UDPConn) net.PacketConn { return c }},
		{"a datagram at a time", func(c *net.UDPConn) net.PacketConn { return plainly{c} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			ca, cb := listenUDP(t), listenUDP(t)
			rng := mrand.New(mrand.NewPCG(4, 4))
			frames, raw := 0, 0
			r := newRelay(t, cb.LocalAddr(), func(b []byte) bool {
				if b[0]&(quicBit|0x80) != 0 {
					raw++
				} else {
					frames++
				}
				return rng.Float64() < 0.02
			})
			a, b := newEnd(t, c.wrap(ca), 1), newEnd(t, c.wrap(cb), 2)
			client, server := connect(t, a, b, r.conn.LocalAddr())
			for range 2 {
				transfer(t, client, server, 1<<20)
				transfer(t, server, client, 512<<10)
			}
			sent, got := a.lease.Status(), b.lease.Status()
			_ = client.CloseWithError(0, "")
			b.close()
			a.close()
			r.close()
			if got.Recovered == 0 || sent.ParitySent == 0 || got.Withheld != 0 {
				t.Errorf("sender %+v, receiver %+v: nothing was repaired", sent, got)
			}
			if frames < 1500 || raw > 100 {
				t.Errorf("%d frames and %d other datagrams, want the handshake alone to go as it is", frames, raw)
			}
			if a.layer.Unknown() != 0 || b.layer.Unknown() != 0 {
				t.Errorf("%d and %d unknown frames", a.layer.Unknown(), b.layer.Unknown())
			}
		})
	}
}

// TestWithoutALeaseNothingIsTouched: what goes to and comes from a peer that has not
// negotiated is what QUIC said, byte by byte.
func TestWithoutALeaseNothingIsTouched(t *testing.T) {
	ca, cb := listenUDP(t), listenUDP(t)
	defer cb.Close()
	l := New(ca, Options{})
	defer l.Close()
	defer ca.Close()
	tr := &quic.Transport{Conn: l.PacketConn()}
	defer tr.Close()
	sent := []byte{quicBit, 2, 3, 4, 5, 6, 7, 8, 9}
	if _, err := tr.WriteTo(sent, cb.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	_ = cb.SetReadDeadline(time.Now().Add(3 * time.Minute))
	n, from, err := cb.ReadFrom(buf)
	if err != nil || !bytes.Equal(buf[:n], sent) {
		t.Fatalf("%x came, %v, want %x", buf[:n], err, sent)
	}
	for _, b := range [][]byte{{quicBit, 9, 9}, {0x00, 1, 2}, {0x0a, 1}, {0x30}} { // QUIC, STUN, nobody's, DTLS
		if out, _, ok := l.input(time.Now(), b, from, 0); ok || out != nil {
			t.Errorf("%x is taken for a frame", b)
		}
	}
	// Frames of nobody cost nothing but a count and now and then an answer.
	f := appendHeader(nil, &frame{kind: typeData, tag: 77})
	for range 100 {
		if out, _, ok := l.input(time.Now(), append(f, make([]byte, 50)...), cb.LocalAddr(), 0); !ok || len(out) != 0 {
			t.Fatal("a frame of nobody brings a packet")
		}
	}
	if l.Unknown() != 100 || len(l.peers) != 0 {
		t.Errorf("%d unknown frames, %d peers", l.Unknown(), len(l.peers))
	}
	n, _, err = cb.ReadFrom(buf)
	if err != nil || !bytes.Equal(buf[:n], appendReset(nil, 77)) {
		t.Errorf("%x came, %v, want the answer that nobody has the tag", buf[:n], err)
	}
}
