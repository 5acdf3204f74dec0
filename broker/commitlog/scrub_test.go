package commitlog

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// TestACheckThatCannotGoOnSaysSo: an entry that goes on behind its segment's end cannot be
// written, but by a fault of the program. The check tells it and goes on with the next
// segment, rather than to read the same place for ever.
func TestACheckThatCannotGoOnSaysSo(t *testing.T) {
	w := newWounded(t)
	list := slices.Clone(*w.b.segments.Load())
	// Inside the last entry of the first segment.
	list[1] = &segment{base: list[1].base - 8, name: list[1].name, file: list[1].file}
	w.b.segments.Store(&list)
	s := NewScrubber(w.b.Log)
	var bad *CorruptError
	for range 100 {
		_, fresh, done, err := s.Step(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if fresh != nil && bad == nil {
			bad = fresh
		}
		if done {
			if bad == nil || bad.Segment != list[0].name {
				t.Errorf("found %v", bad)
			}
			return
		}
	}
	t.Error("the check stands still")
}

// TestACheckReadsTheDisk: before a part is read, and behind it, the system is asked to drop
// its copy of it.
func TestACheckReadsTheDisk(t *testing.T) {
	w := newWounded(t)
	w.b.Close()
	faulty := disk.NewFaulty(w.mem)
	o := followOptions(w.mem, 3)
	o.FS = faulty
	l := open(t, o)
	l.Start()
	l.Commit(w.end)
	var mu sync.Mutex
	var ops []disk.Op
	faulty.Set(func(op disk.Op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == disk.OpForget || op == disk.OpRead && (len(ops) == 0 || ops[len(ops)-1] != disk.OpRead) {
			ops = append(ops, op)
		}
		if op == disk.OpForget {
			return errors.New("a hint need not be taken")
		}
		return nil
	})
	defer faulty.Set(nil)
	if n, fresh, done, err := NewScrubber(l.Log).Step(t.Context(), 1000); n == 0 || fresh != nil || done || err != nil {
		t.Fatalf("read %d: %v, %v, %v", n, fresh, done, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(ops, []disk.Op{disk.OpForget, disk.OpRead, disk.OpForget}) {
		t.Errorf("it does %v", ops)
	}
}
