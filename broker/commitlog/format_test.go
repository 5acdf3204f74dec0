package commitlog

import (
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; they never change once released")

// The golden files are what is on disks: a change here is a new version of the
// format, never an edit.
func TestGoldenBytes(t *testing.T) {
	header := make([]byte, headerLen)
	putSegmentHeader(header, 0x1122334455667788, 1<<32, time.UnixMicro(1700000000123456))
	if what := checkSegmentHeader(header, 0x1122334455667788, 1<<32); what != "" {
		t.Error(what)
	}

	w := &writer{end: 1<<32 + headerLen, synced: 1<<32 + 8, log: &Log{
		inc: 0x1122334455667788, lineage: LineageStart{Epoch: 7, ID: 0xA1A2A3A4A5A6A7A8},
	}}
	batch := &Batch{Entries: []Entry{numbered(1, 20), landed(2, 10, true), landed(3, 0, false)}}
	size, err := batchSize(batch)
	if err != nil {
		t.Fatal(err)
	}
	g := new(group)
	w.build(g, []*Batch{batch}, size)
	mark := make([]byte, frameLen)
	(&frame{pos: 1 << 33, kind: kindMark, lineage: 0xA5A6A7A8, synced: 1 << 33}).put(mark)

	mem := disk.NewMem()
	if err := mem.MkdirAll(testDir); err != nil {
		t.Fatal(err)
	}
	if _, err := createMeta(mem, testDir, &meta{
		Incarnation: 0x1122334455667788, Group: testGroup, Lanes: 4, Begin: 1 << 20, CleanEnd: 1 << 21,
		Lineage: []LineageStart{{Epoch: 1, ID: 3, First: 64}, {Epoch: 2, ID: ^record.LineageID(0), First: 1 << 20}},
	}); err != nil {
		t.Fatal(err)
	}
	f, err := mem.Open(testDir + "/" + metaName)
	if err != nil {
		t.Fatal(err)
	}
	slot := make([]byte, metaSlot)
	if _, err := f.ReadAt(slot, metaSlot); err != nil {
		t.Fatal(err)
	}

	for name, b := range map[string][]byte{
		"segment-header": header, "entries": g.buf, "mark": mark, "meta-slot": slot[:trimZeros(slot)],
	} {
		file := "testdata/" + name + ".v1.hex"
		if *rewrite {
			if err := os.WriteFile(file, []byte(hex.Dump(b)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.Dump(b); got != string(want) {
			t.Errorf("%s: the format changed:\n%s", name, got)
		}
	}
}

func TestMetaSurvivesATornWrite(t *testing.T) {
	mem := disk.NewMem()
	if err := mem.MkdirAll(testDir); err != nil {
		t.Fatal(err)
	}
	mf, err := createMeta(mem, testDir, &meta{Group: testGroup, Begin: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := mf.write(&meta{Group: testGroup, Begin: 2}); err != nil {
		t.Fatal(err)
	}
	newest := int64(mf.sequence%2) * metaSlot
	for off := range int64(60) {
		flip(t, mem, metaName, newest+off)
		_, m, err := openMeta(mem, testDir)
		if err != nil || m.Begin != 1 {
			t.Fatalf("byte %d of the newest slot damaged: %+v, %v", off, m, err)
		}
		flip(t, mem, metaName, newest+off)
	}
	if _, m, err := openMeta(mem, testDir); err != nil || m.Begin != 2 {
		t.Fatalf("%+v, %v", m, err)
	}
}

func TestOpenDoesNotReadHistory(t *testing.T) {
	mem, _ := written(t, 60, 500, 4<<10)
	f := disk.NewFaulty(mem)
	reads := map[string]int{}
	f.Set(func(op disk.Op, name string) error {
		if op == disk.OpRead && strings.HasSuffix(name, segmentSuffix) {
			reads[name]++
		}
		return nil
	})
	h := open(t, testOptions(f, 2))
	last := segmentName((*h.segments.Load())[len(*h.segments.Load())-1].base)
	if len(reads) < 5 {
		t.Fatalf("%d segments", len(reads))
	}
	for name, n := range reads {
		if n > 1 && name != testDir+"/"+last { // one read is the header
			t.Errorf("%d reads of %s", n, name)
		}
	}
}
