package disk

import (
	"io"
	"sync"
)

// Op names an operation of FS or File for a fault.
type Op string

// The operations that Faulty can make fail.
const (
	OpOpen        Op = "open"
	OpCreate      Op = "create"
	OpRename      Op = "rename"
	OpRemove      Op = "remove"
	OpList        Op = "list"
	OpMkdir       Op = "mkdir"
	OpSyncDir     Op = "syncdir"
	OpLock        Op = "lock"
	OpRead        Op = "read"
	OpWrite       Op = "write"
	OpSize        Op = "size"
	OpTruncate    Op = "truncate"
	OpPreallocate Op = "preallocate"
	OpSync        Op = "sync"
	OpForget      Op = "forget" // of Forget, which cannot fail
)

// Fault decides before each operation on a path whether it fails: a non-nil
// error is returned instead of doing it. It may block, to make a disk slow. It
// is called by the goroutine that works on the disk and must be safe for
// concurrent use.
type Fault func(op Op, name string) error

// Faulty makes operations of another file system fail. The zero Fault lets
// everything pass. A failed WriteAt leaves half of its bytes written.
type Faulty struct {
	fs    FS
	mu    sync.Mutex
	fault Fault // guarded by mu
}

// NewFaulty wraps a file system.
func NewFaulty(fsys FS) *Faulty { return &Faulty{fs: fsys} }

// Set replaces the fault for all operations to come, on open files too; nil
// ends faults.
func (f *Faulty) Set(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *Faulty) check(op Op, name string) error {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault == nil {
		return nil
	}
	if err := fault(op, name); err != nil {
		return pathError(string(op), name, err)
	}
	return nil
}

// Open implements FS.
func (f *Faulty) Open(name string) (File, error) {
	if err := f.check(OpOpen, name); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.fs.Open(name))
}

// Create implements FS.
func (f *Faulty) Create(name string) (File, error) {
	if err := f.check(OpCreate, name); err != nil {
		return nil, err
	}
	return f.wrap(name)(f.fs.Create(name))
}

func (f *Faulty) wrap(name string) func(File, error) (File, error) {
	return func(file File, err error) (File, error) {
		if err != nil {
			return nil, err
		}
		return &faultyFile{File: file, fs: f, name: name}, nil
	}
}

// Rename implements FS. The fault sees the new name.
func (f *Faulty) Rename(from, to string) error {
	if err := f.check(OpRename, to); err != nil {
		return err
	}
	return f.fs.Rename(from, to)
}

// Remove implements FS.
func (f *Faulty) Remove(name string) error {
	if err := f.check(OpRemove, name); err != nil {
		return err
	}
	return f.fs.Remove(name)
}

// List implements FS.
func (f *Faulty) List(dir string) ([]string, error) {
	if err := f.check(OpList, dir); err != nil {
		return nil, err
	}
	return f.fs.List(dir)
}

// Folders implements FS.
func (f *Faulty) Folders(dir string) ([]string, error) {
	if err := f.check(OpList, dir); err != nil {
		return nil, err
	}
	return f.fs.Folders(dir)
}

// MkdirAll implements FS.
func (f *Faulty) MkdirAll(dir string) error {
	if err := f.check(OpMkdir, dir); err != nil {
		return err
	}
	return f.fs.MkdirAll(dir)
}

// SyncDir implements FS.
func (f *Faulty) SyncDir(dir string) error {
	if err := f.check(OpSyncDir, dir); err != nil {
		return err
	}
	return f.fs.SyncDir(dir)
}

// Lock implements FS.
func (f *Faulty) Lock(name string) (io.Closer, error) {
	if err := f.check(OpLock, name); err != nil {
		return nil, err
	}
	return f.fs.Lock(name)
}

// faultyFile carries the name under which it was opened, also after a rename.
type faultyFile struct {
	File
	fs   *Faulty
	name string
}

// ReadAt implements File.
func (f *faultyFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.fs.check(OpRead, f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, off)
}

// WriteAt implements File.
func (f *faultyFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.fs.check(OpWrite, f.name); err != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], off)
		return n, err
	}
	return f.File.WriteAt(b, off)
}

// Size implements File.
func (f *faultyFile) Size() (int64, error) {
	if err := f.fs.check(OpSize, f.name); err != nil {
		return 0, err
	}
	return f.File.Size()
}

// Truncate implements File.
func (f *faultyFile) Truncate(size int64) error {
	if err := f.fs.check(OpTruncate, f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

// Preallocate implements File.
func (f *faultyFile) Preallocate(size int64) error {
	if err := f.fs.check(OpPreallocate, f.name); err != nil {
		return err
	}
	return f.File.Preallocate(size)
}

// Sync implements File.
func (f *faultyFile) Sync() error {
	if err := f.fs.check(OpSync, f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultyFile) forget(off, n int64) {
	if f.fs.check(OpForget, f.name) == nil {
		Forget(f.File, off, n)
	}
}

var (
	_ FS   = (*Faulty)(nil)
	_ File = (*faultyFile)(nil)
)
