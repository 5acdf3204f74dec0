package disk

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
)

// sector is the number of bytes that a crash keeps or drops together.
const sector = 512

// Mem is a file system in memory that knows what a power cut would leave. Make
// it with NewMem. Its methods are safe for concurrent use.
type Mem struct {
	mu    sync.Mutex
	dirs  map[string]*memDir // guarded by mu
	locks map[string]bool    // guarded by mu
	ops   int                // guarded by mu; changes made so far
	limit int64              // guarded by mu; bytes of all files together; 0 = none
	after func(op int)       // guarded by mu
}

// memDir is a folder. durable is what it held at its last SyncDir, changes what
// happened to it since, in order.
type memDir struct {
	names   map[string]*memData
	durable map[string]*memData
	changes []func(names map[string]*memData)
}

// memData is the content of a file; it outlives its names.
type memData struct {
	mem     *Mem
	now     []byte       // guarded by mem.mu
	durable []byte       // guarded by mem.mu
	dirty   map[int]bool // guarded by mem.mu; sectors in which now may differ from durable
}

// NewMem returns an empty file system with the root folder.
func NewMem() *Mem {
	return &Mem{dirs: map[string]*memDir{"/": newMemDir(), ".": newMemDir()}, locks: map[string]bool{}}
}

func newMemDir() *memDir {
	return &memDir{names: map[string]*memData{}, durable: map[string]*memData{}}
}

// SetLimit makes the disk full when all files together have that many bytes;
// 0 removes the limit.
func (m *Mem) SetLimit(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = bytes
}

// Used returns the bytes of all files together.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used()
}

func (m *Mem) used() int64 {
	seen, sum := map[*memData]bool{}, int64(0)
	for _, d := range m.dirs {
		for _, f := range d.names {
			if !seen[f] {
				seen[f] = true
				sum += int64(len(f.now))
			}
		}
	}
	return sum
}

// AfterOp sets a function that is called after each change (with the number of
// changes so far), by the goroutine that made it, outside of the file system's
// lock. Nil removes it.
func (m *Mem) AfterOp(fn func(op int)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after = fn
}

// changed is called with mu held; it counts and returns what to run after
// unlocking.
func (m *Mem) changed() func() {
	m.ops++
	if m.after == nil {
		return func() {}
	}
	fn, op := m.after, m.ops
	return func() { fn(op) }
}

// Crash returns what a power cut at this moment could leave: everything synced;
// of what was not, every sector and each folder's later changes are kept or
// dropped as rng says (a first draw decides between nothing, everything and a
// mixture). Locks are gone. The original goes on unchanged.
func (m *Mem) Crash(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	keep := func() bool { return rng.IntN(2) == 0 }
	switch rng.IntN(4) {
	case 0:
		keep = func() bool { return false }
	case 1:
		keep = func() bool { return true }
	}
	out := NewMem()
	out.limit = m.limit
	files := map[*memData]*memData{}
	for _, name := range sortedKeys(m.dirs) {
		d := m.dirs[name]
		names := map[string]*memData{}
		for k, f := range d.durable {
			names[k] = f
		}
		for _, change := range d.changes { // a journal keeps a prefix
			if !keep() {
				break
			}
			change(names)
		}
		nd := newMemDir()
		for _, k := range sortedKeys(names) {
			f := names[k]
			if files[f] == nil {
				files[f] = f.crash(out, keep)
			}
			nd.names[k], nd.durable[k] = files[f], files[f]
		}
		out.dirs[name] = nd
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// crash returns the content after a power cut. mem.mu is held.
func (f *memData) crash(out *Mem, keep func() bool) *memData {
	b := slices.Clone(f.durable)
	if len(f.now) != len(b) && keep() {
		b = resize(b, len(f.now))
	}
	dirty := make([]int, 0, len(f.dirty))
	for s := range f.dirty {
		dirty = append(dirty, s)
	}
	slices.Sort(dirty)
	for _, s := range dirty {
		from, to := s*sector, min((s+1)*sector, len(f.now), len(b))
		if from < to && keep() {
			copy(b[from:to], f.now[from:to])
		}
	}
	return &memData{mem: out, now: b, durable: slices.Clone(b), dirty: map[int]bool{}}
}

// resize gives b the length; new bytes are zero, also where b had others before.
func resize(b []byte, size int) []byte {
	if size <= len(b) {
		return b[:size]
	}
	n := len(b)
	b = slices.Grow(b, size-n)[:size]
	clear(b[n:])
	return b
}

func split(name string) (dir, base string) {
	name = path.Clean(name)
	return path.Dir(name), path.Base(name)
}

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(name)
	d := m.dirs[dir]
	if d == nil || d.names[base] == nil {
		return nil, pathError("open", name, fs.ErrNotExist)
	}
	return &memFile{data: d.names[base], name: name}, nil
}

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	dir, base := split(name)
	d := m.dirs[dir]
	if d == nil {
		m.mu.Unlock()
		return nil, pathError("create", name, fs.ErrNotExist)
	}
	f := d.names[base]
	if f == nil {
		f = &memData{mem: m, dirty: map[int]bool{}}
		d.apply(func(names map[string]*memData) { names[base] = f })
	}
	f.setSize(0)
	after := m.changed()
	m.mu.Unlock()
	after()
	return &memFile{data: f, name: name}, nil
}

