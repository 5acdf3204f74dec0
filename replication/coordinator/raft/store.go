package raft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The store's file and what is in it:
//
//	bucket "log"     key: index, 8 bytes big endian; value: an entry, see encodeEntry
//	bucket "stable"  key: raft's; value: crc32c of key and value (4), raft's
//	bucket "self"    "format" = 1; "id": crc32c of key and value (4), the store's random id, 16 hexadecimal digits;
//	                 "tally": crc32c of key and value (4), number of entries (8), of keys in "stable" (8): a page
//	                 that has lost some is noticed
const (
	storeFile   = "raft.db"
	storeFormat = "1"
	// lockTime is how long another process may hold the file: one that is just ending.
	lockTime = 2 * time.Second
	// maxEntry bounds an entry, in bytes: terms of one group are some hundred bytes.
	maxEntry = 64 << 10
)

var (
	bucketLog    = []byte("log")
	bucketStable = []byte("stable")
	bucketSelf   = []byte("self")
	keyFormat    = []byte("format")
	keyID        = []byte("id")
	keyTally     = []byte("tally")
)

// StoreError says that a voter's store cannot be used. The voter stays out of the
// quorum until it can.
type StoreError struct {
	Path string
	Op   string
	Err  error
}

// Error names the file.
func (e *StoreError) Error() string { return fmt.Sprintf("raft store %s: %s: %v", e.Path, e.Op, e.Err) }

// Unwrap returns the cause.
func (e *StoreError) Unwrap() error { return e.Err }

// ErrDamaged says that a store has content that was not written so. It heals when the
// folder is moved away and the voter started again: it then joins with an empty one.
var ErrDamaged = errors.New("content is damaged; move the folder away and start the node again to let it join anew from the other voters")

// store is raft's log and stable store in one bbolt file. Reads are answered from
// memory: the file is read once, when it is opened, and verified then, so that a page
// that rots later feeds nothing to raft, which would panic. The log is short: raft
// drops what is in a snapshot.
//
// After a write failed, every later one fails, but for those of numbers: raft panics
// when it cannot write its term. That is safe to pretend, since the voter then can
// neither write a vote nor an entry, so it promises nothing to anybody, and its owner
// closes it as failed says.
type store struct {
	path   string
	db     *bbolt.DB
	id     string
	failed chan struct{} // closed at the first failed write

	mu          sync.Mutex
	err         error                // the first failure of a write; guarded by mu
	entries     map[uint64]*raft.Log // guarded by mu
	first, last uint64               // of entries; 0 = none; guarded by mu
	stable      map[string][]byte    // guarded by mu
}

var (
	_ raft.LogStore    = (*store)(nil)
	_ raft.StableStore = (*store)(nil)
)

// openStore opens or makes the store in the folder. newID makes the id of a new one.
func openStore(dir string, newID func() string) (*store, error) {
	path := filepath.Join(dir, storeFile)
	fail := func(op string, err error) (*store, error) { return nil, &StoreError{Path: path, Op: op, Err: err} }
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fail("make folder", err)
	}
	if err := checkPages(path); err != nil {
		return fail("open", fmt.Errorf("%w: %w", ErrDamaged, err))
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTime})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fail("open", errors.New("another process has it open"))
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return fail("open", fmt.Errorf("%w: %w", ErrDamaged, err))
	case err != nil:
		return fail("open", err)
	}
	s := &store{path: path, db: db, failed: make(chan struct{}), entries: map[uint64]*raft.Log{}, stable: map[string][]byte{}}
	if err := s.load(newID); err != nil {
		return fail("read", errors.Join(err, db.Close()))
	}
	return s, nil
}

