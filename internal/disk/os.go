package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// OS is the real file system. The zero value is ready.
type OS struct{}

// Open implements FS.
func (OS) Open(name string) (File, error) {
	return newFile(os.OpenFile(filepath.FromSlash(name), os.O_RDWR, 0))
}

// Create implements FS.
func (OS) Create(name string) (File, error) {
	return newFile(os.OpenFile(filepath.FromSlash(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640))
}

func newFile(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &osFile{File: f}, nil
}

// Rename implements FS.
func (OS) Rename(from, to string) error {
	return os.Rename(filepath.FromSlash(from), filepath.FromSlash(to))
}

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(filepath.FromSlash(name)) }

// List implements FS.
func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.FromSlash(dir)) // sorted
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Folders implements FS.
func (OS) Folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.FromSlash(dir)) // sorted
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// MkdirAll implements FS: each folder that it creates is synced into its parent.
func (OS) MkdirAll(dir string) error {
	dir = filepath.Clean(filepath.FromSlash(dir))
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return &os.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := (OS{}).MkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return (OS{}).SyncDir(parent)
}

// SyncDir implements FS.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(filepath.FromSlash(dir))
	if err != nil {
		return err
	}
	if err := fullSync(d); err != nil {
		d.Close()
		return err
	}
	return d.Close()
}

// Lock implements FS with flock, which also excludes a second holder inside
// this process.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(filepath.FromSlash(name), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, name)
		}
		return nil, &os.PathError{Op: "flock", Path: name, Err: err}
	}
	return f, nil
}

type osFile struct{ *os.File }

// Size implements File.
func (f *osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Preallocate implements File.
func (f *osFile) Preallocate(size int64) error {
	have, err := f.Size()
	if err != nil || have >= size {
		return err
	}
	return preallocate(f.File, have, size)
}

// Sync implements File: fdatasync on Linux (which includes a changed length),
// a full flush of the drive's cache on macOS.
func (f *osFile) Sync() error { return dataSync(f.File) }

func (f *osFile) forget(off, n int64) { forget(f.File, off, n) }
