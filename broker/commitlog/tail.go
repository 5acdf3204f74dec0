package commitlog

import (
	"sort"
	"sync"

	"github.com/mqrouter/mqrouter/replication/record"
)

// tail keeps the buffers of the newest committed writes, so that readers who
// keep up never touch the disk. It holds at most limit bytes of buffers;
// entries that readers still point to are beyond its bound.
type tail struct {
	limit int64 // bytes; negative: keep nothing

	mu     sync.RWMutex
	chunks []chunk // guarded by mu; ascending, from head on
	head   int     // guarded by mu
	bytes  int64   // guarded by mu
}

// chunk is the buffer of one write.
type chunk struct {
	start, end record.Position
	buf        []byte
}

func (t *tail) add(start, end record.Position, buf []byte) {
	if int64(len(buf)) > t.limit {
		buf = nil // too large to keep: what is older goes too, so that the tail has no hole
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chunks = append(t.chunks, chunk{start, end, buf})
	t.bytes += int64(len(buf))
	for t.head < len(t.chunks) && (t.bytes > t.limit || buf == nil) {
		t.bytes -= int64(len(t.chunks[t.head].buf))
		t.chunks[t.head] = chunk{}
		t.head++
	}
	if t.head > 64 && t.head > len(t.chunks)/2 {
		n := copy(t.chunks, t.chunks[t.head:])
		clear(t.chunks[n:])
		t.chunks, t.head = t.chunks[:n], 0
	}
}

// cut drops what stands at or above to.
func (t *tail) cut(to record.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.chunks)
	for n > t.head && t.chunks[n-1].start >= to {
		n--
		t.bytes -= int64(len(t.chunks[n].buf))
		t.chunks[n] = chunk{}
	}
	t.chunks = t.chunks[:n]
	if n > t.head && t.chunks[n-1].end > to {
		c := &t.chunks[n-1]
		left := c.buf[:to-c.start]
		t.bytes -= int64(len(c.buf) - len(left))
		c.buf, c.end = left, to
	}
}

// at returns the bytes from pos to the end of its write; nil when they are not
// kept or no write covers pos.
func (t *tail) at(pos record.Position) []byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	live := t.chunks[t.head:]
	i := sort.Search(len(live), func(i int) bool { return live[i].end > pos })
	if i == len(live) || live[i].start > pos {
		return nil
	}
	return live[i].buf[pos-live[i].start:]
}

func (t *tail) size() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.bytes
}
