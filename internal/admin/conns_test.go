package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// heldNode answers a search when it is told to.
type heldNode struct {
	fakeNode
	entered, free chan struct{}
}

func (n heldNode) Find(context.Context, string) ([]Sighting, error) {
	close(n.entered)
	<-n.free
	return nil, nil
}

// TestSilentConnectionsKeepNoOperatorOut: more connections than there may be say nothing,
// or begin a request; a request that is being served is, and another one too.
func TestSilentConnectionsKeepNoOperatorOut(t *testing.T) {
	n := heldNode{entered: make(chan struct{}), free: make(chan struct{})}
	addr := serve(t, n)
	found := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + addr + "/v1/messages/x")
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		found <- err
	}()
	<-n.entered
	for i := range maxConns + 20 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			_, _ = io.WriteString(c, "GET /v1/sta") // it may have ended already
		}
	}
	if code, text := body(t, "http://"+addr+"/healthz"); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	close(n.free)
	if err := <-found; err != nil {
		t.Errorf("the request that was being served: %v", err)
	}
}

// TestConnectionsThatEndAreForgotten: by themselves, or for others.
func TestConnectionsThatEndAreForgotten(t *testing.T) {
	c := newConns(2)
	pipe := func() net.Conn {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		return a
	}
	first, second, third := pipe(), pipe(), pipe()
	if err := second.SetDeadline(time.Unix(1, 0)); err != nil { // nobody reads what is written to it
		t.Fatal(err)
	}
	busy := c.open(t.Context(), first)
	end := c.serving((&http.Request{}).WithContext(busy))
	c.open(t.Context(), second)
	c.open(t.Context(), third)
	if _, err := second.Write(nil); !errors.Is(err, io.ErrClosedPipe) || c.size() != 2 {
		t.Errorf("the one without a request: %v, %d are open", err, c.size())
	}
	end()
	for _, conn := range []net.Conn{first, second, third} {
		c.changed(conn, http.StateClosed)
	}
	if c.size() != 0 || c.line.Len() != 0 {
		t.Errorf("%d are open when all have ended", c.size())
	}
}

// TestBusyConnectionsMakeRoom: when each connection has a request, the one that has had
// it for longest ends.
func TestBusyConnectionsMakeRoom(t *testing.T) {
	c := newConns(2)
	open := func() (net.Conn, context.Context) {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		return a, c.open(t.Context(), a)
	}
	first, ctx := open()
	c.serving((&http.Request{}).WithContext(ctx))
	second, ctx := open()
	c.serving((&http.Request{}).WithContext(ctx))
	third, _ := open()
	for conn, ended := range map[net.Conn]bool{first: true, second: false, third: false} {
		if err := conn.SetDeadline(time.Unix(1, 0)); errors.Is(err, io.ErrClosedPipe) != ended {
			t.Errorf("%v, want it ended: %v", err, ended)
		}
	}
	if c.size() != 2 {
		t.Errorf("%d are open", c.size())
	}
}
