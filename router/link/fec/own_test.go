package fec

import (
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
)

// spend has a controller send parity, as a sender does for a full block.
func spend(c *controller) int {
	if c.rows(false) == 0 {
		return 0
	}
	return c.parity(false, fullRate, maxData, maxData*1400, 1400)
}

// TestLossesOfTheOwnSocketGetNoParity: what the receiver had no room for is not
// what the path lost, in whatever order the two are told.
func TestLossesOfTheOwnSocketGetNoParity(t *testing.T) {
	c := newController(0.25, 1.2)
	now := time.Unix(1, 0)
	var r report
	feed(c, &now, &r, 5*time.Second, 1000, 0)
	for range 20 {
		r.own += 300
		feed(c, &now, &r, 2*reportTime, 1000, 0)
		r.lost, r.bursts = r.lost+300, r.bursts+2
		feed(c, &now, &r, time.Second, 1000, 0)
		if n := spend(c); n != 0 {
			t.Fatalf("%d parity packets for what the receiver's socket dropped", n)
		}
	}
	// What the path loses beside that is corrected.
	for range 20 {
		r.own, r.lost, r.bursts = r.own+300, r.lost+300, r.bursts+2
		feed(c, &now, &r, time.Second, 1000, 10)
	}
	if n := spend(c); n < 4 || n > 8 || c.loss > 0.013 {
		t.Errorf("%d parity packets, loss %v, want those of 1 %%", n, c.loss)
	}
	// Drops explain no losses of much later.
	r.own += 1e6
	feed(c, &now, &r, 2*time.Minute, 1000, 10)
	if c.loss < 0.008 {
		t.Errorf("loss %v two minutes after the socket's, want 1 %%", c.loss)
	}
}

// TestParityThatRepairsNothingEnds: losses in runs that no block can repair, or of
// a path that drops by rate, cost no parity but for a try now and then.
func TestParityThatRepairsNothingEnds(t *testing.T) {
	c := newController(0.25, 1.2)
	now := time.Unix(1, 0)
	var r report
	spent, blocks := 0, 0
	for range 10 * 60 * 20 { // ten minutes
		for range 15 {
			spent += spend(c)
			blocks++
		}
		r.received += 950
		r.lost, r.bursts = r.lost+10, r.bursts+1
		now = now.Add(reportTime)
		c.observe(now, &r)
	}
	if share := float64(spent) / float64(blocks*maxData); share > 0.01 {
		t.Errorf("parity is %.2f %% of the packets, want a try now and then", 100*share)
	}
	if spent == 0 {
		t.Fatal("no parity was tried")
	}
	// It comes back once it repairs.
	for range 6 * 60 * 20 {
		spend(c)
		r.received, r.lost, r.bursts = r.received+950, r.lost+10, r.bursts+10
		if !c.resting {
			r.recovered += 10
		}
		now = now.Add(reportTime)
		c.observe(now, &r)
	}
	if c.resting || spend(c) == 0 {
		t.Error("parity that repairs does not come back")
	}
}

func TestANewPathIsSoonKnown(t *testing.T) {
	c := newController(0.25, 1.2)
	now := time.Unix(1, 0)
	if spend(c) == 0 {
		t.Error("the first block of a new path gets no parity")
	}
	var r report
	feed(c, &now, &r, 6*reportTime, 1000, 0) // 6,000 packets
	if spend(c) != 0 || c.loss != 0 {
		t.Errorf("after 6,000 packets a clean path counts as one with a loss of %v", c.loss)
	}
}

// TestSocketSaysWhatItDropped sends more to a socket than it has room for.
func TestSocketSaysWhatItDropped(t *testing.T) {
	from, to := listenUDP(t), listenUDP(t)
	defer from.Close()
	defer to.Close()
	l := New(to, Options{})
	defer l.Close()
	if err := to.SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	batch, ok := l.PacketConn().(interface {
		ReadBatch([]ipv4.Message, int) (int, error)
	})
	if _, oob := l.PacketConn().(quic.OOBCapablePacketConn); !ok || !oob {
		t.Skip("no control messages on this system")
	}
	packet := make([]byte, 1000)
	sent, came := 0, 0
	send := func(what byte) {
		packet[0], packet[1] = quicBit, what
		if _, err := from.WriteTo(packet, to.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	for range 200 {
		send(0)
	}
	// The last one carries the count of those before; it may be dropped as well.
	ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, MaxPacket)}, OOB: make([]byte, 128)}}
	for last := byte(1); ; last++ {
		send(last)
		_ = to.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		var err error
		for err == nil && (came == 0 || ms[0].Buffers[0][1] != last) {
			if _, err = batch.ReadBatch(ms, 0); err == nil {
				came++
			}
		}
		if err == nil {
			break
		}
		if last == 100 {
			t.Fatal(err)
		}
	}
	if lost := sent - came; lost == 0 || l.dropped.Load() != uint32(lost) {
		t.Errorf("%d datagrams dropped, %d are said to be", lost, l.dropped.Load())
	}
}

