package tails

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// written is a log with records over several segments, on a disk of its own.
type written struct {
	*commitlog.Log
	at []record.Position // of the records
}

func write(t *testing.T, n int) *written {
	t.Helper()
	l, err := commitlog.Open(t.Context(), commitlog.Options{FS: disk.NewMem(), Dir: "log", Group: "g", SegmentBytes: 8 << 10,
		Rand: rand.New(rand.NewPCG(1, 2)), Deliver: func(*commitlog.Committed) {}})
	if err != nil {
		t.Fatal(err)
	}
	l.Start()
	t.Cleanup(func() { l.Close() })
	w := &written{Log: l}
	for i := range n {
		r := record.Record{Type: record.TypeMessage, Identity: record.Identity{Group: "g"}, Topic: "t", Shard: record.NoShard,
			MessageID: fmt.Sprint(i), Body: make([]byte, 100+i*37%900)}
		b, err := record.AppendRecord(nil, &r)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		batch := &commitlog.Batch{Entries: []commitlog.Entry{{Kind: commitlog.KindOwn, Record: b}}, Done: func(_ *commitlog.Batch, err error) { done <- err }}
		if err := errors.Join(l.Append(t.Context(), batch), <-done); err != nil {
			t.Fatal(err)
		}
		w.at = append(w.at, batch.Entries[0].Position)
	}
	return w
}

func (w *written) head(from int) Head {
	return Head{Group: "g", Node: "n", Incarnation: w.Incarnation(), Epoch: 1, From: w.at[from], End: w.End(), Committed: w.End(),
		Saved: time.Unix(1e9, 0).UTC(), Table: w.Lineage(), Counts: Counts{Messages: len(w.at) - from, Kinds: map[string]int{"message": len(w.at) - from}}}
}

