package cache

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// DefaultMaxBytes bounds a Memory when its options do not.
const DefaultMaxBytes = 256 << 20

// entryCost is what a key costs beside its bytes and its value's: map, strings,
// rank. An estimate.
const entryCost = 192

// maxNamespaces bounds the prefixes whose generation is remembered.
const maxNamespaces = 4096

// MemoryOptions say how large a Memory may grow. The zero value is useful.
type MemoryOptions struct {
	// MaxBytes bounds keys, values and fences together; 0 = DefaultMaxBytes.
	// Above it values are dropped (a miss, to be filled from the source), then
	// fences.
	MaxBytes int64
}

// Memory is a cache inside the own process. It is empty after each start, and
// is filled from what the landing group still has. It is safe for concurrent
// use.
type Memory struct {
	max int64

	mu     sync.RWMutex
	items  map[string]item                    // guarded by mu
	spaces map[string]namespace               // guarded by mu
	topics map[zone.Topic]*broadcast.Progress // guarded by mu
	bytes  int64                              // guarded by mu
	// What was stored before forgot and finds nothing is a delete: a fence that it
	// should lose against may have been dropped. Guarded by mu.
	forgot  time.Time
	evicted uint64 // guarded by mu
}

// item is what is known of a key. Its value is never changed in place.
type item struct {
	rank    broadcast.Rank
	value   []byte
	found   bool
	expires time.Time // of the value; zero = never
	forget  time.Time // of the rank; zero = not as long as there is a value
}

func (i *item) cost(key string) int64 { return int64(len(key)+len(i.value)) + entryCost }

// alive reports whether there is a value.
func (i *item) alive(now time.Time) bool {
	return i.found && (i.expires.IsZero() || i.expires.After(now))
}

// namespace is a flushed prefix.
type namespace struct {
	version uint64
	at      time.Time
}

var _ broadcast.Applier = (*Memory)(nil)

// NewMemory returns an empty cache.
func NewMemory(o MemoryOptions) *Memory {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	return &Memory{max: o.MaxBytes, items: map[string]item{}, spaces: map[string]namespace{}, topics: map[zone.Topic]*broadcast.Progress{}}
}

// Load implements broadcast.Applier.
func (m *Memory) Load(_ context.Context, topic zone.Topic) (broadcast.Progress, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p := m.topics[topic]
	if p == nil {
		return broadcast.Progress{}, nil
	}
	return broadcast.Progress{Place: p.Place, Marks: slices.Clone(p.Marks)}, nil
}

// Watermarks returns how far each origin's changes are applied, all topics
// together, sorted by origin.
func (m *Memory) Watermarks() []broadcast.Mark {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []broadcast.Mark
	for _, p := range m.topics {
		all = append(all, p.Marks...)
	}
	broadcast.SortMarks(all)
	return all
}

