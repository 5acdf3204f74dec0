package broker

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"path"
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// The file of indexes that a replica is given, all integers little endian:
//
//	magic "MQRIDX" 0x00 0x01 | length of the table u32 | CRC32C of the table u32 |
//	table, for each index: length of the name u16, name, first u64, next u64 |
//	of each index in that order its entries from first on, in blocks of 4,096 (the last may have fewer):
//	entries: position u64, size u32, hash u32, label u8, 3 zero; CRC32C of them u32
const (
	lentHeadBytes  = 16
	lentEntryBytes = 20
	lentSumBytes   = 4
	lentBlock      = 4096 // entries
	lentBlockBytes = lentBlock*lentEntryBytes + lentSumBytes
	maxLentTable   = 64 << 20
)

var lentMagic = [8]byte{'M', 'Q', 'R', 'I', 'D', 'X', 0, 2}

// kept is the newest snapshot as a replica is given it: which indexes belong to it is
// remembered, since reading that from the file means decoding all of it.
type kept struct {
	name string
	cuts []cut
}

// cut is an index as a snapshot names it.
type cut struct {
	id, next uint64
}

// cutList returns the indexes that a snapshot of the state names.
func (s *state) cutList() []cut {
	var list []cut
	for _, t := range s.topics {
		for _, q := range t.queues {
			list = append(list, cut{q.id, q.index.Next()})
		}
	}
	for _, f := range s.out {
		list = append(list, cut{f.ixID, f.index.Next()})
	}
	for _, r := range s.relays {
		list = append(list, cut{r.ixID, r.index.Next()})
	}
	for _, k := range s.timers.list {
		list = append(list, cut{k.id, k.index.Next()})
	}
	return list
}

// lentIndex is an index of the file: entries from first up to next.
type lentIndex struct {
	name        string
	first, next uint64
	index       *queue.Index // of the giver
	off         int64        // of its first entry in the file; of the giver
}

var _ ship.Snapshots = (*Broker)(nil)

// Lanes implements ship.Snapshots.
func (b *Broker) Lanes() int { return b.log.Lanes() }

// isLent reports whether something must stay since a replica is being given it. Not
// on a full disk, as with [commitlog.Log.Retain]: the replica asks again then.
func (b *Broker) isLent() bool {
	b.mu.RLock()
	lent := b.lent > 0
	b.mu.RUnlock()
	return lent && !errors.Is(b.log.Writable(), commitlog.ErrFull)
}

// Snapshot implements ship.Snapshots: the key of handles and, when there is one,
// the newest snapshot of the fold with the indexes that it names. Nothing that it
// names is trimmed before Close.
func (b *Broker) Snapshot(ctx context.Context) (ship.Snapshot, error) {
	if b.shared == nil {
		return nil, &Error{Op: "snapshot", Kind: KindUnsupported}
	}
	b.mu.Lock()
	b.lent++
	newest := b.newest
	b.mu.Unlock()
	s := &lentSnapshot{b: b}
	if err := s.open(ctx, newest); err != nil {
		return nil, errors.Join(&Error{Op: "snapshot", Kind: kindOfLog(err), Err: err}, s.Close())
	}
	return s, nil
}

// lentSnapshot is the store of a broker but for its log, as a replica is given it.
type lentSnapshot struct {
	b      *Broker
	files  []ship.File
	secret []byte
	fold   disk.File // nil: there is no snapshot
	head   []byte    // of the file of indexes
	list   []lentIndex
	closed bool

	block   []byte // the one that was read last
	blockOf *lentIndex
	blockAt uint64 // its number in the index
}

// open opens the newest snapshot; nil = there is none.
func (s *lentSnapshot) open(ctx context.Context, newest *kept) error {
	b := s.b
	var err error
	if s.secret, err = b.readFile(secretName); err != nil {
		return err
	}
	s.files = []ship.File{{Name: secretName, Size: int64(len(s.secret))}}
	if newest == nil {
		return nil
	}
	if s.fold, err = b.fs.Open(path.Join(b.dir, newest.name)); err != nil {
		return err
	}
	size, err := s.fold.Size()
	if err != nil {
		return err
	}
	if err := s.openIndexes(ctx, newest.cuts); err != nil {
		return err
	}
	s.files = append(s.files, ship.File{Name: newest.name, Size: size}, ship.File{Name: indexesName, Size: s.end()})
	return nil
}

// openIndexes makes the table of the indexes that the snapshot names.
func (s *lentSnapshot) openIndexes(ctx context.Context, cuts []cut) error {
	for _, c := range cuts {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := indexName(c.id)
		ix, err := s.b.indexes.Index(name)
		if err != nil {
			return err
		}
		s.list = append(s.list, lentIndex{name: name, first: min(ix.First(), c.next), next: c.next, index: ix})
	}
	slices.SortFunc(s.list, func(x, y lentIndex) int { return cmp.Compare(x.name, y.name) })
	le := binary.LittleEndian
	var table []byte
	for _, x := range s.list {
		table = append(le.AppendUint16(table, uint16(len(x.name))), x.name...)
		table = le.AppendUint64(le.AppendUint64(table, x.first), x.next)
	}
	s.head = le.AppendUint32(append(s.head, lentMagic[:]...), uint32(len(table)))
	s.head = append(le.AppendUint32(s.head, crc32.Checksum(table, castagnoli)), table...)
	off := int64(len(s.head))
	for i := range s.list {
		s.list[i].off = off
		off += s.list[i].bytes()
	}
	return nil
}

