package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
)

// File is the name of the orders in a node's data folder.
const File = "FAULTS"

// goodFor is how long orders that were read are good.
const goodFor = 5 * time.Millisecond

// Orders say what is broken. The zero value breaks nothing.
type Orders struct {
	Full      bool          `json:"full,omitempty"`       // nothing that takes space
	FailSync  bool          `json:"fail_sync,omitempty"`  // syncs of files and folders fail
	FailWrite bool          `json:"fail_write,omitempty"` // writes fail, half done
	FailRead  bool          `json:"fail_read,omitempty"`  // reads fail
	Slow      time.Duration `json:"slow,omitempty"`       // of each write and sync, nanoseconds
	Clock     time.Duration `json:"clock,omitempty"`      // added to the wall clock, nanoseconds
}

// Layer breaks what a node works on. It is safe for concurrent use.
type Layer struct {
	path  string
	fresh time.Duration // how long orders that were read are good

	mu   sync.Mutex
	at   time.Time // when orders were read; guarded by mu
	last Orders    // guarded by mu
}

// New returns the layer of the node with a data folder.
func New(dir string) *Layer { return &Layer{path: filepath.Join(dir, File), fresh: goodFor} }

// Give writes orders for the node with a data folder, in one step.
func Give(dir string, o Orders) error {
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	path := filepath.Join(dir, File)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	return nil
}

// orders returns what is broken now. Without a file, nothing is.
func (l *Layer) orders() Orders {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) < l.fresh {
		return l.last
	}
	l.at, l.last = time.Now(), Orders{}
	if b, err := os.ReadFile(l.path); err == nil {
		var o Orders
		if json.Unmarshal(b, &o) == nil {
			l.last = o
		}
	}
	return l.last
}

// Wall reads the wall clock as it is set.
func (l *Layer) Wall() time.Time { return time.Now().Round(0).Add(l.orders().Clock) }

// FS returns the file system as it is broken.
func (l *Layer) FS(under disk.FS) disk.FS {
	f := disk.NewFaulty(under)
	f.Set(l.fault)
	return f
}

// errBroken is what a broken device returns.
var errBroken error = syscall.EIO

// fault judges an operation. It blocks while the disk is slow.
func (l *Layer) fault(op disk.Op, name string) error {
	o := l.orders()
	if o.Slow > 0 && (op == disk.OpWrite || op == disk.OpSync) {
		time.Sleep(o.Slow)
	}
	switch {
	case o.Full && takesSpace(op, name):
		return syscall.ENOSPC
	case o.FailSync && (op == disk.OpSync || op == disk.OpSyncDir),
		o.FailWrite && op == disk.OpWrite,
		o.FailRead && op == disk.OpRead:
		return errBroken
	}
	return nil
}

// takesSpace reports whether an operation needs room on the disk. Segments of the log
// are reserved as a whole before they are written, and META has its place.
func takesSpace(op disk.Op, name string) bool {
	switch op {
	case disk.OpCreate, disk.OpMkdir, disk.OpPreallocate:
		return true
	case disk.OpWrite:
		return !strings.HasSuffix(name, ".log") && filepath.Base(name) != "META" && filepath.Base(name) != "spare.new"
	}
	return false
}
