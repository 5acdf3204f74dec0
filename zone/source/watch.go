package source

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/mqrouter/mqrouter/zone"
)

// FileError says that a path cannot be a topology file.
type FileError struct {
	Path string
	What string // what it is instead
}

// Error names the path and what is wrong with it.
func (e *FileError) Error() string { return e.Path + " is " + e.What }

// ReadFile reads a topology file. It returns *FileError for what is not a file,
// without opening it (a named pipe would block, a device may never end), and for a
// file of more than zone.MaxFileBytes, without reading on.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if what := notAFile(info.Mode()); what != "" {
		return nil, &FileError{path, what}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, zone.MaxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > zone.MaxFileBytes {
		return nil, &FileError{path, fmt.Sprintf("larger than a topology may be, %d bytes", zone.MaxFileBytes)}
	}
	return data, nil
}

// notAFile says what something is that is no regular file.
func notAFile(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return ""
	case m.IsDir():
		return "a directory, not a file"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe, not a file"
	case m&fs.ModeDevice != 0:
		return "a device, not a file"
	}
	return "not a regular file"
}

// Notify watches the folder of the file, not the file: editors and Kubernetes
// replace a file by renaming another one over it (or over a link that leads to
// it), after which a watch of the old file hears nothing. Any event in the
// folder but changes of modes counts; the reader compares contents. It is what
// Options.Notify says.
func Notify(path string) (<-chan struct{}, func(), error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, err
	}
	if err := w.Add(filepath.Dir(path)); err != nil {
		_ = w.Close()
		return nil, nil, err
	}
	changes := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(changes)
		forward(w, changes)
	}()
	stop := func() {
		_ = w.Close() // ends forward: the watcher closes its channels
		<-done
	}
	return changes, stop, nil
}

// forward turns events and errors alike (an overflow means that events are
// missing) into one pending change, until the watcher is closed.
func forward(w *fsnotify.Watcher, changes chan<- struct{}) {
	for {
		select {
		case e, open := <-w.Events:
			if !open {
				return
			}
			if e.Op == fsnotify.Chmod {
				continue
			}
		case _, open := <-w.Errors:
			if !open {
				return
			}
		}
		select {
		case changes <- struct{}{}:
		default: // one is pending already
		}
	}
}
