package commitlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

// flip changes one byte of a file of the store.
func flip(t *testing.T, mem *disk.Mem, segment string, off int64) {
	t.Helper()
	f, err := mem.Open(testDir + "/" + segment)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

// written returns a store with the numbers 1..n, not closed in order (as after
// kill -9), with the position of each.
func written(t testing.TB, n, bodyLen int, segmentBytes int64) (*disk.Mem, []Entry) {
	t.Helper()
	mem := disk.NewMem()
	o := testOptions(mem, 1)
	o.SegmentBytes = segmentBytes
	h := open(t, o)
	h.Start()
	var entries []Entry
	for i := 1; i <= n; i++ {
		b := &Batch{Entries: []Entry{numbered(i, bodyLen)}}
		out, err := h.send(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-out; err != nil {
			t.Fatal(err)
		}
		entries = append(entries, b.Entries[0])
	}
	left := mem.Crash(keepAll())
	h.Close()
	return left, entries
}

func TestDamageBeforeTheTailIsReportedNotCut(t *testing.T) {
	_, entries := written(t, 8, 100, 64<<10)
	for i, e := range entries[:len(entries)-1] {
		for _, off := range []int{0, 9, 13, 17, 21, 25, 29, frameLen, frameLen + 20, frameLen + 130, e.Size - 8} {
			mem, _ := written(t, 8, 100, 64<<10)
			flip(t, mem, segmentName(0), int64(e.Position)+int64(off))
			_, err := tryOpen(t, testOptions(mem, 2))
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) || corrupt.Position != e.Position || corrupt.Segment != segmentName(0) {
				t.Fatalf("entry %d byte %d: open: %v", i, off, err)
			}
			// Nothing was changed: the fault can be undone, as by a replica.
			flip(t, mem, segmentName(0), int64(e.Position)+int64(off))
			h := open(t, testOptions(mem, 3))
			if got := scan(t, h.Log, 0); !slices.Equal(got, sequence(1, 8)) {
				t.Fatalf("healed log holds %v", got)
			}
			h.Close()
		}
	}
}

func TestTornTailIsCutBackToTheLastValidEntry(t *testing.T) {
	_, entries := written(t, 8, 100, 64<<10)
	last := entries[7]
	for off := 0; off < last.Size; off += 8 {
		mem, _ := written(t, 8, 100, 64<<10)
		flip(t, mem, segmentName(0), int64(last.Position)+int64(off))
		h := open(t, testOptions(mem, 2))
		want := sequence(1, 7)
		v, err := record.Parse(last.Record)
		if err != nil {
			t.Fatal(err)
		}
		if off >= frameLen+len(v.Bytes()) { // padding carries nothing
			want = sequence(1, 8)
		}
		if got := scan(t, h.Log, 0); !slices.Equal(got, want) {
			t.Fatalf("byte %d: log holds %v", off, got)
		}
		row := h.Lineage()[1]
		if len(want) == 7 && row.First != last.Position {
			t.Fatalf("the new lineage begins at %d, cut at %d", row.First, last.Position)
		}
		file, err := mem.Open(testDir + "/" + segmentName(0))
		if err != nil {
			t.Fatal(err)
		}
		rest := make([]byte, 60<<10)
		if n, err := file.ReadAt(rest, int64(row.First)); trimZeros(rest[:n]) != 0 {
			t.Fatalf("leftovers of the torn write stay behind the cut (%v)", err)
		}
		h.Start()
		h.mustAppend(numbered(9, 5))
		h.Close()
	}
}

// A clean close, an idle second, or a later lineage prove that the last write
// was durable too.
func TestDamageToTheLastWriteIsReportedWhereItIsProvable(t *testing.T) {
	stories := map[string]func(h *harness, o Options) error{
		"clean close": func(h *harness, _ Options) error { return h.Close() },
		"idle mark": func(*harness, Options) error {
			time.Sleep(2 * idleMark)
			synctest.Wait()
			return nil
		},
	}
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := disk.NewMem()
				o := testOptions(mem, 1)
				h := open(t, o)
				h.Start()
				b := &Batch{Entries: []Entry{numbered(1, 100)}}
				out, err := h.send(b)
				if err != nil {
					t.Fatal(err)
				}
				<-out
				if err := story(h, o); err != nil {
					t.Fatal(err)
				}
				left := mem.Crash(keepAll())
				flip(t, left, segmentName(0), int64(b.Entries[0].Position)+40)
				var corrupt *CorruptError
				if _, err := tryOpen(t, testOptions(left, 2)); !errors.As(err, &corrupt) || corrupt.Position != b.Entries[0].Position {
					t.Errorf("open: %v", err)
				}
			})
		})
	}
	t.Run("later lineage", func(t *testing.T) {
		mem, entries := written(t, 3, 100, 64<<10)
		h := open(t, testOptions(mem, 2))
		left := mem.Crash(keepAll())
		h.Close()
		flip(t, left, segmentName(0), int64(entries[2].Position)+40)
		var corrupt *CorruptError
		if _, err := tryOpen(t, testOptions(left, 3)); !errors.As(err, &corrupt) || corrupt.Position != entries[2].Position {
			t.Errorf("open: %v", err)
		}
	})
}

