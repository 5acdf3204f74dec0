package source

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/mqrouter/mqrouter/zone"
)

// readFile reads a file of at most zone.MaxFileBytes.
func readFile(path string) ([]byte, error) {
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
		return nil, fmt.Errorf("%s is larger than %d bytes", path, zone.MaxFileBytes)
	}
	return data, nil
}

// notify watches the folder of the file, not the file: editors and Kubernetes
// replace a file by renaming another one over it (or over a link that leads to
// it), after which a watch of the old file hears nothing. Any event in the
// folder counts; the reader compares contents.
func notify(path string) (<-chan struct{}, func(), error) {
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
