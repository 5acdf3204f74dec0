package disk

import (
	"io"
	"io/fs"
	"slices"
	"sync/atomic"
	"syscall"
)

// memFile is an open file of a Mem.
type memFile struct {
	data   *memData
	name   string
	closed atomic.Bool
}

var _ File = (*memFile)(nil)

// setSize changes the length; mem.mu is held. Sectors from the shorter length
// on differ from what is durable.
func (f *memData) setSize(size int) {
	for s := min(size, len(f.now)) / sector; s*sector < max(size, len(f.now)); s++ {
		f.dirty[s] = true
	}
	f.now = resize(f.now, size)
}

// grow makes the file longer if the limit allows; mem.mu is held.
func (f *memData) grow(size int) error {
	if size <= len(f.now) {
		return nil
	}
	if limit := f.mem.limit; limit > 0 && f.mem.used()+int64(size-len(f.now)) > limit {
		return syscall.ENOSPC
	}
	f.setSize(size)
	return nil
}

func (f *memFile) check(op string) error {
	if f.closed.Load() {
		return pathError(op, f.name, fs.ErrClosed)
	}
	return nil
}

// change runs fn under the lock and then what AfterOp asked for.
func (f *memFile) change(op string, fn func(d *memData) error) error {
	if err := f.check(op); err != nil {
		return err
	}
	m := f.data.mem
	m.mu.Lock()
	if err := fn(f.data); err != nil {
		m.mu.Unlock()
		return pathError(op, f.name, err)
	}
	after := m.changed()
	m.mu.Unlock()
	after()
	return nil
}

// ReadAt implements File.
func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.check("read"); err != nil {
		return 0, err
	}
	f.data.mem.mu.Lock()
	defer f.data.mem.mu.Unlock()
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	if off >= int64(len(f.data.now)) {
		return 0, io.EOF
	}
	n := copy(b, f.data.now[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements File.
func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 {
		return 0, pathError("write", f.name, fs.ErrInvalid)
	}
	err := f.change("write", func(d *memData) error {
		if err := d.grow(int(off) + len(b)); err != nil {
			return err
		}
		copy(d.now[off:], b)
		for s := int(off) / sector; s*sector < int(off)+len(b); s++ {
			d.dirty[s] = true
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// Size implements File.
func (f *memFile) Size() (int64, error) {
	if err := f.check("size"); err != nil {
		return 0, err
	}
	f.data.mem.mu.Lock()
	defer f.data.mem.mu.Unlock()
	return int64(len(f.data.now)), nil
}

// Truncate implements File.
func (f *memFile) Truncate(size int64) error {
	return f.change("truncate", func(d *memData) error {
		if size < 0 {
			return fs.ErrInvalid
		}
		if err := d.grow(int(size)); err != nil {
			return err
		}
		d.setSize(int(size))
		return nil
	})
}

// Preallocate implements File.
func (f *memFile) Preallocate(size int64) error {
	return f.change("preallocate", func(d *memData) error { return d.grow(int(size)) })
}

// Sync implements File.
func (f *memFile) Sync() error {
	return f.change("sync", func(d *memData) error {
		if len(d.now) == len(d.durable) {
			for s := range d.dirty {
				copy(d.durable[s*sector:min((s+1)*sector, len(d.now))], d.now[s*sector:])
			}
		} else {
			d.durable = slices.Clone(d.now)
		}
		clear(d.dirty)
		return nil
	})
}

// Close implements File.
func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return pathError("close", f.name, fs.ErrClosed)
	}
	return nil
}
