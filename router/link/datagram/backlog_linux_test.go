package datagram

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/ipv4"
)

var watched = &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4433}

const size = 1000 // bytes of a packet

// hand hands n packets of the watched address on, as fast as it may.
func hand(c *Conn, n int) {
	m := &ipv4.Message{N: size}
	for range n {
		c.backlog = c.backlogs.of(watched)
		c.HandOn(m)
	}
}

// TestTheReaderWaitsForConnections: what waits for a connection stays below what
// quic-go holds for it, however long it is behind, and all of it is handed on.
func TestTheReaderWaitsForConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{}
		var given, taken atomic.Int64 // packets
		stop := c.Watch(watched, func() uint64 { return uint64(taken.Load()) * size })
		defer stop()
		const packets = 200_000
		var wg sync.WaitGroup
		wg.Go(func() {
			for taken.Load() < packets {
				time.Sleep(3 * time.Microsecond)
				if taken.Load() < given.Load() {
					taken.Add(1)
				}
			}
		})
		start, most := time.Now(), int64(0)
		for range packets {
			given.Add(1)
			hand(c, 1)
			most = max(most, given.Load()-taken.Load())
		}
		wg.Wait()
		if most > backlogMax+lookEvery || most < backlogMax {
			t.Errorf("up to %d packets waited, want about %d", most, backlogMax)
		}
		if took, least := time.Since(start), packets*3*time.Microsecond; took > least*11/10 {
			t.Errorf("they took %v, the connection alone takes %v", took, least)
		}
	})
}

// TestWhatNobodyTakesHoldsNothingUp: packets of no connection in a peer's name cost the
// reader a twentieth of its time at most, and the peer's own are waited for after them.
func TestWhatNobodyTakesHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{}
		var taken atomic.Uint64
		stop := c.Watch(watched, taken.Load)
		defer stop()
		start := time.Now()
		var waited time.Duration
		for time.Since(start) < 10*time.Second {
			before := time.Now()
			hand(c, 100)
			waited += time.Since(before)
			time.Sleep(time.Millisecond) // 100,000 a second
		}
		if waited == 0 || waited > 10*time.Second/15 {
			t.Errorf("the reader waited %v of 10 s", waited)
		}
		time.Sleep(restFor)
		hand(c, 2*backlogMax)
		before := time.Now()
		if hand(c, lookEvery); time.Since(before) > 0 {
			t.Error("it waits again at once")
		}
		time.Sleep(restFor)
		own := c.backlogs.of(watched)
		if hand(c, 1); own.open(own.handed) < size {
			t.Error("what was spare hides what is not taken")
		}
	})
}

// TestMoreThanWasGivenCannotBeTaken: what was thought to be nobody's and is taken after
// all must not hide what waits later.
func TestMoreThanWasGivenCannotBeTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{}
		var taken atomic.Uint64
		taken.Store(5000) // of before
		stop := c.Watch(watched, taken.Load)
		defer stop()
		b := c.backlogs.of(watched)
		start := time.Now()
		for time.Since(start) < pauseMost {
			hand(c, lookEvery)
		}
		if b.open(b.handed) != 0 {
			t.Fatalf("%d bytes wait after the reader has waited in vain", b.open(b.handed))
		}
		taken.Add(b.handed)
		if n := b.open(b.handed); n != 0 {
			t.Errorf("%d bytes wait when all are taken", n)
		}
		hand(c, 1)
		if n := b.open(b.handed); n != size {
			t.Errorf("%d bytes wait, want %d", n, size)
		}
	})
}

func TestWatchesEnd(t *testing.T) {
	c := &Conn{}
	if c.backlogs.of(watched) != nil {
		t.Fatal("an address that nobody watches is known")
	}
	var first, second atomic.Uint64
	stopFirst := c.Watch(watched, first.Load)
	stopSecond := c.Watch(watched, second.Load)
	b := c.backlogs.of(watched)
	hand(c, 10)
	first.Store(4 * size)
	if n := b.open(b.handed); n != 6*size {
		t.Fatalf("%d bytes wait, want %d", n, 6*size)
	}
	stopFirst()
	stopFirst()
	if n := b.open(b.handed); n != 6*size || c.backlogs.of(watched) != b {
		t.Errorf("%d bytes wait after one of two connections has ended, want %d", n, 6*size)
	}
	second.Store(6 * size)
	if n := b.open(b.handed); n != 0 {
		t.Errorf("%d bytes wait, want none", n)
	}
	stopSecond()
	if c.backlogs.of(watched) != nil {
		t.Error("an address stays known without a connection")
	}
	c.Watch(&net.UnixAddr{Name: "x"}, first.Load)()
	if c.backlogs.of(&net.UnixAddr{Name: "x"}) != nil {
		t.Error("another kind of address is watched")
	}
}

// TestAMappedAddressIsTheSame: a socket for both families tells IPv4 addresses as
// mapped ones.
func TestAMappedAddressIsTheSame(t *testing.T) {
	c := &Conn{}
	stop := c.Watch(&net.UDPAddr{IP: net.IPv4(10, 0, 0, 1).To4(), Port: 1}, func() uint64 { return 0 })
	defer stop()
	if c.backlogs.of(&net.UDPAddr{IP: net.IPv4(10, 0, 0, 1).To16(), Port: 1}) == nil {
		t.Error("it is another")
	}
}

// TestWatchesChangeWhileRead is for the race detector.
func TestWatchesChangeWhileRead(t *testing.T) {
	c := &Conn{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				var taken atomic.Uint64
				stop := c.Watch(watched, func() uint64 { return taken.Add(100) })
				stop()
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for over := false; !over; {
		hand(c, 100)
		select {
		case <-done:
			over = true
		default:
		}
	}
}
