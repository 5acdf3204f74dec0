package rocketmq

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// TestFailuresBeyondWhatIsHeldAreNotRead: the more an address fails, the longer its
// connections rest, up to a bound; then little is read at a time. A connection that is
// closed, and one over which somebody has called who is known, do not rest.
func TestFailuresBeyondWhatIsHeldAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := rate.NewLimiter(failRests, 1)
		begin := func() *conn {
			here, there := net.Pipe()
			c := &conn{Conn: here, gone: make(chan struct{}), link: &link{opened: time.Now()}}
			t.Cleanup(func() {
				_ = there.Close()
				_ = c.cut()
			})
			go func() { _, _ = there.Write(make([]byte, 64<<10)) }()
			return c
		}
		read := func(c *conn) (took time.Duration, n int) {
			at := time.Now()
			n, _ = c.Read(make([]byte, 32<<10))
			return time.Since(at), n
		}
		c, other := begin(), begin()
		if took, n := read(c); took != 0 || n != 32<<10 {
			t.Errorf("%d bytes after %v, before any failure", n, took)
		}
		for range failRests + 1 {
			c.link.rest(fails)
		}
		other.link.rest(fails)
		if took, n := read(other); took < time.Second || took > 2*time.Second || n != restingRead {
			t.Errorf("another one of the address: %d bytes after %v, want about a second", n, took)
		}
		for range 100 * failRests {
			c.link.rest(fails)
		}
		if took, n := read(c); took != maxRest || n != restingRead {
			t.Errorf("%d bytes after %v, want %v", n, took, maxRest)
		}
		for range 100 * failRests {
			c.link.rest(fails)
			other.link.rest(fails)
		}
		time.AfterFunc(restStep/2, func() {
			other.link.called.Store(1)
			_ = c.cut()
		})
		if took, n := read(c); took != restStep/2 || n != 0 {
			t.Errorf("%d bytes after %v of a connection that is closed", n, took)
		}
		if took, n := read(other); took > restStep || n <= restingRead {
			t.Errorf("%d bytes after %v, of one over which somebody has called who is known", n, took)
		}
		other.link.rest(fails)
		if took, _ := read(other); took != 0 {
			t.Errorf("it rests again for %v", took)
		}
	})
}
