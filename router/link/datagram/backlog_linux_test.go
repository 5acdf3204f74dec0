package datagram

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/ipv4"
)

var watched = &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4433}

const size = 1000 // bytes of a packet

// quicHolds is how many packets quic-go holds for a connection.
const quicHolds = 256

// hand hands n packets of the address on, as fast as it may.
func hand(c *Conn, from net.Addr, n int) {
	m := &ipv4.Message{N: size}
	for range n {
		c.StepBack()
		c.backlog = c.backlogs.of(from)
		c.HandOn(m, true)
	}
}

// consumer is a connection that takes a packet in 3 µs.
type consumer struct {
	given, taken, nobodys atomic.Int64 // packets; nobodys: of given, those it never takes
	away                  atomic.Bool  // it waits for a processor
	most                  int64        // that waited for it
	dropped               int64        // of nobodys, those that it had no room for
}

func (x *consumer) bytes() uint64 { return uint64(x.taken.Load()) * size }

func (x *consumer) waiting() int64 { return x.given.Load() - x.nobodys.Load() - x.taken.Load() }

// run takes packets until it is over.
func (x *consumer) run(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		time.Sleep(3 * time.Microsecond)
		if !x.away.Load() && x.waiting() > 0 {
			x.taken.Add(1)
		}
	}
}

// give hands it a packet, which is dropped if it has no room, as quic-go does.
func (x *consumer) give(c *Conn) {
	if x.waiting() >= quicHolds {
		x.nobodys.Add(1)
		x.dropped++
	}
	x.given.Add(1)
	hand(c, watched, 1)
	x.most = max(x.most, x.waiting())
}

// TestTheReaderWaitsForConnections: what waits for a connection stays below what
// quic-go holds for it, however long it is behind, and all of it is handed on. So it
// does when somebody sends a packet each 200 ms that no connection takes.
func TestTheReaderWaitsForConnections(t *testing.T) {
	for name, strays := range map[string]bool{"all are taken": false, "some are nobody's": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, x := &Conn{}, &consumer{}
				stop := c.Watch(watched, x.bytes)
				defer stop()
				const packets = 400_000
				var wg sync.WaitGroup
				over := make(chan struct{})
				wg.Go(func() { x.run(over) })
				start, last := time.Now(), time.Now()
				for range packets {
					x.give(c)
					if strays && time.Since(last) >= 200*time.Millisecond {
						last = time.Now()
						x.nobodys.Add(1)
						x.give(c)
					}
				}
				took := time.Since(start)
				close(over)
				wg.Wait()
				if x.dropped > 0 || x.most > quicHolds-readAtOnce || x.most < backlogMax {
					t.Errorf("up to %d packets waited and %d were dropped, want %d or somewhat more, and none", x.most, x.dropped, backlogMax)
				}
				if least := packets * 3 * time.Microsecond; took > least*102/100 {
					t.Errorf("they took %v, the connection alone takes %v", took, least)
				}
			})
		})
	}
}

// readAtOnce is how many packets quic-go reads at once.
const readAtOnce = 8

// TestAConnectionThatWasAwayIsWaitedForAgain: for 100 ms a connection gets no processor,
// and the reader waits in vain. What has gathered until it does so again is lost, but
// afterwards what waits is bounded as before.
func TestAConnectionThatWasAwayIsWaitedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, x := &Conn{}, &consumer{}
		stop := c.Watch(watched, x.bytes)
		defer stop()
		var wg sync.WaitGroup
		const packets = 1_000_000
		over := make(chan struct{})
		wg.Go(func() { x.run(over) })
		late := int64(0)
		for i := range packets {
			if i == 1000 {
				x.away.Store(true)
				time.AfterFunc(100*time.Millisecond, func() { x.away.Store(false) })
			}
			x.give(c)
			time.Sleep(2 * time.Microsecond) // more than it takes
			if i == packets/2 {
				late = x.dropped
			}
		}
		close(over)
		wg.Wait()
		if x.dropped > late {
			t.Errorf("%d packets dropped long after the connection was away, %d before", x.dropped-late, late)
		}
		if late == 0 {
			t.Error("none was dropped while it was away: that shows nothing")
		}
	})
}

