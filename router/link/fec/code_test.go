package fec

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/klauspost/reedsolomon"
)

var seed = flag.Uint64("seed", 0, "replay the property tests with this seed; 0 draws one")

// random returns the source of a test, and prints its seed if the test fails.
func random(t testing.TB) *rand.Rand {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with -seed %d", s)
		}
	})
	return rand.New(rand.NewPCG(s, 0))
}

// TestCodeIsThatOfTheLibrary ties the sums that are made packet by packet to the
// library's own encoder.
func TestCodeIsThatOfTheLibrary(t *testing.T) {
	rng := random(t)
	enc, err := reedsolomon.New(maxData, maxParity, reedsolomon.WithCauchyMatrix())
	if err != nil {
		t.Fatal(err)
	}
	const size = 100
	shards := make([][]byte, maxData+maxParity)
	sums := make([][]byte, maxParity)
	for i := range shards {
		shards[i] = make([]byte, size)
	}
	for j := range maxData {
		n := rng.IntN(size + 1) // the rest counts as zero
		for k := range n {
			shards[j][k] = byte(rng.Uint32())
		}
		for i := range sums {
			if sums[i] == nil {
				sums[i] = make([]byte, size)
			}
			addTo(sums[i], i, j, shards[j][:n])
		}
	}
	if err := enc.Encode(shards); err != nil {
		t.Fatal(err)
	}
	for i := range sums {
		if !bytes.Equal(sums[i], shards[maxData+i]) {
			t.Fatalf("parity %d differs from the library's", i)
		}
	}
}

// fixed returns a controller that gives each block so much parity.
func fixed(rows int) *controller {
	c := newController(100, 100)
	for k := range c.need[0] {
		c.need[0][k], c.need[1][k] = uint8(rows), uint8(rows)
	}
	return c
}

// packet returns a QUIC-like packet of 1 to most bytes.
func packet(rng *rand.Rand, most int) []byte {
	b := make([]byte, 1+rng.IntN(most))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	b[0] = b[0]&0x7f | quicBit
	return b
}

// encode makes the frames of a block.
func encode(s *sender, now time.Time, packets [][]byte) (frames [][]byte) {
	for _, p := range packets {
		f, _ := s.add(nil, now, 0, p, 2, true)
		frames = append(frames, f)
	}
	for _, p := range s.finish() {
		frames = append(frames, bytes.Clone(p))
	}
	return frames
}

// decode feeds frames and counts what comes out.
func decode(t *testing.T, r *receiver, now time.Time, frames [][]byte) map[string]int {
	t.Helper()
	got := map[string]int{}
	for _, b := range frames {
		f, ok := parseFrame(b)
		if !ok {
			t.Fatalf("frame %x is refused", b[:headerSize])
		}
		for _, d := range r.take(now, 0, &f) {
			got[string(d.packet)]++
			if d.repaired && d.ecn != 2 {
				t.Errorf("a repaired packet has the ECN field %d", d.ecn)
			}
		}
	}
	return got
}

func TestAnyLossWithinItsPowerIsRepaired(t *testing.T) {
	rng := random(t)
	now := time.Now()
	r := newReceiver(time.Hour)
	s := newSender(7, rng.Uint32(), nil)
	for round := range 200 {
		k, parity := 1+rng.IntN(maxData), 1+rng.IntN(maxParity)
		s.control = fixed(parity)
		packets := make([][]byte, k)
		for i := range packets {
			packets[i] = packet(rng, MaxPacket)
		}
		frames := encode(s, now, packets)
		if len(frames) != k+parity {
			t.Fatalf("round %d: %d frames for %d packets and %d parity", round, len(frames), k, parity)
		}
		// Any loss, in any order.
		rng.Shuffle(len(frames), func(i, j int) { frames[i], frames[j] = frames[j], frames[i] })
		lost := rng.IntN(parity + 1)
		got := decode(t, r, now, frames[lost:])
		for i, p := range packets {
			if got[string(p)] == 0 {
				t.Fatalf("round %d: packet %d of %d, parity %d, lost %d, is missing", round, i, k, parity, lost)
			}
		}
	}
	if r.recovered == 0 {
		t.Error("nothing was repaired")
	}
}

func TestBeyondItsPowerTheRestPasses(t *testing.T) {
	rng := random(t)
	now := time.Now()
	r := newReceiver(time.Hour)
	s := newSender(7, rng.Uint32(), fixed(4))
	for round := range 100 {
		k := 6 + rng.IntN(maxData-5)
		packets := make([][]byte, k)
		for i := range packets {
			packets[i] = packet(rng, MaxPacket)
		}
		frames := encode(s, now, packets)
		kept := frames[:0]
		lost := map[int]bool{}
		for i, n := range rng.Perm(k)[:5] {
			lost[n] = i < 5
		}
		for i, f := range frames {
			if !lost[i] {
				kept = append(kept, f)
			}
		}
		got := decode(t, r, now, kept)
		for i, p := range packets {
			if (got[string(p)] > 0) == lost[i] {
				t.Fatalf("round %d: packet %d: came %d times, lost %v", round, i, got[string(p)], lost[i])
			}
		}
		if len(got) != k-5 {
			t.Fatalf("round %d: %d packets came, want %d", round, len(got), k-5)
		}
	}
	if r.kept > keptShards {
		t.Errorf("%d buffers, the bound is %d", r.kept, keptShards)
	}
}

