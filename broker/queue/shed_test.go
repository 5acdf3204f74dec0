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

// TestAnIndexOfFewEntriesIsSmall: brokers have thousands of them.
func TestAnIndexOfFewEntriesIsSmall(t *testing.T) {
	s, err := Open(Options{FS: disk.NewMem(), Dir: "d"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	x, err := s.Index("x")
	if err != nil {
		t.Fatal(err)
	}
	room := func() (n int) {
		for _, c := range x.view.Load().tail {
			n += cap(c)
		}
		return n
	}
	for n := range uint64(3 * chunkEntries) {
		old := x.view.Load() // of a reader that is slow
		if _, err := x.Append(Entry{Position: record.Position(n + 1), Size: 1}); err != nil {
			t.Fatal(err)
		}
		if most := max(firstEntries, 2*int(n+1)); n < chunkEntries && room() > most {
			t.Fatalf("room for %d entries, %d are there", room(), n+1)
		}
		for k := range n + 1 {
			if e, err := x.Get(k); err != nil || e.Position != record.Position(k+1) {
				t.Fatalf("entry %d of %d: %+v, %v", k, n+1, e, err)
			}
			if e, ok := old.at(k); k < n && (!ok || e.Position != record.Position(k+1)) {
				t.Fatalf("entry %d of %d for a slow reader: %+v, %v", k, n, e, ok)
			}
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	s.ShedIdle()
	if room() == 0 {
		t.Error("a busy index was shed")
	}
	s.ShedIdle()
	if room() != 0 {
		t.Errorf("an idle index has room for %d entries", room())
	}
	if e, err := x.Get(2); err != nil || e.Position != 3 {
		t.Errorf("entry 2 after that: %+v, %v", e, err)
	}
}
