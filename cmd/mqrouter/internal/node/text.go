package node

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/mqrouter/mqrouter/zone"
)

// fileText keeps the text of the topology in force: the file may already hold
// another one that was refused.
type fileText struct {
	path string

	mu    sync.Mutex
	last  []byte      // guarded by mu: as read last
	text  []byte      // guarded by mu: of digest
	known zone.Digest // guarded by mu
}

// read is a source.Options.Read that remembers what it read.
func (f *fileText) read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, zone.MaxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > zone.MaxFileBytes {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, zone.MaxFileBytes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = b
	return b, nil
}

// of returns the text of the topology, which was read before.
func (f *fileText) of(t *zone.Topology) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == t.Digest {
		return f.text
	}
	if p, err := zone.Parse(f.last, f.path); err == nil && p.Digest == t.Digest {
		f.text, f.known = f.last, t.Digest
	}
	return f.text
}
