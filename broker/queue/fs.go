package queue

import "io"

// FS is what the package needs of a file system. Paths use the separator of
// the operating system. Implementations are safe for concurrent use.
type FS interface {
	// Open opens a file for reading and writing; create makes it when absent.
	Open(path string, create bool) (File, error)
	// MkdirAll makes the directory and its parents; existing ones are no error.
	MkdirAll(path string) error
	// List returns the names in a directory, in any order; a directory that
	// does not exist is empty.
	List(path string) ([]string, error)
	// Remove removes a file or an empty directory.
	Remove(path string) error
	// SyncDir makes the entries of a directory durable.
	SyncDir(path string) error
}

// File is an open file. Implementations are safe for concurrent use.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
	Size() (int64, error)
}