func TestDamageInAnOldSegmentIsATypedErrorOfItsReader(t *testing.T) {
	for name, breakIt := range map[string]func(t *testing.T, mem *disk.Mem, seg string, e Entry){
		"payload": func(t *testing.T, mem *disk.Mem, seg string, e Entry) { flip(t, mem, seg, headerLen+40) },
		"header":  func(t *testing.T, mem *disk.Mem, seg string, e Entry) { flip(t, mem, seg, 3) },
		"gone": func(t *testing.T, mem *disk.Mem, seg string, e Entry) {
			if err := mem.Remove(testDir + "/" + seg); err != nil {
				t.Fatal(err)
			}
		},
		"cut short": func(t *testing.T, mem *disk.Mem, seg string, e Entry) {
			f, err := mem.Open(testDir + "/" + seg)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Truncate(headerLen + 3); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem, entries := written(t, 40, 300, 4<<10)
			// The second segment's first entry.
			i := 1
			for entries[i].Position == entries[i-1].Position+record.Position(entries[i-1].Size) {
				i++
			}
			bad := entries[i]
			seg := segmentName(bad.Position - headerLen)
			breakIt(t, mem, seg, bad)
			h := open(t, testOptions(mem, 2))
			defer h.Close()
			var corrupt *CorruptError
			if _, err := h.ReadAt(bad.Position, 0); !errors.As(err, &corrupt) {
				t.Errorf("read: %v", err)
			}
			err := h.Replay(context.Background(), 0, func(Entry) error { return nil })
			if !errors.As(err, &corrupt) || corrupt.Position < bad.Position-headerLen || corrupt.Position > bad.Position {
				t.Errorf("replay: %v", err)
			}
			if got := scan(t, h.Log, entries[30].Position); !slices.Equal(got, sequence(31, 40)) {
				t.Errorf("behind the damage: %v", got)
			}
			h.Start()
			h.mustAppend(numbered(41, 10))
			if begin, err := h.Trim(h.Committed()); err != nil || begin <= bad.Position {
				t.Errorf("trim over the damage: %d, %v", begin, err)
			}
		})
	}
}

func TestMissingLastSegmentIsReported(t *testing.T) {
	mem, entries := written(t, 40, 300, 4<<10)
	h := open(t, testOptions(mem, 2))
	h.Close()
	names, err := mem.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for _, n := range names {
		if len(n) == 20 {
			last = n
		}
	}
	if err := mem.Remove(testDir + "/" + last); err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	if _, err := tryOpen(t, testOptions(mem, 3)); !errors.As(err, &corrupt) || corrupt.Position > entries[39].Position {
		t.Errorf("open: %v", err)
	}
}

