package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// TestMain fails when goroutines outlive the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// pipeNet is a network of pipes: what is written is read at once or blocks, as
// a socket with no buffer would. It works inside a synctest bubble.
type pipeNet struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipeNet() *pipeNet { return &pipeNet{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipeNet) Close() error { p.once.Do(func() { close(p.done) }); return nil }

func (p *pipeNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipeNet) dial(ctx context.Context, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pair is a listener (broker l1) and a dialer (broker d1) on a pipeNet, without
// TLS.
type pair struct {
	net *pipeNet
	l   *Listener
	d   *Dialer
	wg  sync.WaitGroup

	opened []*Session // only the test's goroutine
}

func newPair(t *testing.T, handle func(context.Context, *Session), change func(l, d *Options)) *pair {
	t.Helper()
	p := &pair{net: newPipeNet()}
	lo := Options{Self: broker("l1"), Group: "gl", Incarnation: 1}
	do := Options{Self: broker("d1"), Group: "gd", Incarnation: 2, DialContext: p.net.dial}
	if change != nil {
		change(&lo, &do)
	}
	var err error
	if p.l, err = NewListener(lo, handle); err != nil {
		t.Fatal(err)
	}
	if p.d, err = NewDialer(do); err != nil {
		t.Fatal(err)
	}
	p.wg.Go(func() {
		if err := p.l.Serve(p.net); err != nil && !errors.Is(err, ErrClosed) { // a quick test closes first
			t.Error(err)
		}
	})
	return p
}

func (p *pair) close(t *testing.T) {
	t.Helper()
	for _, c := range []func() error{p.d.Close, p.l.Close, p.d.Close, p.l.Close} {
		if err := c(); err != nil {
			t.Error(err)
		}
	}
	p.wg.Wait()
	for _, s := range p.opened { // as every user does in the end
		if err := s.Close(wire.CodeOK); err != nil {
			t.Error(err)
		}
	}
	if l, d := p.l.Stats().Held, p.d.Stats().Held; l != 0 || d != 0 {
		t.Errorf("bytes still reserved: %d and %d", l, d)
	}
}

func target() Target {
	return Target{Identity: broker("l1"), Addr: "x:1", Destination: "shanghai", Class: zone.ClassBulk}
}

func (p *pair) open(t *testing.T, id uint64) *Session {
	t.Helper()
	s, err := p.d.Open(context.Background(), target(), id)
	if err != nil {
		t.Fatal(err)
	}
	p.opened = append(p.opened, s)
	return s
}

func send(t *testing.T, s *Session, typ wire.Type, payload string) {
	t.Helper()
	if err := s.Send(context.Background(), wire.Frame{Type: typ, Payload: []byte(payload)}); err != nil {
		t.Fatal(err)
	}
}

func recv(t *testing.T, s *Session) wire.Frame {
	t.Helper()
	f, err := s.Recv(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// echo returns every frame until the session ends.
func echo(ctx context.Context, s *Session) {
	for {
		f, err := s.Recv(ctx)
		if err != nil {
			return
		}
		if s.Send(ctx, f) != nil {
			return
		}
	}
}

// closedWith checks that err is a *wire.ClosedError with the code.
func closedWith(t *testing.T, err error, code wire.Code) {
	t.Helper()
	var ce *wire.ClosedError
	if !errors.As(err, &ce) || ce.Code != code {
		t.Errorf("error %v, want *wire.ClosedError with %s", err, code)
	}
}

// stranger connects without a Dialer.
func (p *pair) stranger(t *testing.T) net.Conn {
	t.Helper()
	c, err := p.net.dial(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (p *pair) hello() wire.Hello { return p.d.o.hello("shanghai", zone.ClassBulk) }

// greeted connects without a Dialer and exchanges greetings.
func (p *pair) greeted(t *testing.T) net.Conn {
	t.Helper()
	c := p.stranger(t)
	h := p.hello()
	if _, err := greetFirst(c, &h, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// drainConn reads and forgets until the connection ends, and says how.
func drainConn(c net.Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				done <- err
				return
			}
		}
	}()
	return done
}

func rawFrame(t *testing.T, f wire.Frame) []byte {
	t.Helper()
	b, err := wire.AppendFrame(nil, &f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// patience bounds waits of tests with real sockets; reaching it is a failure.
const patience = 3 * time.Minute
