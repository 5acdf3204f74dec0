package disk

import (
	"errors"
	"io"
	"syscall"
)

// FS is the file system as durable code sees it. Methods are safe for
// concurrent use. Errors satisfy errors.Is with fs.ErrNotExist, fs.ErrExist
// and syscall.ENOSPC where these apply (see IsFull).
type FS interface {
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Create creates a file, or empties it when it exists, for reading and
	// writing. The name is durable after SyncDir of its folder.
	Create(name string) (File, error)
	// Rename gives a file a new name in one step, replacing what was there, or a folder
	// with all that is in it, of which nothing is open, one that is free. Durable after
	// SyncDir of the folder around, which must be the same for both.
	Rename(from, to string) error
	// Remove removes a file. Durable after SyncDir of its folder.
	Remove(name string) error
	// List returns the names (without folder) of the files in a folder, sorted.
	List(dir string) ([]string, error)
	// Folders returns the names of the folders in a folder, sorted.
	Folders(dir string) ([]string, error)
	// MkdirAll creates a folder and its parents durably.
	MkdirAll(dir string) error
	// SyncDir makes the names in a folder durable.
	SyncDir(dir string) error
	// Lock takes an exclusive lock on a file, which it creates when missing.
	// It does not wait: ErrLocked when another holder (in any process) has it.
	// The lock ends with Close or with the process.
	Lock(name string) (io.Closer, error)
}

// File is an open file. Methods are safe for concurrent use as long as writes
// do not overlap. After Close every method fails with fs.ErrClosed.
type File interface {
	io.ReaderAt
	// WriteAt writes all of b or fails; a failed write may have changed any
	// part of the range.
	io.WriterAt
	io.Closer
	// Size returns the length in bytes.
	Size() (int64, error)
	// Truncate sets the length; new bytes are zero. Durable after Sync.
	Truncate(size int64) error
	// Preallocate makes the file at least size long, new bytes zero, and
	// reserves their space where the platform can. Durable after Sync.
	Preallocate(size int64) error
	// Sync makes the content and the length durable. After an error nothing is
	// known of what was written since the last success; calling it again does
	// not repair that.
	Sync() error
}

// forgetter is a File of which the system keeps a copy in memory.
type forgetter interface{ forget(off, n int64) }

// Forget asks the system to drop its copy of n bytes of a file from memory, so that who
// reads them next reads the disk. It is a hint: what is not on the disk yet stays, as may
// anything else, and a platform or implementation without such a copy does nothing.
func Forget(f File, off, n int64) {
	if x, ok := f.(forgetter); ok && n > 0 {
		x.forget(off, n)
	}
}

// ErrLocked reports that another holder has the lock.
var ErrLocked = errors.New("disk: locked by another process")

// IsFull reports whether the error says that the disk (or a quota) is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// IsBroken reports whether the error says that the device could not read or write: bad
// sectors, or a disk that is failing.
func IsBroken(err error) bool { return errors.Is(err, syscall.EIO) }

var (
	_ FS   = OS{}
	_ File = (*osFile)(nil)
)