// load reads and verifies everything.
func (s *store) load(newID func() string) (err error) {
	defer func() {
		if r := recover(); r != nil { // bbolt panics on pages that cannot be
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	err = s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketLog, bucketStable, bucketSelf} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		self := tx.Bucket(bucketSelf)
		if self.Get(keyFormat) == nil {
			if err := self.Put(keyFormat, []byte(storeFormat)); err != nil {
				return err
			}
			return errors.Join(self.Put(keyID, sealed(keyID, []byte(newID()))), self.Put(keyTally, tally(0, 0)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.db.View(func(tx *bbolt.Tx) error {
		self := tx.Bucket(bucketSelf)
		if f := string(self.Get(keyFormat)); f != storeFormat {
			return fmt.Errorf("format %.20q is not one that this version knows (%s)", f, storeFormat)
		}
		id, err := unsealed(keyID, self.Get(keyID))
		if err != nil {
			return err
		}
		s.id = string(id)
		if err := tx.Bucket(bucketStable).ForEach(func(k, v []byte) error {
			v, err := unsealed(k, v)
			s.stable[string(k)] = append([]byte(nil), v...)
			return err
		}); err != nil {
			return err
		}
		if err := tx.Bucket(bucketLog).ForEach(func(k, v []byte) error {
			e, err := decodeEntry(k, v)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrDamaged, err)
			}
			s.remember(e)
			return nil
		}); err != nil {
			return err
		}
		if !bytes.Equal(self.Get(keyTally), tally(len(s.entries), len(s.stable))) {
			return fmt.Errorf("%w: %d entries and %d values are not what was written", ErrDamaged, len(s.entries), len(s.stable))
		}
		return nil
	})
}

// tally makes the value that says how much the store holds.
func tally(entries, stable int) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(entries))
	return sealed(keyTally, binary.BigEndian.AppendUint64(b, uint64(stable)))
}

// remember takes an entry into memory. The caller holds mu, or is load.
func (s *store) remember(e *raft.Log) {
	s.entries[e.Index] = e
	if s.first == 0 || e.Index < s.first {
		s.first = e.Index
	}
	s.last = max(s.last, e.Index)
}

// encodeEntry makes the value of an entry:
//
//	crc32c of the rest and of the key (4), type (1), term (8), appended at (8, µs), data
//
// All numbers are big endian.
func encodeEntry(key []byte, e *raft.Log) []byte {
	b := make([]byte, 4, 21+len(e.Data))
	b = append(b, byte(e.Type))
	b = binary.BigEndian.AppendUint64(b, e.Term)
	b = binary.BigEndian.AppendUint64(b, uint64(e.AppendedAt.UnixMicro()))
	b = append(b, e.Data...)
	binary.BigEndian.PutUint32(b, checksum(key, b[4:]))
	return b
}

// sealed makes the value of what is no entry: the checksum of key and value before it.
func sealed(key, v []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(v)), checksum(key, v))
	return append(b, v...)
}

// unsealed is the reverse of sealed, within the bytes of its argument.
func unsealed(key, b []byte) ([]byte, error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != checksum(key, b[4:]) {
		return nil, fmt.Errorf("%w: %.20q does not have its checksum", ErrDamaged, key)
	}
	return b[4:], nil
}

func checksum(key, rest []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, rest)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// decodeEntry is the reverse of encodeEntry; it keeps nothing of its arguments.
func decodeEntry(key, v []byte) (*raft.Log, error) {
	switch {
	case len(key) != 8 || len(v) < 21 || len(v) > 21+maxEntry:
		return nil, fmt.Errorf("an entry of %d and %d bytes", len(key), len(v))
	case binary.BigEndian.Uint32(v) != checksum(key, v[4:]):
		return nil, fmt.Errorf("entry %d does not have its checksum", binary.BigEndian.Uint64(key))
	}
	return &raft.Log{
		Index: binary.BigEndian.Uint64(key), Type: raft.LogType(v[4]), Term: binary.BigEndian.Uint64(v[5:]),
		AppendedAt: time.UnixMicro(int64(binary.BigEndian.Uint64(v[13:]))), Data: append([]byte(nil), v[21:]...),
	}, nil
}

func indexKey(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

// fresh says whether raft has never written anything.
func (s *store) fresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last == 0 && len(s.stable) == 0
}