// TestOneLongSleepCostsNoPatience: on a busy machine a pause may take many times what it
// should, and the reader waits for others as soon as it would after a wait of its own.
func TestOneLongSleepCostsNoPatience(t *testing.T) {
	c := &Conn{}
	defer c.Watch(watched, func() uint64 { return 0 })()
	b, now := c.backlogs.of(watched), time.Unix(1, 0)
	slept := 0
	look := func(takes time.Duration) {
		for range 2 * backlogMax {
			b.add(100)
		}
		slept = 0
		b.look(&c.patience, func() time.Time { return now }, func(time.Duration) { slept++; now = now.Add(takes) })
	}
	if look(time.Second); slept != 1 {
		t.Fatalf("it slept %d times, want once for too long", slept)
	}
	now = now.Add(vainShare * vainMost)
	if look(pause); slept == 0 {
		t.Error("it does not wait when its patience is there again")
	}
}

// TestWhatNobodyTakesHoldsNothingUp: packets of no connection, in the name of one peer or
// of many, cost the reader a twentieth of its time at most.
func TestWhatNobodyTakesHoldsNothingUp(t *testing.T) {
	for _, peers := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			c := &Conn{}
			var from []*net.UDPAddr
			for i := range peers {
				from = append(from, &net.UDPAddr{IP: net.IPv4(10, 0, 1, byte(i)), Port: 4433})
				stop := c.Watch(from[i], func() uint64 { return 0 })
				defer stop()
			}
			start := time.Now()
			var waited time.Duration
			for time.Since(start) < 10*time.Second {
				for _, a := range from {
					before := time.Now()
					hand(c, a, 100)
					waited += time.Since(before)
				}
				time.Sleep(time.Millisecond)
			}
			if most := 10*time.Second/vainShare + vainMost + pauseMost; waited == 0 || waited > most {
				t.Errorf("in the name of %d peers: the reader waited %v of 10 s, want at most %v", peers, waited, most)
			}
		})
	}
}

// TestWhatIsNobodysAfterAWait: of a connection that has taken packets meanwhile all that
// is left, since it would have gone on; of one that has not, not the last ones.
func TestWhatIsNobodysAfterAWait(t *testing.T) {
	for _, runs := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := &Conn{}
			var taken atomic.Uint64
			stop := c.Watch(watched, taken.Load)
			defer stop()
			if runs {
				time.AfterFunc(time.Millisecond, func() { taken.Add(size) })
			}
			start := time.Now()
			for time.Since(start) < pauseMost {
				hand(c, watched, 1)
			}
			b := c.backlogs.of(watched)
			if left := b.untaken(b.handed); runs && left > size || !runs && left < backlogMax*size {
				t.Errorf("it runs: %v; %d of %d bytes are waited for", runs, left, b.handed)
			}
		})
	}
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
		hand(c, watched, 10*lookEvery)
		if b.spare <= 0 {
			t.Fatalf("%d bytes are spare after the reader has waited in vain", b.spare)
		}
		taken.Add(b.handed)
		if n := b.untaken(b.handed); n != 0 {
			t.Errorf("%d bytes wait when all are taken", n)
		}
		hand(c, watched, 1)
		if n := b.untaken(b.handed); n != size {
			t.Errorf("%d bytes wait, want %d", n, size)
		}
	})
}

// TestAnEndHoldsNothingUp: what waited for a connection that has ended is nobody's.
func TestAnEndHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{}
		var first, second atomic.Uint64
		stopFirst := c.Watch(watched, first.Load)
		stopSecond := c.Watch(watched, second.Load)
		defer stopSecond()
		for range 190 { // as many as there may be
			c.backlogs.of(watched).add(size)
		}
		stopFirst()
		start := time.Now()
		for range 10 {
			hand(c, watched, lookEvery)
			second.Add(lookEvery * size)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the reader waited %v for a connection that has ended", took)
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
	hand(c, watched, 10)
	first.Store(4 * size)
	if n := b.untaken(b.handed); n != 6*size {
		t.Fatalf("%d bytes wait, want %d", n, 6*size)
	}
	stopFirst()
	stopFirst()
	if n := b.untaken(b.handed); n != 6*size || c.backlogs.of(watched) != b {
		t.Errorf("%d bytes wait after one of two connections has ended, want %d", n, 6*size)
	}
	second.Store(6 * size)
	if n := b.untaken(b.handed); n != 0 {
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

// TestWhoIsWokenRuns: a goroutine that the reader wakes gets the reader's processor, if
// there is no other.
func TestWhoIsWokenRuns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c, woken := &Conn{}, make(chan struct{}, 1)
	var ran atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-woken
		ran.Store(true)
	}()
	runtime.Gosched() // it waits
	woken <- struct{}{}
	hand(c, watched, 4*yieldAfter)
	if !ran.Load() {
		t.Error("it waits still")
	}
	<-done
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
		hand(c, watched, 100)
		select {
		case <-done:
			over = true
		default:
		}
	}
}
