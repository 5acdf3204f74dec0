package node

import (
	"bytes"
	"sync"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/source"
)

// fileText keeps the text of the topology in force: the file may already hold
// another one that was refused.
type fileText struct {
	path string
	from func(path string) ([]byte, error) // nil: the operating system's file

	mu     sync.Mutex
	recent [][]byte    // guarded by mu: as read, the newest last; at most keepTexts
	text   []byte      // guarded by mu: of known
	known  zone.Digest // guarded by mu
}

// keepTexts is how many texts are kept until the one in force is asked for: one
// that was refused may follow it at once.
const keepTexts = 4

// read is a source.Options.Read that remembers what it read.
func (f *fileText) read(path string) ([]byte, error) {
	from := f.from
	if from == nil {
		from = source.ReadFile
	}
	b, err := from(path)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.recent); n > 0 && bytes.Equal(f.recent[n-1], b) {
		return b, nil
	}
	if len(f.recent) == keepTexts {
		f.recent = append(f.recent[:0], f.recent[1:]...)
	}
	f.recent = append(f.recent, b)
	return b, nil
}

// of returns the text of the topology, which was read before.
func (f *fileText) of(t *zone.Topology) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == t.Digest {
		return f.text
	}
	for _, text := range f.recent {
		if p, err := zone.Parse(text, f.path); err == nil && p.Digest == t.Digest {
			f.text, f.known = text, t.Digest
			break
		}
	}
	return f.text
}
