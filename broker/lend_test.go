package broker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
)

// lender is a master that has messages and a snapshot.
func lender(t *testing.T, mem *disk.Mem, limits Limits) *memberNode {
	t.Helper()
	m := openMember(t, mem, sample(t), limits)
	t.Cleanup(func() { _ = m.Close() })
	m.promote(1)
	l := newLink(m)
	t.Cleanup(l.close)
	m.answers()
	m.publishN("orders", "a", 40)
	if err := m.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// Which indexes a replica is given is remembered beside the snapshot: it must be what
// the snapshot names.
func TestWhatIsLentIsWhatTheSnapshotNames(t *testing.T) {
	m := lender(t, disk.NewMem(), testLimits())
	m.mu.RLock()
	newest := *m.newest
	m.mu.RUnlock()
	s, err := m.loadSnapshot(newest.name)
	if err != nil {
		t.Fatal(err)
	}
	order := func(a, b cut) int { return cmp.Compare(a.id, b.id) }
	got, want := slices.SortedFunc(slices.Values(newest.cuts), order), slices.SortedFunc(slices.Values(s.cuts.list), order)
	if len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("remembered are\n%v, the snapshot names\n%v", got, want)
	}
}

// Whoever asks for a snapshot and does not wait for it does not have it opened.
func TestASnapshotIsNotOpenedForNobody(t *testing.T) {
	m := lender(t, disk.NewMem(), testLimits())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := m.Snapshot(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("opened: %v, %v", s, err)
	}
	if m.isLent() {
		t.Error("it is lent all the same")
	}
}

// Every bit of the file of indexes that a replica was given is looked at before its
// entries are believed.
func TestDamagedEntriesAreNotMadeIndexesOf(t *testing.T) {
	m := lender(t, disk.NewMem(), testLimits())
	s, err := m.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	files := s.Files()
	i := len(files) - 1
	whole := make([]byte, files[i].Size)
	if _, err := s.ReadAt(i, whole, 0); err != nil || files[i].Name != indexesName {
		t.Fatalf("file %s: %v", files[i].Name, err)
	}
	parts := make([]byte, 0, len(whole)) // in any pieces
	for n := 1; len(parts) < len(whole); n += 13 {
		p := make([]byte, min(n, len(whole)-len(parts)))
		if _, err := s.ReadAt(i, p, int64(len(parts))); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p...)
	}
	if !bytes.Equal(parts, whole) {
		t.Error("read in pieces it is another file")
	}
	fill := func(name string, b []byte) error {
		mem := disk.NewMem()
		if err := replaceFile(mem, ".", indexesName, b); err != nil {
			t.Fatal(err)
		}
		store, err := queue.Open(queue.Options{FS: mem, Dir: name})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := store.Recover(map[string]uint64{}); err != nil {
			t.Fatal(err)
		}
		f, err := mem.Open(path.Join(".", indexesName))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return fillIndexes(store, f)
	}
	if err := fill("whole", whole); err != nil {
		t.Fatalf("the whole file: %v", err)
	}
	for at := 0; at < len(whole); at += 11 {
		bad := bytes.Clone(whole)
		bad[at] ^= 1 << (at % 8)
		if err := fill(fmt.Sprint(at), bad); err == nil {
			t.Fatalf("byte %d of %d was changed, and nobody noticed", at, len(whole))
		}
	}
}

// What a replica is being given does not hold up a master whose disk is full.
func TestAFullDiskTakesBackWhatIsLent(t *testing.T) {
	mem, limits := disk.NewMem(), testLimits()
	limits.SegmentBytes = 64 << 10
	m := lender(t, mem, limits)
	s, err := m.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !m.isLent() {
		t.Error("nothing is lent")
	}
	large := m.message("orders", "m")
	large.Body = make([]byte, 60<<10)
	m.fill(mem, large)
	if m.isLent() {
		t.Error("the disk is full, and is held up by what is lent")
	}
	mem.SetLimit(0)
}
