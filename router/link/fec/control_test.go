package fec

import (
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestGoldenFrames: the bytes of the format never change.
func TestGoldenFrames(t *testing.T) {
	s := newSender(0x01020304, 0x0a0b0c0d, fixed(1))
	frames := encode(s, time.Unix(1, 0), [][]byte{{quicBit, 1, 2}, {quicBit, 9}})
	got := append(frames, appendReport(nil, &report{
		tag: 0x01020304, congested: true, received: 1000, lost: 10, bursts: 7, recovered: 9, own: 2, longest: 3, queue: 1500 * time.Microsecond,
	}), appendReport(nil, &report{congested: true, overflows: true}), appendReset(nil, 0x01020304))
	want := []string{
		"06000102030" + "40a0b0c0d00008003400102",
		"06010102030" + "40a0b0c0e0000800240" + "09",
		"07000102030" + "40a0b0c0d0201",
		"0801010203" + "04000003e80000000a0000000700000009000005dc030000000200",
		"0803" + strings.Repeat("00", reportSize-2),
		"090001020304",
	}
	for i, b := range got {
		h := hex.EncodeToString(b)
		if i == 2 {
			h = h[:2*headerSize] // the sum is tied to the library's encoder
			if len(b) != len(frames[0]) {
				t.Errorf("parity has %d bytes, the longest packet frame %d", len(b), len(frames[0]))
			}
		}
		if h != want[i] {
			t.Errorf("frame %d is %s, want %s", i, h, want[i])
		}
	}
}

// TestParityLeavesTheResidual simulates blocks under the loss that the table was
// made for.
func TestParityLeavesTheResidual(t *testing.T) {
	rng := random(t)
	for _, c := range []struct {
		k           int
		loss        float64
		least, most int
	}{{64, 0.01, 5, 8}, {64, 0.001, 2, 3}, {64, 0.05, 11, 16}, {4, 0.01, 3, 4}, {1, 0.01, 2, 3}} {
		r := parityFor(c.k, c.loss, 1, residual)
		if r < c.least || r > c.most {
			t.Errorf("%d parity packets for %d at %v, want %d to %d", r, c.k, c.loss, c.least, c.most)
		}
		failed := 0
		const blocks = 20000
		for range blocks {
			lost := 0
			for range c.k + r {
				if rng.Float64() < c.loss {
					lost++
				}
			}
			if lost > r {
				failed++
			}
		}
		if failed > 8 { // of one in 10,000 that fails, 2 are expected; each loses several packets
			t.Errorf("%d of %d blocks of %d with %d failed", failed, blocks, c.k, r)
		}
	}
	if parityFor(64, 0.01, 4, residual) <= parityFor(64, 0.01, 1, residual) {
		t.Error("bursts get no more parity")
	}
}

// feed lets a controller see n packets with so many losses every 50 ms for a time.
func feed(c *controller, now *time.Time, r *report, d time.Duration, packets, losses uint32) {
	for end := now.Add(d); now.Before(end); *now = now.Add(reportTime) {
		r.received += packets - losses
		r.lost += losses
		r.bursts += losses
		c.observe(*now, r)
	}
}

func TestControllerFollowsThePath(t *testing.T) {
	c := newController(0.25, 1.2)
	now := time.Unix(1, 0)
	var r report
	feed(c, &now, &r, 10*time.Second, 1000, 0)
	if c.rows(false) != 0 {
		t.Errorf("%d parity packets on a clean path", c.rows(false))
	}
	r.received, r.lost, r.bursts = r.received+999, r.lost+1, r.bursts+1
	c.observe(now, &r)
	if c.rows(false) != 0 {
		t.Error("one loss is no lossy path")
	}
	if fresh := newController(0.25, 1.2); fresh.rows(false) == 0 || fresh.measured() != 0 {
		t.Errorf("a new path gets %d parity packets, and is said to lose %v", fresh.rows(false), fresh.measured())
	}
	feed(c, &now, &r, time.Second, 1000, 10)
	if n := c.rows(false); n < 4 || n > 8 {
		t.Errorf("%d parity packets a second after the loss began, want about 6", n)
	}
	feed(c, &now, &r, time.Minute, 1000, 10)
	if c.loss < 0.008 || c.loss > 0.012 {
		t.Errorf("loss %v, want 0.01", c.loss)
	}
	r.congested = true
	c.observe(now, &r)
	if c.rows(false) != 0 {
		t.Error("parity into a queue")
	}
	r.congested = false
	feed(c, &now, &r, 5*time.Minute, 1000, 0)
	if c.rows(false) != 0 {
		t.Errorf("%d parity packets five minutes after the last loss", c.rows(false))
	}
	stale := r
	stale.received -= 5000
	if c.observe(now, &stale) {
		t.Error("an old report counts")
	}
}

// TestLossesOfAQueueAreNoChance: what is lost while a queue stands says nothing of the
// path, and what a stream lost that began in a queue is not believed for long.
func TestLossesOfAQueueAreNoChance(t *testing.T) {
	c := newController(0.25, 1.2)
	now := time.Unix(1, 0)
	var r report
	feed(c, &now, &r, 20*time.Second, 1000, 3)
	loss := c.loss
	r.congested = true
	feed(c, &now, &r, 20*time.Second, 100, 8)
	if c.crowded < 100 {
		t.Errorf("%d reports of 8 %% lost in a queue counted, want nearly all of 400", c.crowded)
	}
	r.congested = false
	feed(c, &now, &r, 3*reportTime, 1000, 80) // of the time before
	if c.loss != loss {
		t.Errorf("a path that loses %v counts as one that loses %v after a queue", loss, c.loss)
	}

	// A path that is known to lose does not lose less in a queue, nor more.
	c, r = newController(0.25, 1.2), report{}
	feed(c, &now, &r, 30*time.Second, 1000, 50)
	loss = c.loss
	r.congested = true
	now = now.Add(15 * time.Second) // nothing was sent
	feed(c, &now, &r, 10*time.Second, 1000, 50)
	if c.crowded > 2 || c.loss != loss {
		t.Errorf("%d reports of 5 %% by chance count as of a queue, a loss of %v is believed after %v", c.crowded, c.loss, loss)
	}
	// But for those that fall on the longest delays.
	r.overflows = true
	feed(c, &now, &r, 10*time.Second, 1000, 50)
	if c.crowded < 190 || c.loss > 1.2*assumedLoss {
		t.Errorf("%d of 200 reports of overflows count, a loss of %v is believed", c.crowded, c.loss)
	}

	// A report that was overtaken by another one still says that a queue stood.
	c, r = newController(0.25, 1.2), report{}
	feed(c, &now, &r, 30*time.Second, 1000, 0)
	r.missed = true
	feed(c, &now, &r, reportTime, 1000, 80)
	if c.loss != 0 {
		t.Errorf("a loss of %v is believed of a queue whose report was missed", c.loss)
	}

	c, r = newController(0.25, 1.2), report{}
	feed(c, &now, &r, 2*time.Second, 15, 1)
	if c.loss < 0.03 {
		t.Fatalf("loss %v, want about 0.07", c.loss)
	}
	r.congested = true
	for i := range uint32(400) {
		feed(c, &now, &r, reportTime, 15, i%2*2)
	}
	if c.crowded < 100 || c.loss > 1.2*assumedLoss {
		t.Errorf("after 20 s in a queue %d reports counted, and a loss of %v is believed", c.crowded, c.loss)
	}
}

// TestLossesOfAQueueDoNotMakeParityRest: no parity was sent for them.
func TestLossesOfAQueueDoNotMakeParityRest(t *testing.T) {
	c := newController(0.25, 1.2)
	now := time.Unix(1, 0)
	var r report
	feed(c, &now, &r, 10*time.Second, 1000, 10)
	c.worth.parity = 100
	r.congested = true
	feed(c, &now, &r, time.Second, 1000, 10)
	for r.congested = false; c.doubtful > 0; c.worth.parity = 100 {
		feed(c, &now, &r, reportTime, 1000, 100)
	}
	feed(c, &now, &r, reportTime, 1000, 0)
	if c.resting {
		t.Errorf("parity rests for %v after a queue", c.worth.rest)
	}
}

func TestExtraBytesStayUnderTheCeiling(t *testing.T) {
	rng := random(t)
	for range 30 {
		ceiling := 0.02 + rng.Float64()
		c := newController(ceiling, 1.2)
		c.loss = 0.2
		for k := range c.need[0] {
			c.need[0][k] = uint8(parityFor(k, 0.2, 1, residual))
		}
		s := newSender(1, 0, c)
		s.rate, s.rateAt = 1e9, time.Unix(1, 0)
		bytes := 0
		for range 20 {
			packets := make([][]byte, 1+rng.IntN(1+rng.IntN(maxData)))
			for i := range packets {
				packets[i] = packet(rng, []int{40, MaxPacket}[rng.IntN(2)])
				bytes += len(packets[i]) + metaSize
			}
			encode(s, time.Unix(1, 0), packets)
			// Headers come on top.
			extra := int(s.extra) - overhead*int(s.sent) - headerSize*int(s.parity)
			if float64(extra) > ceiling*float64(bytes) {
				t.Fatalf("%d bytes of parity for %d, the ceiling is %v", extra, bytes, ceiling)
			}
		}
	}
}

func TestProbesOfTheMTUAreInNoBlock(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := newSender(1, 0, fixed(2))
	now := time.Unix(1, 0)
	big := append(packet(rng, 1), make([]byte, sizeAtFirst)...)
	for i := range 2 * probePackets {
		f, _ := s.add(nil, now, 0, big, 0, false)
		if bare := f[0] == typeBare; bare != (i < probePackets) {
			t.Errorf("packet %d of a new size: bare %v", i, bare)
		}
	}
	s = newSender(1, 0, fixed(2))
	if f, _ := s.add(nil, now, 0, big, 0, true); f[0] != typeCoded {
		t.Error("a batch is no probe")
	}
}

// TestQueueIsWhatTheLuckiestPacketWaits: jitter is none, clocks may differ and
// drift.
func TestQueueIsWhatTheLuckiestPacketWaits(t *testing.T) {
	rng := random(t)
	var d delayMeter
	start := time.Unix(1, 0)
	queue, number := time.Duration(0), uint32(0)
	at := func(since, wait time.Duration) {
		jitter := time.Duration(rng.Int64N(int64(8 * time.Millisecond)))
		sent := uint16(since * 10001 / 10000 / tick) // 100 ppm fast
		arrived := uint16((since + 40*time.Millisecond + wait + jitter + 5*time.Second) / tick)
		queue = d.add(start.Add(since+wait+jitter), number, arrived, sent, 15*time.Millisecond)
		number++
	}
	now := time.Duration(0)
	run := func(for_ time.Duration, wait time.Duration) {
		for end := now + for_; now < end; now += 200 * time.Microsecond {
			at(now, wait)
		}
	}
	run(3*time.Minute, 0)
	if queue > 10*time.Millisecond {
		t.Errorf("a queue of %v on an empty path with 8 ms of jitter", queue)
	}
	for wait := range 50 * time.Millisecond / (500 * time.Microsecond) { // a jump would be a longer path
		run(time.Millisecond, wait*500*time.Microsecond)
	}
	run(time.Second, 50*time.Millisecond)
	if queue < 45*time.Millisecond || queue > 65*time.Millisecond {
		t.Errorf("a queue of %v, want 50 ms", queue)
	}
	run(time.Second, 0)
	if queue > 10*time.Millisecond {
		t.Errorf("a queue of %v after it has drained", queue)
	}
}

// TestSeenAgreesWithAModel counts the losses of random traffic against a set.
func TestSeenAgreesWithAModel(t *testing.T) {
	rng := random(t)
	for range 50 {
		var s seen
		first := rng.Uint32()
		came := map[uint32]bool{}
		order := make([]uint32, 0, 5000)
		for i := range uint32(5000) {
			if i == 0 || rng.Float64() > 0.03 {
				order = append(order, first+i)
			}
		}
		late := map[uint32]int{} // one in ten comes up to 50 later, none before the first
		for i, n := range order {
			if late[n] = i; i > 0 && rng.IntN(10) == 0 {
				late[n] += 1 + rng.IntN(50)
			}
		}
		slices.SortStableFunc(order, func(a, b uint32) int { return late[a] - late[b] })
		for _, n := range order {
			if fresh := s.add(n); fresh == came[n] {
				t.Fatalf("packet %d is fresh: %v", n-first, fresh)
			}
			came[n] = true
		}
		s.settleBelow(s.next)
		if int(s.received) != len(came) || s.lost != s.next-first-s.received {
			t.Fatalf("received %d, lost %d of %d, want %d", s.received, s.lost, s.next-first, len(came))
		}
		if s.bursts == 0 || s.bursts > s.lost || s.longest == 0 {
			t.Fatalf("%d bursts of %d losses, longest %d", s.bursts, s.lost, s.longest)
		}
	}
}

func TestPacerHoldsTheRate(t *testing.T) {
	p := pacer{rate: 1e6}
	now := time.Unix(1, 0)
	for range 1000 {
		now = now.Add(p.take(now, 10_000))
	}
	if took := now.Sub(time.Unix(1, 0)); took < 9900*time.Millisecond || took > 10100*time.Millisecond {
		t.Errorf("10 MB at 1 MB/s took %v", took)
	}
	if (&pacer{}).take(now, 1<<30) != 0 {
		t.Error("no rate is a limit")
	}
}