// update writes; then, when it succeeded, changes the memory. more says how many entries
// and stable values are added.
func (s *store) update(op string, more func() (entries, stable int), write func(*bbolt.Tx) error, then func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	entries, stable := more()
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		return errors.Join(write(tx), tx.Bucket(bucketSelf).Put(keyTally, tally(len(s.entries)+entries, len(s.stable)+stable)))
	}); err != nil {
		s.err = &StoreError{Path: s.path, Op: op, Err: err}
		close(s.failed)
		return s.err
	}
	then()
	return nil
}

// failure returns why the store failed, or nil.
func (s *store) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// FirstIndex implements raft.LogStore.
func (s *store) FirstIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first, nil
}

// LastIndex implements raft.LogStore.
func (s *store) LastIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, nil
}

// GetLog implements raft.LogStore.
func (s *store) GetLog(index uint64, e *raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.entries[index]
	if found == nil {
		return raft.ErrLogNotFound
	}
	*e = *found
	return nil
}

// StoreLog implements raft.LogStore.
func (s *store) StoreLog(e *raft.Log) error { return s.StoreLogs([]*raft.Log{e}) }

// StoreLogs implements raft.LogStore; they are on the disk when it returns nil.
func (s *store) StoreLogs(all []*raft.Log) error {
	return s.update("append", func() (n, _ int) {
		for _, e := range all {
			if s.entries[e.Index] == nil {
				n++
			}
		}
		return n, 0
	}, func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketLog)
		for _, e := range all {
			if len(e.Data) > maxEntry {
				return fmt.Errorf("an entry of %d bytes; at most %d are allowed", len(e.Data), maxEntry)
			}
			k := indexKey(e.Index)
			if err := b.Put(k, encodeEntry(k, e)); err != nil {
				return err
			}
		}
		return nil
	}, func() {
		for _, e := range all {
			c := *e
			s.remember(&c)
		}
	})
}

// DeleteRange implements raft.LogStore.
func (s *store) DeleteRange(lo, hi uint64) error {
	return s.update("trim", func() (n, _ int) {
		for i := range s.entries {
			if i >= lo && i <= hi {
				n--
			}
		}
		return n, 0
	}, func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketLog).Cursor()
		for k, _ := c.Seek(indexKey(lo)); k != nil && binary.BigEndian.Uint64(k) <= hi; k, _ = c.Next() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	}, func() {
		for i := range s.entries {
			if i >= lo && i <= hi {
				delete(s.entries, i)
			}
		}
		s.first, s.last = 0, 0
		for i := range s.entries {
			if s.first == 0 || i < s.first {
				s.first = i
			}
			s.last = max(s.last, i)
		}
	})
}

// Set implements raft.StableStore.
func (s *store) Set(k, v []byte) error {
	return s.update("write", func() (_, n int) {
		if _, ok := s.stable[string(k)]; !ok {
			n = 1
		}
		return 0, n
	}, func(tx *bbolt.Tx) error { return tx.Bucket(bucketStable).Put(k, sealed(k, v)) },
		func() { s.stable[string(k)] = append([]byte(nil), v...) })
}

// Get implements raft.StableStore.
func (s *store) Get(k []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]byte{}, s.stable[string(k)]...), nil
}

// SetUint64 implements raft.StableStore. It returns nil also when the store has
// failed; see store.
func (s *store) SetUint64(k []byte, n uint64) error {
	if err := s.Set(k, binary.BigEndian.AppendUint64(nil, n)); err != nil {
		return nil //nolint:nilerr // the failure is kept, and nothing else is written any more
	}
	return nil
}

// GetUint64 implements raft.StableStore.
func (s *store) GetUint64(k []byte) (uint64, error) {
	v, err := s.Get(k)
	switch {
	case err != nil || len(v) == 0:
		return 0, err
	case len(v) != 8:
		return 0, &StoreError{Path: s.path, Op: "read", Err: ErrDamaged}
	}
	return binary.BigEndian.Uint64(v), nil
}

// close closes the file. The store must not be used any more.
func (s *store) close() error { return s.db.Close() }
