package queue

import (
	"testing"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// An index that let go of its memory goes on as before, and is read from its files.
func TestShedChangesNothingButMemory(t *testing.T) {
	mem := disk.NewMem()
	s, err := Open(Options{FS: mem, Dir: "d"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	x, err := s.Index("x")
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	check := func() {
		t.Helper()
		for n := range next {
			if e, err := x.Get(n); err != nil || e.Position != record.Position(10*n+10) || e.Size != 1 {
				t.Fatalf("entry %d of %d: %+v, %v", n, next, e, err)
			}
		}
	}
	for round := range 8 {
		for range 1 + 97*round {
			if _, err := x.Append(Entry{Position: record.Position(10*next + 10), Size: 1}); err != nil {
				t.Fatal(err)
			}
			next++
		}
		before := len(x.view.Load().tail)
		x.Shed() // not flushed: nothing may go
		if got := len(x.view.Load().tail); got != before {
			t.Fatalf("round %d: %d chunks, were %d", round, got, before)
		}
		check()
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		x.Shed()
		if got := len(x.view.Load().tail); got != 0 || x.Next() != next {
			t.Fatalf("round %d: %d chunks and next %d, want none and %d", round, got, x.Next(), next)
		}
		check()
		if _, err := x.Append(Entry{Position: record.Position(10 * next), Size: 1}); err == nil {
			t.Fatal("a position that does not ascend was taken")
		}
	}
}
