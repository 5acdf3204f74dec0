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

	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// The file of indexes that a replica is given, all integers little endian:
//
//	magic "MQRIDX" 0x00 0x01 | length of the table u32 | CRC32C of the table u32 |
//	table, for each index: length of the name u16, name, first u64, next u64 |
//	of each index in that order its entries from first on: position u64, size u32, hash u32, label u8, 3 zero
const (
	lentHeadBytes  = 16
	lentEntryBytes = 20
	maxLentTable   = 64 << 20
)

var lentMagic = [8]byte{'M', 'Q', 'R', 'I', 'D', 'X', 0, 1}

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

// isLent reports whether a snapshot is being given to a replica.
func (b *Broker) isLent() bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.lent > 0
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
	b.mu.Unlock()
	s := &lentSnapshot{b: b}
	if err := s.open(); err != nil {
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
}

func (s *lentSnapshot) open() error {
	b := s.b
	var err error
	if s.secret, err = b.readFile(secretName); err != nil {
		return err
	}
	s.files = []ship.File{{Name: secretName, Size: int64(len(s.secret))}}
	names, err := b.snapshotNames()
	if err != nil || len(names) == 0 {
		return err
	}
	data, err := b.readFile(names[0])
	if err != nil {
		return err
	}
	c, err := b.emptyState().decode(names[0], data)
	if err != nil {
		return err
	}
	if err := s.openIndexes(c); err != nil {
		return err
	}
	if s.fold, err = b.fs.Open(path.Join(b.dir, names[0])); err != nil {
		return err
	}
	s.files = append(s.files, ship.File{Name: names[0], Size: int64(len(data))}, ship.File{Name: indexesName, Size: s.end()})
	return nil
}

// openIndexes makes the table of the indexes that the snapshot names.
func (s *lentSnapshot) openIndexes(c *cuts) error {
	for name, next := range c.next {
		ix, err := s.b.indexes.Index(name)
		if err != nil {
			return err
		}
		s.list = append(s.list, lentIndex{name: name, first: min(ix.First(), next), next: next, index: ix})
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

func (x *lentIndex) bytes() int64 { return int64(x.next-x.first) * lentEntryBytes }

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
		i, found := slices.BinarySearchFunc(s.list, at, func(x lentIndex, at int64) int {
			if x.off+x.bytes() <= at {
				return -1
			}
			return cmp.Compare(x.off, at)
		})
		if !found && i < len(s.list) && s.list[i].off > at {
			i--
		}
		if i < 0 || i >= len(s.list) || s.list[i].off > at {
			return n, io.EOF
		}
		got, err := s.list[i].read(p[n:], at-s.list[i].off)
		if err != nil {
			return n, err
		}
		n += got
	}
	return n, nil
}

// read encodes entries from a byte of them on.
func (x *lentIndex) read(p []byte, off int64) (int, error) {
	var entries [256]queue.Entry
	number, skip := x.first+uint64(off/lentEntryBytes), int(off%lentEntryBytes)
	want := min(uint64(len(p)+skip+lentEntryBytes-1)/lentEntryBytes, uint64(len(entries)), x.next-number)
	got, err := x.index.Read(number, entries[:want])
	if err != nil {
		return 0, err
	}
	if got == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	b := make([]byte, 0, got*lentEntryBytes)
	for _, e := range entries[:got] {
		b = appendLentEntry(b, e)
	}
	return copy(p, b[skip:]), nil
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
