package tails

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// Sizes of the format in bytes; see the package comment.
const (
	prefixLen = 16
	blockLen  = 28
	maxHead   = 1 << 20
	blockSize = 256 << 10                                      // of frames, but for one that is larger
	maxBlock  = record.MaxRecord + record.MaxEnvelope + 64<<10 // a frame that is larger than a block stands alone
)

var magic = [8]byte{'M', 'Q', 'R', 'T', 'A', 'I', 'L', 1}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FileError says that the file of a tail cannot be read as one.
type FileError struct {
	Name string
	What string // constant text
	Err  error  // may be nil
}

// Error implements error.
func (e *FileError) Error() string {
	s := fmt.Sprintf("tails: %s: %s", e.Name, e.What)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// Source is the log that a tail is read from; *commitlog.Log is one.
type Source interface {
	ReadRaw(ctx context.Context, from record.Position, limit int, dst []byte) (ship.Stretch, error)
}

// Save keeps what the log has from h.From to h.End. At nil it is durable. One that is
// kept already is not written again, unless its file is damaged; other damaged files
// count like tails.
//
// Errors: ErrRoom; those of the disk (disk.IsFull) and of the log, the context's.
// Nothing is left of a tail that could not be saved.
func (s *Store) Save(ctx context.Context, h Head, log Source) (Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.load()
	if err != nil {
		return Info{}, err
	}
	var have int64
	count := 0
	for _, x := range list {
		switch {
		case x.file != h.name():
			have += x.Bytes
			count++
		case x.Damage == nil:
			return x, nil
		}
	}
	text, err := json.Marshal(&h)
	if err != nil {
		return Info{}, err
	}
	size := int64(prefixLen+len(text)) + int64(h.End-h.From)
	size += (int64(h.End-h.From)/blockSize + 2) * blockLen // an estimate
	switch {
	case len(text) > maxHead:
		return Info{}, &FileError{Name: h.name(), What: "the head is too large"}
	case count >= MaxTails || have+size > s.max:
		return Info{}, fmt.Errorf("%w: %d of at most %d, %d bytes of at most %d, and this one has %d", ErrRoom, count, MaxTails, have, s.max, size)
	}
	if err := s.fs.MkdirAll(s.dir); err != nil {
		return Info{}, err
	}
	tmp := path.Join(s.dir, incoming)
	end, err := s.write(ctx, tmp, text, size, &h, log)
	if err == nil {
		err = s.fs.Rename(tmp, path.Join(s.dir, h.name()))
	}
	if err != nil {
		if rm := s.fs.Remove(tmp); rm == nil {
			rm = s.fs.SyncDir(s.dir)
			err = errors.Join(err, rm)
		}
		return Info{}, err
	}
	s.list = nil
	if err := s.fs.SyncDir(s.dir); err != nil {
		return Info{}, err
	}
	return Info{ID: h.ID(), Bytes: end, Head: h, file: h.name()}, nil
}

// write writes the whole file and makes it durable.
func (s *Store) write(ctx context.Context, name string, text []byte, size int64, h *Head, log Source) (end int64, err error) {
	f, err := s.fs.Create(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Preallocate(size); err != nil { // where it does not fit is known before it is read
		return 0, err
	}
	le := binary.LittleEndian
	b := append(make([]byte, 0, prefixLen+len(text)), magic[:]...)
	b = le.AppendUint32(b, uint32(len(text)))
	b = le.AppendUint32(b, crc32.Checksum(text, castagnoli))
	off := int64(0)
	put := func(b []byte) error {
		_, err := f.WriteAt(b, off)
		off += int64(len(b))
		return err
	}
	if err := put(append(b, text...)); err != nil {
		return 0, err
	}
	buf := make([]byte, 0, blockSize)
	for at := h.From; at < h.End; {
		st, err := log.ReadRaw(ctx, at, blockSize, buf[:0])
		if err != nil {
			return 0, err
		}
		if len(st.Frames) == 0 || st.Next > h.End {
			return 0, &FileError{Name: name, What: "the log ends elsewhere"}
		}
		if err := put(appendBlock(nil, st.From, st.Next, len(st.Frames), st.Base)); err != nil {
			return 0, err
		}
		if err := put(st.Frames); err != nil {
			return 0, err
		}
		at, buf = st.Next, st.Frames
	}
	if err := put(appendBlock(nil, h.End, h.End, 0, false)); err != nil {
		return 0, err
	}
	if err := f.Truncate(off); err != nil {
		return 0, err
	}
	return off, f.Sync()
}

func appendBlock(dst []byte, from, next record.Position, size int, base bool) []byte {
	le := binary.LittleEndian
	n := len(dst)
	dst = le.AppendUint64(dst, uint64(from))
	dst = le.AppendUint64(dst, uint64(next))
	dst = le.AppendUint32(dst, uint32(size))
	flag := uint32(0)
	if base {
		flag = 1
	}
	dst = le.AppendUint32(dst, flag)
	return le.AppendUint32(dst, crc32.Checksum(dst[n:], castagnoli))
}

// reader reads a file.
type reader struct {
	name string
	f    disk.File
	head Head
	off  int64 // of the first block
}

// openFile opens a file and reads its head. The size is told of a damaged one, too.
func openFile(fsys disk.FS, name string) (r *reader, size int64, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, 0, err
	}
	r = &reader{name: path.Base(name), f: f}
	if size, err = f.Size(); err != nil {
		err = r.bad("it cannot be read", err)
	} else {
		err = r.begin()
	}
	if err != nil {
		return nil, size, errors.Join(err, f.Close())
	}
	return r, size, nil
}

func (r *reader) close() { r.f.Close() }

func (r *reader) bad(what string, err error) error {
	return &FileError{Name: r.name, What: what, Err: err}
}

// read reads n bytes at an offset.
func (r *reader) read(b []byte, off int64) error {
	if n, err := r.f.ReadAt(b, off); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			return r.bad("it is cut short", nil)
		}
		return r.bad("it cannot be read", err)
	}
	return nil
}

