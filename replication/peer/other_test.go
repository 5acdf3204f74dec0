package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

func TestOtherProtocolsAreHandedOnAfterTLS(t *testing.T) {
	a := authority(t, "bank", time.Now())
	server, client := store(t, a, broker("b-1"), time.Now), store(t, a, broker("b-2"), time.Now)
	got := make(chan net.Conn, 1)
	l, err := NewListener(Options{Self: server.Identity(), Incarnation: 1, TLS: &TLS{Store: server, Authorize: allow},
		Others: map[string]func(net.Conn){"other/1": func(c net.Conn) { got <- c }}}, echo)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve(ln) }()
	dial := func(protocol string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		return DialOther(ctx, &TLS{Store: client, Authorize: allow}, ln.Addr().String(), server.Identity(), protocol, nil)
	}
	c, err := dial("other/1")
	if err != nil {
		t.Fatal(err)
	}
	theirs := <-got
	if n := l.Stats().Connected; n != 0 {
		t.Errorf("the listener counts %d connections of its own", n)
	}
	// It belongs to whoever took it, also when the listener ends.
	if err := errors.Join(l.Close(), <-served); err != nil {
		t.Error(err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(theirs, buf); err != nil || string(buf) != "hello" {
		t.Errorf("read %q, %v", buf, err)
	}
	if err := errors.Join(theirs.Close(), c.Close()); err != nil {
		t.Log(err)
	}
}

func TestUnknownProtocolsAreRefused(t *testing.T) {
	a := authority(t, "bank", time.Now())
	server, client := store(t, a, broker("b-1"), time.Now), store(t, a, broker("b-2"), time.Now)
	l, err := NewListener(Options{Self: server.Identity(), Incarnation: 1, TLS: &TLS{Store: server, Authorize: allow}}, echo)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve(ln) }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	_, err = DialOther(ctx, &TLS{Store: client, Authorize: allow}, ln.Addr().String(), server.Identity(), "other/1", nil)
	var d *DialError
	if !errors.As(err, &d) || d.Step != StepTLS {
		t.Errorf("dial: %v, want a *DialError of TLS", err)
	}
	if err := errors.Join(l.Close(), <-served); err != nil {
		t.Error(err)
	}
}