func (d *memDir) apply(change func(map[string]*memData)) {
	change(d.names)
	d.changes = append(d.changes, change)
}

// Rename implements FS.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	fromDir, fromBase := split(from)
	toDir, toBase := split(to)
	d := m.dirs[fromDir]
	if old, dir := path.Clean(from), m.dirs[path.Clean(from)]; dir != nil && m.dirs[path.Clean(to)] == nil {
		m.dirs[path.Clean(to)] = dir // a power cut right after it is not modelled
		delete(m.dirs, old)
		after := m.changed()
		m.mu.Unlock()
		after()
		return nil
	}
	if d == nil || d.names[fromBase] == nil || fromDir != toDir {
		m.mu.Unlock()
		return pathError("rename", from, fs.ErrNotExist)
	}
	f := d.names[fromBase]
	d.apply(func(names map[string]*memData) {
		delete(names, fromBase)
		names[toBase] = f
	})
	after := m.changed()
	m.mu.Unlock()
	after()
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	dir, base := split(name)
	d := m.dirs[dir]
	if d == nil || d.names[base] == nil {
		m.mu.Unlock()
		return pathError("remove", name, fs.ErrNotExist)
	}
	d.apply(func(names map[string]*memData) { delete(names, base) })
	after := m.changed()
	m.mu.Unlock()
	after()
	return nil
}

// List implements FS.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dirs[path.Clean(dir)]
	if d == nil {
		return nil, pathError("list", dir, fs.ErrNotExist)
	}
	return sortedKeys(d.names), nil
}

// Folders implements FS.
func (m *Mem) Folders(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir = path.Clean(dir)
	if m.dirs[dir] == nil {
		return nil, pathError("list", dir, fs.ErrNotExist)
	}
	var names []string
	for d := range m.dirs {
		if d != dir && path.Dir(d) == dir {
			names = append(names, path.Base(d))
		}
	}
	slices.Sort(names)
	return names, nil
}

// MkdirAll implements FS. Folders are durable at once.
func (m *Mem) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for dir = path.Clean(dir); m.dirs[dir] == nil; dir = path.Dir(dir) {
		m.dirs[dir] = newMemDir()
	}
	return nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	d := m.dirs[path.Clean(dir)]
	if d == nil {
		m.mu.Unlock()
		return pathError("sync", dir, fs.ErrNotExist)
	}
	d.durable = map[string]*memData{}
	for k, f := range d.names {
		d.durable[k] = f
	}
	d.changes = nil
	after := m.changed()
	m.mu.Unlock()
	after()
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(name)
	d := m.dirs[dir]
	if d == nil {
		return nil, pathError("lock", name, fs.ErrNotExist)
	}
	key := path.Join(dir, base)
	if m.locks[key] {
		return nil, ErrLocked
	}
	if d.names[base] == nil {
		f := &memData{mem: m, dirty: map[int]bool{}}
		d.apply(func(names map[string]*memData) { names[base] = f })
	}
	m.locks[key] = true
	return &memLock{mem: m, key: key}, nil
}

type memLock struct {
	mem *Mem
	key string
}

func (l *memLock) Close() error {
	l.mem.mu.Lock()
	defer l.mem.mu.Unlock()
	if !l.mem.locks[l.key] {
		return fs.ErrClosed
	}
	delete(l.mem.locks, l.key)
	return nil
}

var _ FS = (*Mem)(nil)

// ForgetDirty makes what is not synced stay visible but no longer count as
// unsynced, as some kernels do after a failed fsync: the next Sync of these
// files succeeds without writing it.
func (m *Mem) ForgetDirty() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.dirs {
		for _, f := range d.names {
			clear(f.dirty)
		}
	}
}

// Clone returns a copy of everything that the file system holds now, all of it
// durable: what a process leaves that dies on a machine which lives on, or a copy
// that somebody made of a stopped one. Locks are gone.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := NewMem()
	out.limit = m.limit
	files := map[*memData]*memData{}
	for name, d := range m.dirs {
		nd := newMemDir()
		for k, f := range d.names {
			if files[f] == nil {
				files[f] = &memData{mem: out, now: slices.Clone(f.now), durable: slices.Clone(f.now), dirty: map[int]bool{}}
			}
			nd.names[k], nd.durable[k] = files[f], files[f]
		}
		out.dirs[name] = nd
	}
	return out
}