// TestFramesInAnyOrderAndNumber: re-ordering over blocks, repetition and loss bring
// nothing that was not sent, and nothing that came is held back.
func TestFramesInAnyOrderAndNumber(t *testing.T) {
	rng := random(t)
	now := time.Now()
	for range 20 {
		r := newReceiver(time.Hour)
		s := newSender(7, rng.Uint32(), nil)
		sent := map[string]bool{}
		var frames [][]byte
		for range 40 {
			s.control = fixed(rng.IntN(6))
			packets := make([][]byte, 1+rng.IntN(maxData))
			for i := range packets {
				packets[i] = packet(rng, 200)
				sent[string(packets[i])] = true
			}
			frames = append(frames, encode(s, now, packets)...)
		}
		var order [][]byte
		for i := range frames {
			if rng.Float64() < 0.05 {
				continue
			}
			for range 1 + rng.IntN(2) {
				at := max(0, min(len(order), i+rng.IntN(200)-100))
				order = append(order, nil)
				copy(order[at+1:], order[at:])
				order[at] = frames[i]
			}
		}
		got := decode(t, r, now, order)
		for p := range got {
			if !sent[p] {
				t.Fatalf("a packet of %d bytes was never sent", len(p))
			}
		}
		for _, f := range order {
			if f[0] != typeParity && got[string(f[overhead:])] == 0 {
				t.Fatal("a packet that came was held back")
			}
		}
		if r.kept > keptShards {
			t.Fatalf("%d buffers, the bound is %d", r.kept, keptShards)
		}
	}
}

// TestBitErrorsDoNotPass: QUIC authenticates each packet, so whatever a damaged
// frame brings is dropped there. Here it must do no other harm: the blocks after it
// are repaired, and nothing that was not damaged is held back.
func TestBitErrorsDoNotPass(t *testing.T) {
	rng := random(t)
	now := time.Now()
	for range 500 {
		r := newReceiver(time.Hour)
		s := newSender(7, rng.Uint32(), fixed(4))
		packets := make([][]byte, 1+rng.IntN(20))
		for i := range packets {
			packets[i] = packet(rng, 300)
		}
		frames := encode(s, now, packets)
		decode(t, r, now, frames)
		damaged := bytes.Clone(frames[rng.IntN(len(frames))])
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		spoils := false // it names the next block
		if f, ok := parseFrame(damaged); ok {
			base := f.seq
			if f.kind != typeParity {
				base -= uint32(f.index)
			}
			spoils = base == s.seq || f.seq-s.seq < 10
			for _, d := range r.take(now, 0, &f) {
				if len(d.packet) == 0 || len(d.packet) > MaxPacket {
					t.Fatalf("a packet of %d bytes", len(d.packet))
				}
			}
		}
		// The damaged frame may spoil its block and what it names; not the next.
		packets = packets[:0]
		for range 10 {
			packets = append(packets, packet(rng, 300))
		}
		if got := decode(t, r, now, encode(s, now, packets)[1:]); got[string(packets[0])] == 0 && !spoils {
			t.Fatal("the block after a damaged frame is not repaired")
		}
	}
}

func FuzzFrames(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, b := range encode(newSender(7, 3, fixed(2)), time.Unix(1, 0), [][]byte{packet(rng, 50), packet(rng, 50)}) {
		f.Add(b)
	}
	f.Add(appendReport(nil, &report{tag: 7, received: 1, lost: 2}))
	f.Add(appendReset(nil, 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		now := time.Unix(1, 0)
		if r, ok := parseReport(b); ok {
			if again, ok := parseReport(appendReport(nil, &r)); !ok || again != r {
				t.Errorf("report %+v becomes %+v", r, again)
			}
			c := newController(0.2, 1)
			c.observe(now, &r)
			c.observe(now.Add(time.Second), &report{received: 1000, lost: 10, bursts: 10})
			for k := 1; k <= maxData; k++ {
				if n := c.parity(false, fullRate, k, 100*k, 100); n < 0 || n > maxParity {
					t.Errorf("%d parity packets", n)
				}
			}
		}
		fr, ok := parseFrame(b)
		if !ok {
			return
		}
		r := newReceiver(time.Hour)
		for range 3 {
			for _, d := range r.take(now, 9, &fr) {
				if len(d.packet) == 0 || len(d.packet) > MaxPacket {
					t.Errorf("a packet of %d bytes", len(d.packet))
				}
			}
			fr.seq ^= 1
		}
		if fr.kind != typeParity && !bytes.Equal(fr.shard[metaSize:], b[overhead:]) {
			t.Error("the packet is not that of the frame")
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	for _, parity := range []int{0, 2, 6} {
		b.Run(fmt.Sprintf("parity=%d", parity), func(b *testing.B) {
			s := newSender(7, 0, fixed(parity))
			p := packet(rand.New(rand.NewPCG(1, 1)), 1)
			p = append(p, make([]byte, 1400-len(p))...)
			now := time.Now()
			out := make([]byte, 0, 2*maxFrame)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				if _, full := s.add(out, now, 0, p, 0, true); full {
					s.finish()
				}
			}
		})
	}
}

func BenchmarkTake(b *testing.B) {
	for _, lost := range []int{0, 1, 6} {
		b.Run(fmt.Sprintf("lost=%d", lost), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			packets := make([][]byte, maxData)
			for i := range packets {
				packets[i] = append(packet(rng, 1), make([]byte, 1400)...)
			}
			now := time.Now()
			frames := encode(newSender(7, 0, fixed(6)), now, packets)[lost:]
			r := newReceiver(time.Hour)
			b.SetBytes(1400)
			b.ReportAllocs()
			i, round := 0, uint32(0)
			for b.Loop() {
				f, ok := parseFrame(frames[i])
				if !ok {
					b.Fatal("refused")
				}
				f.seq += round * maxData
				r.take(now, 0, &f)
				if i++; i == len(frames) {
					i, round = 0, round+1
				}
			}
		})
	}
}
