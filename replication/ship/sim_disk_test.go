package ship

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/mqrouter/mqrouter/replication/record"
)

// simHead and simBase are the sizes of a simulated frame's and segment's header.
const (
	simHead = 48
	simBase = 64
)

// simFrame is a frame of a simulated log: position, size, lineage, commit mark and
// number of the record, epoch, checksum of all, then bytes that depend on nothing.
type simFrame struct {
	pos, next record.Position
	base      record.Position // of its segment
	first     bool            // in its segment
	data      []byte
}

func (f *simFrame) id() uint64 { return binary.LittleEndian.Uint64(f.data[32:]) }
func (f *simFrame) mark() record.Position {
	return record.Position(binary.LittleEndian.Uint64(f.data[24:]))
}
func (f *simFrame) lineage() record.LineageID {
	return record.LineageID(binary.LittleEndian.Uint64(f.data[16:]))
}
func (f *simFrame) sum() uint32 { return binary.LittleEndian.Uint32(f.data[40:]) }

// from is where a stretch that begins with the frame begins.
func (f *simFrame) from() record.Position {
	if f.first {
		return f.base
	}
	return f.pos
}

func newSimFrame(pos record.Position, lineage record.LineageID, mark record.Position, id uint64, size int) []byte {
	size = (simHead + size + 7) &^ 7
	b := make([]byte, size)
	le := binary.LittleEndian
	le.PutUint64(b, uint64(pos))
	le.PutUint64(b[8:], uint64(size))
	le.PutUint64(b[16:], uint64(lineage))
	le.PutUint64(b[24:], uint64(mark))
	le.PutUint64(b[32:], id)
	for i := simHead; i < size; i++ {
		b[i] = byte(id) + byte(i)
	}
	le.PutUint32(b[40:], simSum(b))
	return b
}

func simSum(b []byte) uint32 {
	return crc32.ChecksumIEEE(b[simHead:]) ^ crc32.ChecksumIEEE(b[:40])
}

// parseSimFrame returns the frame at the start of b, or nil.
func parseSimFrame(b []byte, pos record.Position) []byte {
	le := binary.LittleEndian
	if len(b) < simHead || le.Uint64(b) != uint64(pos) {
		return nil
	}
	n := le.Uint64(b[8:])
	if n < simHead || n > uint64(len(b)) || simSum(b[:n]) != le.Uint32(b[40:]) {
		return nil
	}
	return b[:n]
}

// simDisk is what of a node outlives its process: the log as the disk has it, of
// which a crash keeps everything that was synced and a part of the rest.
type simDisk struct {
	mu       sync.Mutex // guards all; that of every log that was opened on it
	inc      record.Incarnation
	begin    record.Position
	rows     []record.LineageStart // durable
	frames   []*simFrame
	durable  int             // of frames
	clean    record.Position // commit position that a clean close has left
	replaced bool            // nothing of it is left: a new disk
}

func (d *simDisk) end() record.Position {
	if len(d.frames) == 0 {
		return d.begin
	}
	return d.frames[len(d.frames)-1].next
}

func (d *simDisk) synced() record.Position {
	if d.durable == 0 {
		return d.begin
	}
	return d.frames[d.durable-1].next
}

// marked is what the disk's own frames prove to be committed.
func (d *simDisk) marked() record.Position {
	p := max(d.begin, d.clean)
	for _, f := range d.frames {
		p = max(p, f.mark())
	}
	return min(p, d.synced())
}

func (d *simDisk) epoch() uint64 {
	if len(d.rows) == 0 {
		return 0
	}
	return d.rows[len(d.rows)-1].Epoch
}

// crash drops some of what was not synced, from the end.
func (d *simDisk) crash(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.frames = d.frames[:d.durable+rng.IntN(len(d.frames)-d.durable+1)]
	d.durable = len(d.frames) // recovery syncs what it has found
	d.clean = 0
}

// cut drops what stands at or above a position.
func (d *simDisk) cut(to record.Position) {
	n := slices.IndexFunc(d.frames, func(f *simFrame) bool { return f.pos >= to })
	if n >= 0 {
		d.frames = slices.Clone(d.frames[:n])
	}
	d.durable = min(d.durable, len(d.frames))
	if n := slices.IndexFunc(d.rows, func(r record.LineageStart) bool { return r.First >= to }); n >= 0 {
		d.rows = slices.Clone(d.rows[:n])
	}
}

// trim drops whole segments below a position.
func (d *simDisk) trim(to record.Position) {
	n := 0
	for i, f := range d.frames {
		if f.first && f.base <= to {
			n = i
		}
	}
	if n == 0 || n > d.durable {
		return
	}
	d.begin = d.frames[n].base
	d.frames, d.durable = slices.Clone(d.frames[n:]), d.durable-n
}
