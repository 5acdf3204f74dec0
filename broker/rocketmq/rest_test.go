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
		fails := &suspect{rests: rate.NewLimiter(failRests, 1)}
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

// TestFewConnectionsOfAnAddressRest: nobody sees that a client has closed a connection
// that rests. One more than may rest is closed, until another is.
func TestFewConnectionsOfAnAddressRest(t *testing.T) {
	fails, all := &suspect{rests: rate.NewLimiter(failRests, 1)}, newAnswers(leastRequests)
	shut := 0
	begin := func() *link {
		here, there := net.Pipe()
		t.Cleanup(func() {
			_ = here.Close()
			_ = there.Close()
		})
		l := all.open(here, func() error {
			shut++
			return nil
		})
		l.rest(fails)
		l.rest(fails)
		return l
	}
	var links []*link
	for range maxResting {
		links = append(links, begin())
	}
	if shut != 0 {
		t.Errorf("%d were closed of those that may rest", shut)
	}
	if begin(); shut == 0 {
		t.Error("one more rests")
	}
	shut = 0
	links[0].leave()
	links[0].rest(fails)
	if begin(); shut != 0 {
		t.Error("the place of one that was closed is not given to another")
	}
	for _, l := range links[1:] {
		l.leave()
	}
	if n := fails.resting.Load(); n != 1 {
		t.Errorf("%d are counted when one rests", n)
	}
}
