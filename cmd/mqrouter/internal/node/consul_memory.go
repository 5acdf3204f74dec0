package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/consul"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// termName is the file in a member's data folder with the newest term that it knows of
	// its group, as JSON. It is not part of the store, and goes with the folder only.
	termName = "term.json"
	// maxTerm bounds what is read of it, in bytes; a term with all its names has some 3 KiB.
	maxTerm = 64 << 10
)

// termFile is the memory of a member whose coordinator is Consul.
type termFile struct {
	fs  disk.FS
	dir string
}

var _ consul.Memory = termFile{}

// Load implements consul.Memory.
func (m termFile) Load(group zone.Group) (coordinator.Term, error) {
	f, err := m.fs.Open(path.Join(m.dir, termName))
	if errors.Is(err, fs.ErrNotExist) {
		return coordinator.Term{}, nil
	}
	if err != nil {
		return coordinator.Term{}, err
	}
	defer f.Close()
	n, err := f.Size()
	if err == nil && n > maxTerm {
		err = fmt.Errorf("it has %d bytes", n)
	}
	var t coordinator.Term
	if err == nil {
		b := make([]byte, n)
		if _, err = f.ReadAt(b, 0); err == nil {
			err = json.Unmarshal(b, &t)
		}
	}
	if err == nil && t.Group != group {
		err = fmt.Errorf("it is of group %q", t.Group)
	}
	if err != nil {
		return coordinator.Term{}, fmt.Errorf("%s in %s: %w", termName, m.dir, err)
	}
	return t, nil
}

// Save implements consul.Memory.
func (m termFile) Save(t coordinator.Term) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := m.fs.MkdirAll(m.dir); err != nil {
		return err
	}
	name := path.Join(m.dir, termName)
	f, err := m.fs.Create(name + ".new")
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := m.fs.Rename(name+".new", name); err != nil {
		return err
	}
	return m.fs.SyncDir(m.dir)
}
