package tails

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// TestProgressIsTheOldOrTheNewOne cuts the power after every change of the disk: what was
// kept last, or what is being kept, is there, and what was kept is there for good.
func TestProgressIsTheOldOrTheNewOne(t *testing.T) {
	w, mem := write(t, 12), disk.NewMem()
	s, h := New(mem, "data/tails", 0), w.head(5)
	if _, err := s.Save(t.Context(), h, w); err != nil {
		t.Fatal(err)
	}
	pass := func(n int) *Progress {
		return &Progress{Next: record.Position(n), Why: fmt.Sprint("pass ", n, strings.Repeat(" and so on", 100*n)), Topics: map[string]Offered{"": {Offered: n}}}
	}
	rng := rand.New(rand.NewPCG(3, 3))
	old, fresh := 0, 0
	for n := 1; n <= 4; n++ {
		var images []*disk.Mem
		cut := func() {
			for range 8 {
				images = append(images, mem.Crash(rng))
			}
		}
		mem.AfterOp(func(int) { cut() })
		if err := s.SetProgress(h.ID(), pass(n)); err != nil {
			t.Fatal(err)
		}
		mem.AfterOp(nil)
		during := len(images)
		cut()
		for i, image := range images {
			after := New(image, "data/tails", 0)
			x, err := after.Find(h.ID())
			if err != nil {
				t.Fatal(err)
			}
			kept := 0
			if x.Progress != nil {
				kept = int(x.Progress.Next)
			}
			switch {
			case kept == n-1 && i < during:
				old++
			case kept == n:
				fresh++
			default:
				t.Fatalf("cut %d of %d of pass %d: it has pass %d", i, during, n, kept)
			}
			if kept > 0 && (x.Progress.Why != pass(kept).Why || x.Waiting() != 7-kept) {
				t.Fatalf("cut %d of pass %d: %+v, %d wait", i, n, x.Progress, x.Waiting())
			}
			if err := after.SetProgress(h.ID(), pass(n+1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if old == 0 || fresh <= 4*8 {
		t.Errorf("%d images have the old one and %d the new one: the test shows nothing", old, fresh)
	}
}
