package fec

import (
	"math/rand/v2"
	"testing"
	"time"
)

// lossModel is what a path does to datagrams, one after the other.
type lossModel struct {
	lose      func() bool // there
	loseBack  float64     // share of reports
	late      float64     // share of datagrams that others overtake
	duplicate float64
}

// gilbertElliott loses in runs: a path that is good or bad, and loses when it is bad
// (Gilbert 1960, Elliott 1963).
func gilbertElliott(rng *rand.Rand, toBad, toGood, lossBad float64) func() bool {
	bad := false
	return func() bool {
		if bad {
			bad = rng.Float64() >= toGood
		} else {
			bad = rng.Float64() < toBad
		}
		return bad && rng.Float64() < lossBad
	}
}

// modelRun is a sender and its receiver over a model, in simulated time.
type modelRun struct {
	t       *testing.T
	rng     *rand.Rand
	m       lossModel
	now     time.Time
	s       *sender
	r       *receiver
	slots   [64][][]byte // datagrams under way, by the steps until they come
	step    int
	came    map[uint32]int // times that a packet reached QUIC
	direct  map[uint32]int // times that it came by itself
	numbers uint32
}

const (
	modelRate   = 10000 // packets a second
	modelPacket = 40    // bytes
)

// transmit puts a datagram on its way.
func (x *modelRun) transmit(b []byte) {
	if x.m.lose() {
		return
	}
	copies := 1
	if x.rng.Float64() < x.m.duplicate {
		copies = 2
	}
	for range copies {
		after := 0
		if x.rng.Float64() < x.m.late {
			after = 1 + x.rng.IntN(20)
		}
		i := (x.step + after) % len(x.slots)
		x.slots[i] = append(x.slots[i], append([]byte(nil), b...))
	}
}

func (x *modelRun) closeBlock() {
	for _, f := range x.s.finish() {
		x.transmit(f)
	}
}

// run sends for a time.
func (x *modelRun) run(d time.Duration) {
	ticks := func() uint16 { return uint16(x.now.Sub(time.Unix(1, 0)) / tick) }
	packet := make([]byte, modelPacket)
	for range int(d.Seconds() * modelRate) {
		x.now = x.now.Add(time.Second / modelRate)
		x.step++
		if x.s.packets > 0 && !x.now.Before(x.s.deadline) {
			x.closeBlock()
		}
		packet[0] = quicBit
		be.PutUint32(packet[1:], x.numbers)
		x.numbers++
		f, full := x.s.add(nil, x.now, ticks(), packet, 2, true)
		x.transmit(f)
		if full {
			x.closeBlock()
		}
		i := x.step % len(x.slots)
		for _, b := range x.slots[i] {
			x.arrive(b, ticks())
		}
		x.slots[i] = x.slots[i][:0]
		if x.r.due(x.now) {
			if r := x.r.report(x.now); x.rng.Float64() >= x.m.loseBack {
				x.s.control.observe(x.now, &r)
			}
		}
	}
}

func (x *modelRun) arrive(b []byte, at uint16) {
	f, ok := parseFrame(b)
	if !ok {
		x.t.Fatalf("frame %x is refused", b[:headerSize])
	}
	if f.kind != typeParity {
		x.direct[be.Uint32(b[overhead+1:])]++
	}
	for _, d := range x.r.take(x.now, at, &f) {
		if len(d.packet) != modelPacket {
			x.t.Fatalf("a packet of %d bytes", len(d.packet))
		}
		x.came[be.Uint32(d.packet[1:])]++
	}
}

// TestLossModels lets a sender follow what its receiver reports of a path, and asks
// what is repaired of it. Whatever is not repaired, all that came is handed on.
func TestLossModels(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	randomly := func(share float64) func() bool { return func() bool { return rng.Float64() < share } }
	runs := func(length, every int) func() bool {
		n := rng.IntN(every)
		return func() bool { n++; return n%every < length }
	}
	for _, c := range []struct {
		name   string
		m      lossModel
		left   float64 // most packets that stay lost, of those lost
		extra  float64 // most parity packets for a packet
		losses float64 // share that the sender should measure
	}{
		{"none", lossModel{lose: randomly(0)}, 0, 0, 0},
		{"random", lossModel{lose: randomly(0.01)}, 0.01, 0.26, 0.01},
		{"bursts", lossModel{lose: gilbertElliott(rng, 0.002, 0.4, 0.8)}, 0.25, 0.3, 0.004},
		{"re-ordered", lossModel{lose: randomly(0.01), late: 0.05}, 0.01, 0.26, 0.01},
		{"duplicated", lossModel{lose: randomly(0.01), duplicate: 0.05}, 0.01, 0.26, 0.01},
		{"reports lost", lossModel{lose: randomly(0.01), loseBack: 0.6}, 0.01, 0.26, 0.01},
		{"worse than parity may be", lossModel{lose: randomly(0.25)}, 1, 0.26, -1},
		{"long runs", lossModel{lose: runs(300, 10000)}, 1, 0.1, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &modelRun{
				t: t, rng: rng, m: c.m, now: time.Unix(1, 0), r: newReceiver(time.Hour),
				s: newSender(7, rng.Uint32(), newController(0.25, 1.1)), came: map[uint32]int{}, direct: map[uint32]int{},
			}
			x.s.rate, x.s.rateAt = 1e9, x.now.Add(time.Hour) // much to send
			x.run(2 * time.Second)
			clear(x.came)
			clear(x.direct)
			first, parity := x.numbers, x.s.parity
			x.run(3 * time.Second)
			end := x.numbers - 1000 // the rest may still be repaired
			lost, left := 0, 0
			for n := first; n != end; n++ {
				if x.came[n] < x.direct[n] {
					t.Fatalf("packet %d came %d times and was handed on %d times", n, x.direct[n], x.came[n])
				}
				if x.direct[n] == 0 {
					lost++
					if x.came[n] == 0 {
						left++
					}
				}
			}
			extra := float64(x.s.parity-parity) / float64(x.numbers-first)
			t.Logf("%d of %d lost, %d left, %.3f parity packets each; measured %.4f, runs of %.1f", lost, end-first, left, extra, x.s.control.loss, x.s.control.burst)
			if float64(left) > c.left*float64(lost) {
				t.Errorf("%d of %d stayed lost", left, lost)
			}
			if extra > c.extra {
				t.Errorf("%.3f parity packets for each, want at most %.2f", extra, c.extra)
			}
			if got := x.s.control.loss; c.losses >= 0 && (got > 1.6*c.losses || got < 0.6*c.losses) {
				t.Errorf("the sender measures a loss of %.4f, it is %.4f", got, c.losses)
			}
		})
	}
}