func (x *lentIndex) bytes() int64 {
	n := x.next - x.first
	return int64(n)*lentEntryBytes + int64((n+lentBlock-1)/lentBlock)*lentSumBytes
}

// end returns the size of the file of indexes.
func (s *lentSnapshot) end() int64 {
	n := int64(len(s.head))
	for i := range s.list {
		n += s.list[i].bytes()
	}
	return n
}

// Files implements ship.Snapshot.
func (s *lentSnapshot) Files() []ship.File { return s.files }

// ReadAt implements ship.Snapshot.
func (s *lentSnapshot) ReadAt(file int, p []byte, off int64) (int, error) {
	if file < 0 || file >= len(s.files) || off < 0 {
		return 0, &Error{Op: "snapshot", Kind: KindInvalid}
	}
	switch s.files[file].Name {
	case secretName:
		return readFrom(s.secret, p, off)
	case indexesName:
		return s.readIndexes(p, off)
	}
	return s.fold.ReadAt(p, off)
}

// readFrom is io.ReaderAt of bytes.
func readFrom(b, p []byte, off int64) (int, error) {
	if off >= int64(len(b)) {
		return 0, io.EOF
	}
	n := copy(p, b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (s *lentSnapshot) readIndexes(p []byte, off int64) (n int, err error) {
	if off < int64(len(s.head)) {
		n = copy(p, s.head[off:])
	}
	for n < len(p) {
		at := off + int64(n)
		// The first one that ends beyond; empty ones end where they begin.
		i, found := slices.BinarySearchFunc(s.list, at, func(x lentIndex, at int64) int {
			if x.off+x.bytes() <= at {
				return -1
			}
			return 0
		})
		if !found {
			return n, io.EOF
		}
		got, err := s.readBlock(&s.list[i], p[n:], at-s.list[i].off)
		if err != nil {
			return n, err
		}
		n += got
	}
	return n, nil
}

// readBlock copies what an index has from a byte of it on, up to the end of a block.
func (s *lentSnapshot) readBlock(x *lentIndex, p []byte, off int64) (int, error) {
	at := uint64(off / lentBlockBytes)
	if s.blockOf != x || s.blockAt != at {
		s.blockOf = nil
		var err error
		if s.block, err = x.encode(s.block[:0], at*lentBlock); err != nil {
			return 0, err
		}
		s.blockOf, s.blockAt = x, at
	}
	return copy(p, s.block[off%lentBlockBytes:]), nil
}

// encode appends the block that begins with the entry of that number, counted from
// the first.
func (x *lentIndex) encode(b []byte, from uint64) ([]byte, error) {
	var entries [256]queue.Entry
	number := x.first + from
	for left := min(lentBlock, x.next-number); left > 0; {
		got, err := x.index.Read(number, entries[:min(left, uint64(len(entries)))])
		if err != nil {
			return b, err
		}
		if got == 0 {
			return b, io.ErrUnexpectedEOF
		}
		for _, e := range entries[:got] {
			b = appendLentEntry(b, e)
		}
		number, left = number+uint64(got), left-uint64(got)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

func appendLentEntry(b []byte, e queue.Entry) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(e.Position))
	b = le.AppendUint32(le.AppendUint32(b, e.Size), e.Hash)
	return append(b, e.Label, 0, 0, 0)
}

func parseLentEntry(b []byte) queue.Entry {
	le := binary.LittleEndian
	return queue.Entry{Position: record.Position(le.Uint64(b)), Size: le.Uint32(b[8:]), Hash: le.Uint32(b[12:]), Label: b[16]}
}

// readIndexTable reads the table of a file of indexes, and returns where the first
// entry stands.
func readIndexTable(f disk.File) ([]lentIndex, int64, error) {
	bad := &SnapshotError{Name: indexesName, What: "its table is damaged"}
	le := binary.LittleEndian
	var head [lentHeadBytes]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, 0, bad
	}
	n := le.Uint32(head[8:])
	if [8]byte(head[:8]) != lentMagic || n > maxLentTable {
		return nil, 0, bad
	}
	table := make([]byte, n)
	if _, err := f.ReadAt(table, lentHeadBytes); (err != nil && n > 0) || crc32.Checksum(table, castagnoli) != le.Uint32(head[12:]) {
		return nil, 0, bad
	}
	var list []lentIndex
	for len(table) > 0 {
		if len(table) < 2 || len(table) < 2+int(le.Uint16(table))+16 {
			return nil, 0, bad
		}
		end := 2 + int(le.Uint16(table))
		x := lentIndex{name: string(table[2:end]), first: le.Uint64(table[end:]), next: le.Uint64(table[end+8:])}
		if x.first > x.next {
			return nil, 0, bad
		}
		list, table = append(list, x), table[end+16:]
	}
	return list, lentHeadBytes + int64(n), nil
}

// Close implements ship.Snapshot.
func (s *lentSnapshot) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.b.mu.Lock()
	s.b.lent--
	s.b.mu.Unlock()
	if s.fold != nil {
		return s.fold.Close()
	}
	return nil
}
