package node

import (
	"errors"
	"net"
	"testing"
)

// Connections go to whoever serves, one server after the other; those that come
// between two wait for the next.
func TestDoorIsServedInTurns(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := newDoor(ln)
	addr := ln.Addr().String()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// served reports whether the turn gets the connection.
	served := func(l net.Listener, c net.Conn) {
		t.Helper()
		got, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer got.Close()
		if got.RemoteAddr().String() != c.LocalAddr().String() {
			t.Errorf("accepted %s, want %s", got.RemoteAddr(), c.LocalAddr())
		}
	}
	early := dial() // before anybody serves
	first := d.turn()
	served(first, early)
	served(first, dial())
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := first.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a turn that is over: %v", err)
	}
	between := dial()
	second := d.turn()
	served(second, between)
	if second.Addr().String() != addr {
		t.Error("a turn has another address")
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := second.Accept()
		waiting <- err
	}()
	if err := d.close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the address has ended: %v", err)
	}
	if err := d.close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the address is still served")
	}
}