func TestFrameRejectsEveryFlippedBit(t *testing.T) {
	var b [frameLen]byte
	want := frame{pos: 4096, payload: 1000, envelope: 77, kind: KindLanding, sum: 0xDEADBEEF, lineage: 42, synced: 4000}
	want.put(b[:])
	if got, ok := parseFrame(b[:], 4096); !ok || got != want {
		t.Fatalf("round trip: %+v, %v", got, ok)
	}
	for n := range frameLen {
		if _, ok := parseFrame(b[:n], 4096); ok {
			t.Errorf("%d bytes are a frame", n)
		}
	}
	for bit := range frameLen * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if _, ok := parseFrame(b[:], 4096); ok {
			t.Errorf("bit %d flipped: still a frame", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	if _, ok := parseFrame(b[:], 4104); ok {
		t.Error("a frame of another position")
	}
}

func TestTrimZeros(t *testing.T) {
	for _, size := range []int{0, 1, 100, 4 << 10, 4<<10 + 1, 9 << 10, 64 << 10} {
		for _, last := range []int{0, 1, 2, 4095, 4096, 4097, 8192, size} {
			if last > size {
				continue
			}
			b := make([]byte, size)
			if last > 0 {
				b[last-1] = 1
			}
			if got := trimZeros(b); got != last {
				t.Errorf("%d bytes with the last set at %d: %d", size, last, got)
			}
		}
	}
}

func FuzzOpenNeverPanics(f *testing.F) {
	mem, _ := written(f, 4, 40, 4<<10)
	file, err := mem.Open(testDir + "/" + segmentName(0))
	if err != nil {
		f.Fatal(err)
	}
	b := make([]byte, 1200)
	if _, err := file.ReadAt(b, 0); err != nil {
		f.Fatal(err)
	}
	f.Add(b, uint16(100))
	f.Add(b, uint16(headerLen))
	f.Fuzz(func(t *testing.T, b []byte, at uint16) {
		mem, _ := written(t, 4, 40, 4<<10)
		file, err := mem.Open(testDir + "/" + segmentName(0))
		if err != nil {
			t.Fatal(err)
		}
		if at < 4<<10 {
			file.WriteAt(b[:min(len(b), 4<<10-int(at))], int64(at))
		}
		h, err := tryOpen(t, testOptions(mem, 2))
		if err != nil {
			return
		}
		defer h.Close()
		err = h.Scan(context.Background(), 0, math.MaxUint64, func(e Entry) error { return nil })
		if err != nil {
			t.Fatal(fmt.Errorf("opened but not readable: %w", err))
		}
	})
}

// One damaged slot of META, whichever, is healed by the other: the entries of
// the newest lineage are not taken for a torn end.
func TestEitherSlotOfMetaCanBeDamaged(t *testing.T) {
	for slot := range int64(2) {
		mem, _ := written(t, 8, 100, 64<<10)
		flip(t, mem, metaName, slot*metaSlot+metaHeadLen+5)
		h := open(t, testOptions(mem, 2))
		if got := scan(t, h.Log, 0); !slices.Equal(got, sequence(1, 8)) {
			t.Errorf("slot %d damaged: the log holds %v", slot, got)
		}
		h.Close()
	}
}

// A META that is older than the log, as from a backup, is told: its store must
// not cut what it does not know.
func TestMetaOlderThanTheLogIsReportedNotCut(t *testing.T) {
	mem, _ := written(t, 8, 100, 64<<10)
	old := metaBytes(t, mem, nil)
	h := open(t, testOptions(mem, 2))
	h.Start()
	h.mustAppend(numbered(9, 100))
	left := mem.Crash(keepAll())
	h.Close()
	metaBytes(t, left, old)
	_, err := tryOpen(t, testOptions(left, 3))
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) {
		t.Fatalf("open: %v", err)
	}
}

// metaBytes returns the bytes of META, and replaces them by others if given.
func metaBytes(t *testing.T, mem *disk.Mem, others []byte) []byte {
	t.Helper()
	f, err := mem.Open(testDir + "/" + metaName)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 2*metaSlot)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if others != nil {
		if _, err := f.WriteAt(others, 0); err != nil {
			t.Fatal(err)
		}
	}
	return b
}
