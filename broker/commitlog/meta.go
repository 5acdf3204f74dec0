package commitlog

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"path"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	metaName    = "META"
	metaNewName = "META.new"
	// metaSlot is the size in bytes of one of META's two slots; it holds
	// maxLineage rows with room to spare.
	metaSlot    = 64 << 10
	metaHeadLen = 24
	// maxLineage bounds the lineage table: the oldest rows of a store that was
	// opened more often within its retention are dropped.
	maxLineage = 512
)

var metaMagic = [8]byte{'M', 'Q', 'R', 'M', 'E', 'T', 'A', 1}

// meta is the identity of a store.
type meta struct {
	Incarnation record.Incarnation
	Group       zone.Group
	Lanes       int
	Begin       record.Position // oldest position kept
	CleanEnd    record.Position // end at a clean Close; 0 = was not closed since
	Lineage     []LineageStart  // ascending

	// Of the log of a group with replicas. Zero values are left out.
	Blank     bool            `json:",omitempty"` // nothing was ever in it: the incarnation does not count yet
	Committed record.Position `json:",omitempty"` // known at a clean Close
	// Member: it is the log of one of several nodes, since it was opened to follow.
	Member bool `json:",omitempty"`
	// Cut is where a truncation under way cuts the log; Open finishes it.
	Cut record.Position `json:",omitempty"`
	// Loose: what frames below say of positions before them does not tell that
	// these were durable here. They were read from a master that was ahead.
	Loose record.Position `json:",omitempty"`
}

// cutRows returns the rows that begin below to.
func cutRows(rows []LineageStart, to record.Position) []LineageStart {
	n := len(rows)
	for n > 0 && rows[n-1].First >= to {
		n--
	}
	return append([]LineageStart(nil), rows[:n]...)
}

// writeOnce is write with an error of this package.
func (mf *metaFile) writeOnce(m *meta) error {
	if err := mf.write(m); err != nil {
		return &OpError{Op: "write", Segment: metaName, Err: err}
	}
	return nil
}

// writeTwice makes m durable in both slots: whichever of them is damaged later,
// the other one says the same.
func (mf *metaFile) writeTwice(m *meta) error {
	for range 2 {
		if err := mf.write(m); err != nil {
			return &OpError{Op: "write", Segment: metaName, Err: err}
		}
	}
	return nil
}

// metaFile is the open META file. Its methods are not safe for concurrent use.
//
// A slot is: magic (8 bytes), sequence (u64), length of the JSON (u32), CRC32C
// of all that and the JSON (u32), JSON. The valid slot with the higher sequence
// counts.
type metaFile struct {
	file     disk.File
	sequence uint64
}

// createMeta makes META appear in one step.
func createMeta(fsys disk.FS, dir string, m *meta) (*metaFile, error) {
	f, err := fsys.Create(path.Join(dir, metaNewName))
	if err != nil {
		return nil, err
	}
	mf := &metaFile{file: f}
	steps := []func() error{
		func() error { return f.Preallocate(2 * metaSlot) },
		func() error { return mf.write(m) },
		func() error { return fsys.Rename(path.Join(dir, metaNewName), path.Join(dir, metaName)) },
		func() error { return fsys.SyncDir(dir) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			f.Close()
			return nil, err
		}
	}
	return mf, nil
}

// openMeta returns fs.ErrNotExist when there is no META.
func openMeta(fsys disk.FS, dir string) (*metaFile, *meta, error) {
	f, err := fsys.Open(path.Join(dir, metaName))
	if err != nil {
		return nil, nil, err
	}
	mf := &metaFile{file: f}
	m, err := mf.read()
	if err != nil {
		f.Close()
		return nil, nil, &StoreError{Dir: dir, What: "META is damaged", Err: err, Damage: true}
	}
	return mf, m, nil
}

var errNoSlot = errors.New("no valid slot")

func (mf *metaFile) read() (*meta, error) {
	var best *meta
	for slot := range int64(2) {
		b := make([]byte, metaSlot)
		n, err := mf.file.ReadAt(b, slot*metaSlot)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if m, sequence, ok := parseMeta(b[:n]); ok && (best == nil || sequence > mf.sequence) {
			best, mf.sequence = m, sequence
		}
	}
	if best == nil {
		return nil, errNoSlot
	}
	return best, nil
}

func parseMeta(b []byte) (*meta, uint64, bool) {
	le := binary.LittleEndian
	if len(b) < metaHeadLen || [8]byte(b[:8]) != metaMagic {
		return nil, 0, false
	}
	n := uint64(le.Uint32(b[16:]))
	if n > uint64(len(b)-metaHeadLen) || le.Uint32(b[20:]) != metaSum(b[:metaHeadLen+n]) {
		return nil, 0, false
	}
	m := new(meta)
	if err := json.Unmarshal(b[metaHeadLen:metaHeadLen+n], m); err != nil {
		return nil, 0, false
	}
	return m, le.Uint64(b[8:]), true
}

func metaSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:20], castagnoli), castagnoli, b[metaHeadLen:])
}

// write makes m durable. After an error the slot written last still counts, or
// this one does.
func (mf *metaFile) write(m *meta) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if metaHeadLen+len(text) > metaSlot {
		return errors.New("lineage table does not fit its slot")
	}
	b, le := make([]byte, metaHeadLen, metaHeadLen+len(text)), binary.LittleEndian
	copy(b, metaMagic[:])
	le.PutUint64(b[8:], mf.sequence+1)
	le.PutUint32(b[16:], uint32(len(text)))
	b = append(b, text...)
	le.PutUint32(b[20:], metaSum(b))
	if _, err := mf.file.WriteAt(b, int64((mf.sequence+1)%2)*metaSlot); err != nil {
		return err
	}
	if err := mf.file.Sync(); err != nil {
		return err
	}
	mf.sequence++
	return nil
}

// addLineage appends a row and drops the oldest beyond maxLineage.
func (m *meta) addLineage(row LineageStart) {
	m.Lineage = append(m.Lineage, row)
	if n := len(m.Lineage) - maxLineage; n > 0 {
		m.Lineage = append([]LineageStart(nil), m.Lineage[n:]...)
	}
}

// lineageAt returns the row that a position belongs to; ok is false below the
// oldest row known.
func lineageAt(rows []LineageStart, pos record.Position) (LineageStart, bool) {
	for i := len(rows) - 1; i >= 0; i-- {
		if rows[i].First <= pos {
			return rows[i], true
		}
	}
	return LineageStart{}, false
}

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
