package queue

import (
	"errors"
	"sync"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// files keeps the descriptors of segments open that were used lately. It is
// safe for concurrent use and opens and closes outside its mutex.
type files struct {
	fs  disk.FS
	max int // descriptors; more only while more are in use at one time

	mu     sync.Mutex
	open   map[string]*handle // guarded by mu, as is all below
	idle   handle             // head of the ring of handles not in use, most recent first
	unused int                // length of that ring
	closed bool
}

// handle is an open file. A handle in use is not closed.
type handle struct {
	disk.File
	path   string
	users  int  // guarded by files.mu, as is all below
	doomed bool // closed by the last user
	// Neighbours in the ring of handles not in use; nil while in use.
	prev, next *handle
}

func newFiles(fs disk.FS, limit int) *files {
	f := &files{fs: fs, max: limit, open: make(map[string]*handle)}
	f.idle.prev, f.idle.next = &f.idle, &f.idle
	return f
}

// rest puts a handle into the ring, as the most recent one.
func (f *files) rest(h *handle) {
	h.prev, h.next = &f.idle, f.idle.next
	h.prev.next, h.next.prev = h, h
	f.unused++
}

// rouse takes a handle out of the ring.
func (f *files) rouse(h *handle) {
	h.prev.next, h.next.prev = h.next, h.prev
	h.prev, h.next = nil, nil
	f.unused--
}

// acquire returns the open file for use until release.
func (f *files) acquire(path string) (*handle, error) {
	if h, err := f.lookup(path); h != nil || err != nil {
		return h, err
	}
	file, err := f.fs.Open(path)
	if err != nil {
		return nil, err
	}
	return f.adopt(path, file)
}

// create makes or empties a file and returns it for use until release.
func (f *files) create(path string) (*handle, error) {
	if err := f.forget(path); err != nil {
		return nil, err
	}
	file, err := f.fs.Create(path)
	if err != nil {
		return nil, err
	}
	return f.adopt(path, file)
}

func (f *files) lookup(path string) (*handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	h := f.open[path]
	if h != nil {
		f.use(h)
	}
	return h, nil
}

func (f *files) use(h *handle) {
	if h.users++; h.next != nil {
		f.rouse(h)
	}
}

// adopt enters a file that was just opened, unless another was faster.
func (f *files) adopt(path string, file disk.File) (*handle, error) {
	f.mu.Lock()
	h, surplus := f.open[path], file
	switch {
	case f.closed:
		h = nil
	case h == nil:
		h, surplus = &handle{File: file, path: path}, nil
		f.open[path] = h
		f.use(h)
	default:
		f.use(h)
	}
	victims := f.evict()
	f.mu.Unlock()
	err := closeAll(victims)
	if surplus != nil {
		err = errors.Join(err, surplus.Close())
	}
	if h == nil {
		return nil, ErrClosed
	}
	if err != nil {
		return nil, errors.Join(err, f.release(h))
	}
	return h, nil
}

// evict takes out what is too much, least recently used first.
func (f *files) evict() (victims []*handle) {
	for len(f.open) > f.max && f.unused > 0 {
		h := f.idle.prev
		f.rouse(h)
		delete(f.open, h.path)
		victims = append(victims, h)
	}
	return victims
}

// release ends the use of a handle.
func (f *files) release(h *handle) error {
	f.mu.Lock()
	h.users--
	var victims []*handle
	if h.users == 0 {
		if h.doomed || f.closed {
			victims = append(victims, h)
		} else {
			f.rest(h)
			victims = f.evict()
		}
	}
	f.mu.Unlock()
	return closeAll(victims)
}

// forget closes the descriptor of a file that is about to be removed, or lets
// its last user do so.
func (f *files) forget(path string) error {
	f.mu.Lock()
	h := f.open[path]
	var victims []*handle
	if h != nil {
		delete(f.open, path)
		if h.users == 0 {
			f.rouse(h)
			victims = append(victims, h)
		}
		h.doomed = true
	}
	f.mu.Unlock()
	return closeAll(victims)
}

// close closes everything that is not in use; users close the rest.
func (f *files) close() error {
	f.mu.Lock()
	f.closed = true
	var victims []*handle
	for _, h := range f.open {
		if h.users == 0 {
			f.rouse(h)
			victims = append(victims, h)
		}
	}
	clear(f.open)
	f.mu.Unlock()
	return closeAll(victims)
}

func closeAll(victims []*handle) error {
	var err error
	for _, h := range victims {
		err = errors.Join(err, h.Close())
	}
	return err
}