// ids returns the message ids of a tail from a position on.
func ids(t *testing.T, s *Store, id string, from record.Position) []string {
	t.Helper()
	var all []string
	err := s.Scan(t.Context(), id, from, func(e commitlog.Entry) error {
		v, err := record.Parse(e.Record)
		if err != nil {
			return err
		}
		if err := v.Verify(); err != nil || v.Position() != e.Position {
			return fmt.Errorf("record at %d: %w", e.Position, err)
		}
		all = append(all, string(v.MessageID()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

func TestATailIsReadAsItWasInTheLog(t *testing.T) {
	w, mem := write(t, 200), disk.NewMem()
	s := New(mem, "data/tails", 0)
	h := w.head(30)
	info, err := s.Save(t.Context(), h, w)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, New(mem, "data/tails", 0)} { // and after a restart
		list, err := s.List()
		if err != nil || len(list) != 1 || list[0].ID != h.ID() || list[0].Bytes != info.Bytes || list[0].Counts.Messages != 170 || list[0].Table[0] != w.Lineage()[0] {
			t.Fatalf("list: %+v, %v", list, err)
		}
		if got := ids(t, s, h.ID(), 0); !slices.Equal(got, numbers(30, 200)) {
			t.Errorf("it has %v", got)
		}
		if got := ids(t, s, h.ID(), w.at[150]); !slices.Equal(got, numbers(150, 200)) {
			t.Errorf("from its middle on it has %v", got)
		}
	}
	ops := 0
	mem.AfterOp(func(int) { ops++ })
	if again, err := s.Save(t.Context(), h, w); err != nil || again.ID != info.ID || ops > 0 {
		t.Errorf("saved again: %+v, %v, %d changes of the disk", again, err, ops)
	}
	if _, err := s.Drop("1-2-3"); !errors.Is(err, ErrNone) {
		t.Errorf("drop of another: %v", err)
	}
	if _, err := s.Drop(h.ID()); err != nil {
		t.Fatal(err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("after its drop: %+v, %v", list, err)
	}
	if err := s.Scan(t.Context(), h.ID(), 0, nil); !errors.Is(err, ErrNone) {
		t.Errorf("scan after its drop: %v", err)
	}
}

// TestATailIsThereWholeOrNotAtAll cuts the power after every change of the disk.
func TestATailIsThereWholeOrNotAtAll(t *testing.T) {
	w, mem := write(t, 60), disk.NewMem()
	s, h := New(mem, "data/tails", 0), w.head(10)
	type image struct {
		op   int
		disk *disk.Mem
	}
	var images []image
	rng := rand.New(rand.NewPCG(7, 7))
	mem.AfterOp(func(op int) {
		for range 4 {
			images = append(images, image{op, mem.Crash(rng)})
		}
	})
	if _, err := s.Save(t.Context(), h, w); err != nil {
		t.Fatal(err)
	}
	mem.AfterOp(nil)
	for range 4 {
		images = append(images, image{-1, mem.Crash(rng)}) // it was said to be durable
	}
	whole := 0
	for _, x := range images {
		s := New(x.disk, "data/tails", 0)
		list, err := s.List()
		if err != nil {
			t.Fatalf("change %d: %v", x.op, err)
		}
		if len(list) == 1 {
			whole++
		} else if x.op < 0 {
			t.Fatal("a tail that was saved is gone")
		}
		if _, err := s.Save(t.Context(), h, w); err != nil {
			t.Fatalf("change %d: saved again: %v", x.op, err)
		}
		if got := ids(t, s, h.ID(), 0); !slices.Equal(got, numbers(10, 60)) {
			t.Fatalf("change %d: it has %v", x.op, got)
		}
	}
	if whole < 4 || whole == len(images) {
		t.Errorf("%d of %d images have the tail: the test shows nothing", whole, len(images))
	}
}

func TestATailForWhichThereIsNoRoomLeavesNothing(t *testing.T) {
	w := write(t, 100)
	h := w.head(0)
	full := disk.NewFaulty(disk.NewMem())
	for _, op := range []disk.Op{disk.OpCreate, disk.OpPreallocate, disk.OpWrite, disk.OpTruncate, disk.OpSync, disk.OpRename} {
		full.Set(func(o disk.Op, name string) error {
			if o == op && (o == disk.OpRename || path.Base(name) == incoming) {
				return syscall.ENOSPC
			}
			return nil
		})
		s := New(full, "data/tails", 0)
		if _, err := s.Save(t.Context(), h, w); !disk.IsFull(err) {
			t.Errorf("%s: %v", op, err)
		}
		full.Set(nil)
		if names, err := full.List("data/tails"); err != nil || len(names) > 0 {
			t.Errorf("%s leaves %v, %v", op, names, err)
		}
	}
	s := New(disk.NewMem(), "data/tails", int64(w.End()-w.at[50])+4<<10)
	if _, err := s.Save(t.Context(), h, w); !errors.Is(err, ErrRoom) {
		t.Errorf("beyond the bound: %v", err)
	}
	later := w.head(50)
	if _, err := s.Save(t.Context(), later, w); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(t.Context(), w.head(60), w); !errors.Is(err, ErrRoom) {
		t.Errorf("beside another: %v", err)
	}
	if _, err := s.Drop(later.ID()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(t.Context(), w.head(99), w); err != nil {
		t.Errorf("once it is dropped: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Save(ctx, w.head(98), w); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled one: %v", err)
	}
}

// TestADamagedTailIsTold flips bits all over a file: what is read is right, or an error.
func TestADamagedTailIsTold(t *testing.T) {
	w, mem := write(t, 12), disk.NewMem()
	h := w.head(5)
	if _, err := New(mem, "d", 0).Save(t.Context(), h, w); err != nil {
		t.Fatal(err)
	}
	f, err := mem.Open(path.Join("d", h.name()))
	if err != nil {
		t.Fatal(err)
	}
	size, _ := f.Size()
	told := 0
	for off := int64(0); off < size; off += 5 {
		var b [1]byte
		if _, err := f.ReadAt(b[:], off); err != nil {
			t.Fatal(err)
		}
		put := func(c byte) {
			if _, err := f.WriteAt([]byte{c}, off); err != nil {
				t.Fatal(err)
			}
		}
		put(b[0] ^ 0x10)
		s := New(mem, "d", 0)
		var got []string
		err := s.Scan(t.Context(), h.ID(), 0, func(e commitlog.Entry) error {
			v, err := record.Parse(e.Record)
			if err == nil {
				err = v.Verify()
			}
			got = append(got, string(v.MessageID()))
			return err
		})
		put(b[0])
		if err != nil {
			told++
		} else if !slices.Equal(got, numbers(5, 12)) {
			t.Fatalf("byte %d: %v is read without an error", off, got)
		}
	}
	if told == 0 {
		t.Error("no damage was told")
	}
	for _, n := range []int64{0, 7, 100, size - 1} {
		cut := mem.Clone()
		f, err := cut.Open(path.Join("d", h.name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(n); err != nil {
			t.Fatal(err)
		}
		if err := New(cut, "d", 0).Scan(t.Context(), h.ID(), 0, func(commitlog.Entry) error { return nil }); err == nil {
			t.Errorf("a file of %d bytes is read without an error", n)
		}
	}
}

// TestADamagedTailIsInNobodysWay: beside a file that cannot be read others are listed,
// saved and dropped, and it can be dropped by its name; saving the same again mends it.
func TestADamagedTailIsInNobodysWay(t *testing.T) {
	w, mem := write(t, 12), disk.NewMem()
	h := w.head(5)
	if _, err := New(mem, "d", 0).Save(t.Context(), h, w); err != nil {
		t.Fatal(err)
	}
	spoil := func() {
		f, err := mem.Open(path.Join("d", h.name()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xff}, 20); err != nil {
			t.Fatal(err)
		}
	}
	spoil()
	s := New(mem, "d", 0)
	other := w.head(8)
	if _, err := s.Save(t.Context(), other, w); err != nil {
		t.Fatal(err)
	}
	list, err := s.List()
	if err != nil || len(list) != 2 || list[0].ID != h.name() || list[0].Damage == nil || list[0].Bytes == 0 || list[1].ID != other.ID() || list[1].Damage != nil {
		t.Fatalf("listed: %+v, %v", list, err)
	}
	var damage *FileError
	if _, err := s.Find(h.name()); !errors.As(err, &damage) {
		t.Errorf("a damaged one is found: %v", err)
	}
	if _, err := s.Save(t.Context(), h, w); err != nil {
		t.Fatal(err)
	}
	if x, err := s.Find(h.ID()); err != nil || x.Damage != nil {
		t.Errorf("saved again: %+v, %v", x, err)
	}
	spoil()
	s = New(mem, "d", 0)
	if x, err := s.Drop(h.name()); err != nil || x.Damage == nil {
		t.Errorf("dropped: %+v, %v", x, err)
	}
	if list, err := s.List(); err != nil || len(list) != 1 {
		t.Errorf("left: %+v, %v", list, err)
	}
}