func (r *reader) begin() error {
	var b [prefixLen]byte
	if err := r.read(b[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if [8]byte(b[:8]) != magic || n > maxHead {
		return r.bad("it is no tail of this version", nil)
	}
	text := make([]byte, n)
	if err := r.read(text, prefixLen); err != nil {
		return err
	}
	if crc32.Checksum(text, castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return r.bad("its head has a bad checksum", nil)
	}
	if err := json.Unmarshal(text, &r.head); err != nil {
		return r.bad("its head cannot be read", err)
	}
	r.off = prefixLen + int64(n)
	return nil
}

// Scan calls fn for the entries of a tail from a position on, in log order, until fn
// returns an error, which it returns as it is. The entry's bytes are valid until fn
// returns.
//
// Errors: ErrNone; *FileError and *commitlog.CorruptError for damage; the context's.
func (s *Store) Scan(ctx context.Context, id string, from record.Position, fn func(commitlog.Entry) error) error {
	info, err := s.Find(id)
	if err != nil {
		return err
	}
	r, _, err := openFile(s.fs, path.Join(s.dir, info.file))
	if err != nil {
		return err
	}
	defer r.close()
	var head [blockLen]byte
	var buf []byte
	le := binary.LittleEndian
	for off, at := r.off, r.head.From; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.read(head[:], off); err != nil {
			return err
		}
		start, next, size := record.Position(le.Uint64(head[:])), record.Position(le.Uint64(head[8:])), le.Uint32(head[16:])
		if crc32.Checksum(head[:blockLen-4], castagnoli) != le.Uint32(head[24:]) || start != at || next < start || size > maxBlock {
			return r.bad("a block is damaged", nil)
		}
		if size == 0 {
			if at != r.head.End {
				return r.bad("it ends too early", nil)
			}
			return nil
		}
		off += blockLen
		if next > from {
			buf = append(buf[:0], make([]byte, size)...)
			if err := r.read(buf, off); err != nil {
				return err
			}
			err := commitlog.EachEntry(buf, commitlog.StretchStart(start, le.Uint32(head[20:]) == 1), func(e commitlog.Entry) error {
				if e.Position < from {
					return nil
				}
				return fn(e)
			})
			if err != nil {
				return err
			}
		}
		off, at = off+int64(size), next
	}
}
