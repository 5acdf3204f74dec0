package fec

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestNothingIsAllocatedForAPacket: not to send, with parity at once or later, not to
// receive, not to repair.
func TestNothingIsAllocatedForAPacket(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	packet := append(packet(rng, 1), make([]byte, 1200)...)
	now := time.Unix(1, 0)
	s, r := newSender(7, 0, fixed(4)), newReceiver(time.Hour)
	var late lateQueue
	out := make([]byte, 0, 2*maxFrame)
	give := func(b []byte) {
		f, ok := parseFrame(b)
		if !ok {
			t.Fatal("a frame is refused")
		}
		r.take(now, 0, &f)
	}
	n := 0
	step := func() {
		frame, full := s.add(out, now, 0, packet, 2, true)
		if n++; n%30 != 0 {
			give(frame)
		}
		if !full {
			return
		}
		parity := s.finish()
		for _, b := range parity {
			give(b)
		}
		late.push(now, parity)
		late.pop()
	}
	for range 100 * maxData {
		step()
	}
	if got := testing.AllocsPerRun(10*maxData, step); got != 0 {
		t.Errorf("%v allocations for a packet", got)
	}
	if r.recovered == 0 {
		t.Error("nothing was repaired")
	}
}
