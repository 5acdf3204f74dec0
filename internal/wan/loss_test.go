package wan

import (
	"math"
	"testing"
	"time"
)

var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// runs plays n packets a millisecond apart and returns the share lost and the mean
// length of runs of losses.
func runs(l Loss, n int) (share, mean float64) {
	lost, count, before := 0, 0, false
	for i := range n {
		is := l.Lost(start.Add(time.Duration(i) * time.Millisecond))
		if is {
			lost++
			if !before {
				count++
			}
		}
		before = is
	}
	return float64(lost) / float64(n), float64(lost) / float64(max(count, 1))
}

func TestLossesAreWhatTheyAreCalled(t *testing.T) {
	for name, c := range map[string]struct {
		loss        Losses
		share, mean float64
	}{
		"none in a hundred":     {Random(0), 0, 0},
		"one in a hundred":      {Random(0.01), 0.01, 1 / 0.99},
		"bursts of four":        {GilbertElliott(0.0025, 0.25, 1), 0.01 / 1.01, 4},
		"half of bursts of ten": {GilbertElliott(0.001, 0.1, 0.5), 0.005 / 1.01, 1.82},
		"five each second":      {Bursts(5, time.Second), 0.005, 5},
	} {
		share, mean := runs(c.loss(7), 1_000_000)
		if math.Abs(share-c.share) > 0.05*c.share || math.Abs(mean-c.mean) > 0.05*c.mean {
			t.Errorf("%s: share %.5f, mean run %.2f; want %.5f and %.2f", name, share, mean, c.share, c.mean)
		}
		a, b := c.loss(7), c.loss(7)
		for i := range 10_000 {
			at := start.Add(time.Duration(i) * time.Millisecond)
			if a.Lost(at) != b.Lost(at) {
				t.Fatalf("%s: the same seed loses others", name)
			}
		}
	}
}

func TestBurstsComeAgainAfterSilence(t *testing.T) {
	l := Bursts(2, time.Second)(0)
	var lost []bool
	for _, at := range []time.Duration{0, 900, 1000, 1001, 1002, 9000, 9001, 9002, 9500, 10000} {
		lost = append(lost, l.Lost(start.Add(at*time.Millisecond)))
	}
	want := []bool{false, false, true, true, false, true, true, false, false, true}
	for i := range want {
		if lost[i] != want[i] {
			t.Fatalf("lost %v, want %v", lost, want)
		}
	}
}

func TestBottleneckPassesItsRateAndDropsTheRest(t *testing.T) {
	var s shaper
	s.set(Path{Delay: 20 * time.Millisecond, Rate: 1_000_000, Queue: 50_000}, 1)
	last, passed := time.Time{}, 0
	for i := range 2000 { // twice the rate for a second
		now := start.Add(time.Duration(i) * 500 * time.Microsecond)
		due, ok := s.admit(now, 1000)
		if !ok {
			continue
		}
		if wait := due.Sub(now); due.Before(last) || wait < 21*time.Millisecond || wait > 72*time.Millisecond {
			t.Fatalf("packet %d arrives after %v, the one before at %v", i, wait, last.Sub(now))
		}
		last = due
		passed++
	}
	if st := s.stats(); st.Packets != 2000 || st.Overflowed != uint64(2000-passed) || passed < 1040 || passed > 1060 {
		t.Errorf("%d packets passed, want a second of the rate and the queue; %+v", passed, st)
	}
	end := start.Add(time.Second)
	if q := s.queue(end); q < 45*time.Millisecond || q > 55*time.Millisecond {
		t.Errorf("%v wait, want the 50 ms of a full queue", q)
	}
	if q := s.queue(end.Add(time.Second)); q != 0 {
		t.Errorf("%v wait when all has passed", q)
	}
	s.set(Path{Delay: time.Millisecond}, 1)
	if due, ok := s.admit(start, 1000); !ok || due != start.Add(time.Millisecond) {
		t.Errorf("without a rate: %v, %v", due, ok)
	}
}