// TestOverflowIsCongestion: what a receiver has no room for must slow the sender,
// as it would without correction.
func TestOverflowIsCongestion(t *testing.T) {
	c := crowd{bound: time.Minute}
	now := time.Unix(1, 0)
	c.overflowed(now, 100) // of before the stream
	if c.on(now) || c.own != 0 {
		t.Fatalf("%d dropped before the stream began", c.own)
	}
	c.lost(now)
	if c.marks(now, 2) {
		t.Error("a loss without a queue is marked")
	}
	c.overflowed(now, 105)
	c.lost(now)
	if !c.on(now) || c.own != 5 || !c.marks(now, 2) || c.marks(now, 3) {
		t.Errorf("%+v after 5 dropped datagrams", c)
	}
	if now = now.Add(strain); c.on(now) || c.marks(now, 2) {
		t.Error("it lasts for ever")
	}
}

// TestEveryConnectionHearsOfALoss: while a queue stands, a loss is told to all that
// comes within 10 ms, not only to the connection whose packet it was; and again
// with the next loss.
func TestEveryConnectionHearsOfALoss(t *testing.T) {
	r := newReceiver(15 * time.Millisecond)
	start := time.Unix(1, 0)
	marked, at := 0, time.Duration(0)
	send := func(number uint32, wait time.Duration) {
		at += 100 * time.Microsecond
		f := frame{kind: typeData, seq: number, sent: uint16(at / tick), shard: make([]byte, 100)}
		for _, d := range r.take(start.Add(at+wait), uint16((at+wait)/tick), &f) {
			if d.congested {
				marked++
			}
		}
	}
	number := uint32(0)
	run := func(n int, wait time.Duration) int {
		marked = 0
		for range n {
			number++
			send(number, wait)
		}
		return marked
	}
	run(100, 0)
	number += 5 // lost, of the path
	if n := run(500, 0); n != 0 {
		t.Errorf("%d packets are marked without a queue", n)
	}
	run(500, 40*time.Millisecond)
	for range 3 {
		number++ // lost while a queue stands
		if n := run(500, 40*time.Millisecond); n < 45 || n > 55 {
			t.Errorf("%d packets are marked, want half of 10 ms", n)
		}
	}
	if n := run(500, 40*time.Millisecond); n != 0 {
		t.Errorf("%d packets are marked without a loss", n)
	}
}

// TestLossesByChanceAreNoCrowd: on a path that loses, some of what is lost while a queue
// stands is lost as ever.
func TestLossesByChanceAreNoCrowd(t *testing.T) {
	c, now, r := newController(0.25, 1.2), time.Unix(1, 0), &report{}
	for range 400 {
		feed(c, &now, r, reportTime, 500, 5)
	}
	r.congested = true
	for range 20 {
		feed(c, &now, r, reportTime, 500, 7)
	}
	if c.crowded != 0 {
		t.Errorf("%d reports of ordinary losses say that the path is full", c.crowded)
	}
	feed(c, &now, r, reportTime, 500, 40)
	if c.crowded != 1 {
		t.Errorf("%d reports of a full path, want one for a burst of losses", c.crowded)
	}
	r.own += 3
	feed(c, &now, r, reportTime, 500, 4)
	if c.crowded != 2 {
		t.Errorf("%d reports of a full path, want one more for what the socket dropped", c.crowded)
	}
	clean, r := newController(0.25, 1.2), &report{}
	for range 400 {
		feed(clean, &now, r, reportTime, 500, 0)
	}
	r.congested = true
	if feed(clean, &now, r, reportTime, 500, 1); clean.crowded != 1 {
		t.Errorf("%d reports of a full path for one loss on a clean one, want one", clean.crowded)
	}
}

func TestTheCeilingFallsWithTheRate(t *testing.T) {
	c := newController(0.25, 1.2)
	last := c.ceiling(true, 1<<20)
	if last != 1.2 {
		t.Errorf("%v for a sender with little to send", last)
	}
	for rate := float64(sparseRate); rate < 2*fullRate; rate += 1 << 20 {
		got := c.ceiling(false, rate)
		if got > last || got < 0.25 || rate >= fullRate && got != 0.25 {
			t.Errorf("%v at %v bytes a second after %v", got, rate, last)
		}
		last = got
	}
}
