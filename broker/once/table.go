package once

import (
	"slices"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// EntrySize is what an entry takes, in bytes, without its place in the map.
	EntrySize = 56
	// chunkLen is how many entries are allocated at once: 56 KiB.
	chunkLen = 1 << 10
	// maxForget bounds the entries that one record makes go. Two would keep up with
	// any rate; more give memory back sooner after a flood.
	maxForget = 16
)

// Answer says what a message is.
type Answer uint8

// The answers.
const (
	New      Answer = iota
	Repeat          // it was stored before
	Conflict        // its key was stored before, with other content
)

// Place is what the first copy was answered with; its meaning is package broker's.
type Place struct {
	Queue  uint16
	Flags  uint8
	Offset uint64
	Extra  uint64
}

type entry struct {
	key     [16]byte
	until   int64 // end of the window; milliseconds since 1970
	content uint64
	place   Place
}

// Table is what was stored, by topic. The zero Table is empty. It is not safe for
// concurrent use, but for calls of Look, Len and Topic among themselves.
type Table struct {
	topics []*topic // in order of names
	total  int
}

// topic is the entries of a topic in the order in which they entered. An entry that
// was entered again stays until its turn to go comes; byKey has the newer one.
type topic struct {
	name   zone.Topic
	chunks [][]entry
	head   int    // entries of the first chunk that are gone
	n      int    // entries that are there
	first  uint32 // number of the first one; numbers wrap
	byKey  map[[16]byte]uint32
}

func (t *Table) find(name zone.Topic) (int, *topic) {
	i, ok := slices.BinarySearchFunc(t.topics, name, func(x *topic, n zone.Topic) int { return strings.Compare(string(x.name), string(n)) })
	if !ok {
		return i, nil
	}
	return i, t.topics[i]
}

// at returns the entry with the number.
func (x *topic) at(number uint32) *entry {
	i := x.head + int(number-x.first)
	return &x.chunks[i/chunkLen][i%chunkLen]
}

// Look says what a message of the topic is that is stored at the time, and where
// the first copy went unless it is new.
func (t *Table) Look(name zone.Topic, o *record.Once, at time.Time) (Place, Answer) {
	_, x := t.find(name)
	if x == nil {
		return Place{}, New
	}
	number, ok := x.byKey[o.Key]
	if !ok {
		return Place{}, New
	}
	e := x.at(number)
	switch {
	case at.UnixMilli() >= e.until:
		return Place{}, New
	case e.content != o.Content:
		return e.place, Conflict
	}
	return e.place, Repeat
}

// Enter remembers a message that Look has called new, stored at the time. turn
// picks the other topic that forgets, and must follow from the log.
func (t *Table) Enter(name zone.Topic, o *record.Once, at time.Time, p Place, turn uint64) {
	i, x := t.find(name)
	if x == nil {
		x = &topic{name: name, byKey: map[[16]byte]uint32{}}
		t.topics = slices.Insert(t.topics, i, x)
	}
	now := at.UnixMilli()
	t.total -= x.forget(now)
	x.push(entry{key: o.Key, until: now + o.Window.Milliseconds(), content: o.Content, place: p})
	t.total++
	other := int(turn % uint64(len(t.topics)))
	if y := t.topics[other]; y != x {
		t.total -= y.forget(now)
		if y.n == 0 {
			t.topics = slices.Delete(t.topics, other, other+1)
		}
	}
}

func (x *topic) push(e entry) {
	last := len(x.chunks) - 1
	if last < 0 || len(x.chunks[last]) == chunkLen {
		x.chunks = append(x.chunks, make([]entry, 0, chunkLen))
		last++
	}
	x.chunks[last] = append(x.chunks[last], e)
	x.byKey[e.key] = x.first + uint32(x.n)
	x.n++
}

// forget lets the oldest entries go whose windows are over, and returns how many.
func (x *topic) forget(now int64) int {
	gone := 0
	for x.n > 0 && gone < maxForget {
		e := x.at(x.first)
		if e.until > now {
			break
		}
		if x.byKey[e.key] == x.first {
			delete(x.byKey, e.key)
		}
		x.first++
		x.n--
		gone++
		if x.head++; x.head == chunkLen {
			x.chunks[0] = nil
			x.chunks, x.head = x.chunks[1:], 0
		}
	}
	return gone
}

// Len is how many entries there are.
func (t *Table) Len() int { return t.total }

// Topic returns how many entries the topic has, and when the window of the oldest
// ends.
func (t *Table) Topic(name zone.Topic) (n int, oldest time.Time) {
	_, x := t.find(name)
	if x == nil || x.n == 0 {
		return 0, time.Time{}
	}
	return x.n, time.UnixMilli(x.at(x.first).until)
}

// Over reports whether the window of a topic's oldest entry is over at the time: the
// next message makes some go.
func (t *Table) Over(at time.Time) bool {
	for _, x := range t.topics {
		if x.n > 0 && x.at(x.first).until <= at.UnixMilli() {
			return true
		}
	}
	return false
}

// Topics returns the names of the topics with entries, in order.
func (t *Table) Topics() []zone.Topic {
	names := make([]zone.Topic, 0, len(t.topics))
	for _, x := range t.topics {
		names = append(names, x.name)
	}
	return names
}
