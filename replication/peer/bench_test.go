package peer

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func TestSendDoesNotAllocate(t *testing.T) {
	o := Options{Self: broker("d1"), Incarnation: 2}.withDefaults()
	first := o.hello("shanghai", zone.ClassBulk)
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	p := &pair{d: &Dialer{o: o}}
	c := newConn(&p.d.o, &p.d.stats, &p.d.total, here, here, "l", &first, &first)
	s, err := c.open(1)
	if err != nil {
		t.Fatal(err)
	}
	c.pending = make([]byte, 0, 64<<10)
	f := wire.Frame{Type: wire.TypeBatch, Payload: make([]byte, 1<<10)}
	n := testing.AllocsPerRun(100, func() {
		c.pending = c.pending[:0] // no writer runs
		if err := s.Send(context.Background(), f); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a frame, want none", n)
	}
}

// BenchmarkSession sends frames of 64 KiB over TLS on the loopback to a session
// that drops them; one acknowledgement every 64 keeps the sender in sight.
func BenchmarkSession(b *testing.B) {
	now := time.Now()
	a, err := NewAuthority("bank", 0, now)
	if err != nil {
		b.Fatal(err)
	}
	tlsOf := func(id Identity) *TLS {
		pair, err := a.Issue(Request{Identity: id, Now: now})
		if err != nil {
			b.Fatal(err)
		}
		m, err := parseMaterial(pair.CertPEM, pair.KeyPEM, a.CAPEM(), now)
		if err != nil {
			b.Fatal(err)
		}
		s := &CertStore{}
		s.current.Store(m)
		return &TLS{Store: s, Authorize: allow}
	}
	const every = 64
	l, err := NewListener(Options{Self: broker("l1"), Incarnation: 1, TLS: tlsOf(broker("l1"))}, func(ctx context.Context, s *Session) {
		for i := 1; ; i++ {
			if _, err := s.Recv(ctx); err != nil {
				return
			}
			if i%every == 0 && s.Send(ctx, wire.Frame{Type: wire.TypeAck}) != nil {
				return
			}
		}
	})
	if err != nil {
		b.Fatal(err)
	}
	d, err := NewDialer(Options{Self: broker("d1"), Incarnation: 2, TLS: tlsOf(broker("d1"))})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve(ln) }()
	ctx := context.Background()
	s, err := d.Open(ctx, Target{Identity: broker("l1"), Addr: ln.Addr().String(), Destination: "shanghai", Class: zone.ClassBulk}, 1)
	if err != nil {
		b.Fatal(err)
	}
	f := wire.Frame{Type: wire.TypeOpen, Payload: make([]byte, 64<<10)}
	b.SetBytes(int64(len(f.Payload)))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if err := s.Send(ctx, f); err != nil {
			b.Fatal(err)
		}
		if (i+1)%every == 0 {
			if _, err := s.Recv(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	if err := s.Close(wire.CodeOK); err != nil {
		b.Error(err)
	}
	if err := d.Close(); err != nil {
		b.Error(err)
	}
	if err := l.Close(); err != nil {
		b.Error(err)
	}
	if err := <-served; err != nil {
		b.Error(err)
	}
}