// Apply implements broadcast.Applier.
func (m *Memory) Apply(_ context.Context, b *broadcast.Batch) (broadcast.Result, error) {
	ranks := make([]broadcast.Rank, len(b.Changes)) // hashing needs no lock
	for i := range b.Changes {
		if b.Changes[i].Op != broadcast.OpFlushPrefix {
			ranks[i] = b.Changes[i].Rank()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.topics[b.Topic]
	if p == nil {
		p = &broadcast.Progress{}
	}
	if p.Place.Incarnation != b.From.Incarnation || p.Place.Offset != b.From.Offset {
		return broadcast.Result{}, &broadcast.MovedError{Topic: b.Topic, From: b.From, At: p.Place}
	}
	var r broadcast.Result
	for i := range b.Changes {
		applied := false
		if c := &b.Changes[i]; c.Op == broadcast.OpFlushPrefix {
			applied = m.flushPrefix(c, b)
		} else {
			applied = m.change(c, ranks[i], b)
		}
		if applied {
			r.Applied++
		} else {
			r.Superseded++
		}
	}
	m.topics[b.Topic] = &broadcast.Progress{Place: b.To, Marks: moveMarks(p.Marks, b)}
	if m.bytes > m.max {
		m.shrink(b.Now)
	}
	return r, nil
}

func moveMarks(old []broadcast.Mark, b *broadcast.Batch) []broadcast.Mark {
	of := make(map[record.FlowID]broadcast.Mark, len(old))
	for _, mark := range old {
		of[mark.Flow] = mark
	}
	for _, id := range b.Drop {
		delete(of, id)
	}
	for _, mark := range b.Marks {
		of[mark.Flow] = mark
	}
	list := slices.Collect(maps.Values(of))
	broadcast.SortMarks(list)
	return list
}

// change applies a set or delete. The caller holds mu.
func (m *Memory) change(c *broadcast.Change, rank broadcast.Rank, b *broadcast.Batch) bool {
	var expires time.Time
	if c.TTL > 0 {
		expires = c.Stored.Add(c.TTL)
	}
	old, known := m.items[c.Key]
	if known && !old.forget.IsZero() && !old.forget.After(b.Now) {
		m.remove(c.Key, old)
		old = item{}
	}
	unknownBefore := b.Now.Add(-b.Horizon)
	if m.forgot.After(unknownBefore) {
		unknownBefore = m.forgot
	}
	have := broadcast.Stored{Rank: old.rank, Generation: m.generation(c.Key)}
	switch broadcast.Fence(have, rank, c.Op, unknownBefore, expires, c.Stored, b.Now) {
	case broadcast.Applied:
		it := item{rank: rank, value: slices.Clone(c.Value), found: true, expires: expires}
		if !expires.IsZero() {
			it.forget = later(expires, b.Now.Add(b.Horizon))
		}
		m.put(c.Key, it)
	case broadcast.AppliedAsGone:
		m.put(c.Key, item{rank: rank, forget: b.Now.Add(b.Horizon)})
	default:
		return false
	}
	return true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// generation returns the greatest version of a flush that covers the key.
func (m *Memory) generation(key string) uint64 {
	var g uint64
	if len(m.spaces) > len(key) {
		for n := 1; n <= len(key); n++ {
			if s, ok := m.spaces[key[:n]]; ok {
				g = max(g, s.version)
			}
		}
		return g
	}
	for prefix, s := range m.spaces {
		if strings.HasPrefix(key, prefix) {
			g = max(g, s.version)
		}
	}
	return g
}

// flushPrefix raises the generation of a namespace and drops what it covers.
func (m *Memory) flushPrefix(c *broadcast.Change, b *broadcast.Batch) bool {
	if m.spaces[c.Key].version >= c.Version {
		return false
	}
	if len(m.spaces) >= maxNamespaces {
		m.forgetSpaces(b.Now.Add(-b.Horizon))
	}
	m.spaces[c.Key] = namespace{version: c.Version, at: b.Now}
	for key, it := range m.items {
		if strings.HasPrefix(key, c.Key) && it.rank.Version() <= c.Version {
			m.remove(key, it)
		}
	}
	return true
}

// forgetSpaces drops the generations of before; if none is, the oldest one, and
// remembers that it did.
func (m *Memory) forgetSpaces(before time.Time) {
	oldest, oldestAt := "", time.Time{}
	for prefix, s := range m.spaces {
		if s.at.Before(before) {
			delete(m.spaces, prefix)
		} else if oldest == "" || s.at.Before(oldestAt) {
			oldest, oldestAt = prefix, s.at
		}
	}
	if len(m.spaces) >= maxNamespaces {
		delete(m.spaces, oldest)
		m.forgot = later(m.forgot, oldestAt)
	}
}

func (m *Memory) put(key string, it item) {
	if old, ok := m.items[key]; ok {
		m.bytes -= old.cost(key)
	}
	m.items[key] = it
	m.bytes += it.cost(key)
}

func (m *Memory) remove(key string, it item) {
	delete(m.items, key)
	m.bytes -= it.cost(key)
}

// shrink makes room down to nine tenths of the bound: what is over, then
// values, then fences.
func (m *Memory) shrink(now time.Time) {
	goal := m.max / 10 * 9
	for key, it := range m.items {
		if !it.forget.IsZero() && !it.forget.After(now) {
			m.remove(key, it)
		}
	}
	for key, it := range m.items {
		if m.bytes <= goal {
			return
		}
		if it.found && len(it.value) > 0 {
			m.evicted++
			m.put(key, item{rank: it.rank, forget: it.forget})
		}
	}
	for key, it := range m.items {
		if m.bytes <= goal {
			return
		}
		m.forgot = later(m.forgot, now)
		m.remove(key, it)
	}
}

// Evicted returns how many values were dropped for want of room.
func (m *Memory) Evicted() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.evicted
}

// Len returns how many keys are known, deleted ones included.
func (m *Memory) Len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.items)
}

// Flush implements broadcast.Applier.
func (m *Memory) Flush(_ context.Context, horizon time.Duration) error {
	forget := time.Now().Add(horizon)
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, it := range m.items {
		m.put(key, item{rank: it.rank, forget: later(it.forget, forget)})
	}
	return nil
}

// Get implements broadcast.Applier. It never fails.
func (m *Memory) Get(_ context.Context, key string) (broadcast.Entry, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	it, ok := m.items[key]
	if ok {
		e := broadcast.Entry{Version: it.rank.Version(), Found: it.alive(time.Now())}
		if e.Found {
			e.Value = slices.Clone(it.value)
		}
		e.Deleted = !e.Found
		return e, nil
	}
	if g := m.generation(key); g > 0 {
		return broadcast.Entry{Deleted: true, Version: g}, nil
	}
	return broadcast.Entry{}, nil
}
