package transaction

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	snapshotVersion    = 3
	snapshotNoForgiven = 2 // without the checks that nobody read
	snapshotNoLast     = 1 // without the times of last checks either
)

// About how many bytes a half message and a decision take in a snapshot, so that its
// memory is asked for once.
const (
	halfBytes    = 39
	decidedBytes = 9
)

// ErrSnapshot says that a snapshot is damaged or of a newer version.
var ErrSnapshot = errors.New("the snapshot of half messages cannot be read")

// Append appends the table's snapshot. Equal tables have equal bytes.
func (t *Table) Append(dst []byte) []byte {
	dst = append(dst, snapshotVersion)
	for _, n := range []uint64{t.totals.Committed, t.totals.RolledBack, t.totals.Parked, t.totals.Repeated} {
		dst = binary.AppendUvarint(dst, n)
	}
	dst, index := t.appendTopics(dst)
	dst = slices.Grow(dst, halfBytes*len(t.halves)+decidedBytes*len(t.recent))
	dst = binary.AppendUvarint(dst, uint64(len(t.halves)))
	var topic zone.Topic // whose index is at hand: most have that of the one before
	var at uint64
	t.inOrder(func(h *Half) {
		if h.Topic != topic {
			topic, at = h.Topic, index[h.Topic]
		}
		for _, n := range [...]uint64{
			uint64(h.Key.Position), h.Key.Epoch, uint64(h.Position), uint64(h.Size), at,
			uint64(max(h.Stored.UnixMilli(), 0)), uint64(h.Immunity / time.Millisecond), uint64(h.Checks), lastMillis(h), uint64(h.Forgiven),
		} {
			dst = binary.AppendUvarint(dst, n)
		}
	})
	dst = binary.AppendUvarint(dst, uint64(len(t.recent)))
	for i := range t.recent {
		k := t.recent[(t.next+i)%len(t.recent)]
		dst = binary.AppendUvarint(dst, uint64(k.Position))
		dst = binary.AppendUvarint(dst, k.Epoch)
		dst = append(dst, byte(t.decided[k]))
	}
	return dst
}

// lastMillis is when a half message was asked about last; 0 = not known.
func lastMillis(h *Half) uint64 {
	if h.Last.IsZero() {
		return 0
	}
	return uint64(max(h.Last.UnixMilli(), 0))
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Position, o.Position), cmp.Compare(k.Epoch, o.Epoch))
}

// appendTopics appends the names of the topics with half messages, and says where
// each is in the list.
func (t *Table) appendTopics(dst []byte) ([]byte, map[zone.Topic]uint64) {
	names := make([]zone.Topic, 0, len(t.topics))
	for name := range t.topics {
		names = append(names, name)
	}
	slices.Sort(names)
	index := make(map[zone.Topic]uint64, len(names))
	dst = binary.AppendUvarint(dst, uint64(len(names)))
	for i, name := range names {
		index[name] = uint64(i)
		dst = binary.AppendUvarint(dst, uint64(len(name)))
		dst = append(dst, name...)
	}
	return dst, index
}

// Parse reads what Append wrote, all of b. Every pending half message is among
// the changed ones of the table.
func Parse(b []byte) (*Table, error) {
	r := reader{b: b}
	t := NewTable()
	version := r.byte()
	if version < snapshotNoLast || version > snapshotVersion {
		return nil, ErrSnapshot
	}
	totals := Totals{Committed: r.uint(), RolledBack: r.uint(), Parked: r.uint(), Repeated: r.uint()}
	topics := make([]zone.Topic, r.count())
	for i := range topics {
		topics[i] = zone.Topic(r.take(r.uint()))
	}
	t.parseHalves(&r, topics, version)
	for range r.count() {
		k := Key{Position: record.Position(r.uint()), Epoch: r.uint()}
		o := Outcome(r.byte())
		if o < Committed || o > Parked || len(t.recent) == Remembered || t.decided[k] != 0 {
			return nil, ErrSnapshot
		}
		t.remember(k, o)
	}
	if t.totals = totals; r.bad || len(r.b) > 0 {
		return nil, ErrSnapshot
	}
	return t, nil
}

func (t *Table) parseHalves(r *reader, topics []zone.Topic, version byte) {
	var last Key
	for i := range r.count() {
		h := Half{Key: Key{Position: record.Position(r.uint()), Epoch: r.uint()}, Position: record.Position(r.uint())}
		size, topic, stored, immunity, checks := r.uint(), r.uint(), r.uint(), r.uint(), r.uint()
		asked, forgiven := uint64(0), uint64(0)
		if version > snapshotNoLast {
			asked = r.uint()
		}
		if version > snapshotNoForgiven {
			forgiven = r.uint()
		}
		if r.bad || size > 1<<32-1 || topic >= uint64(len(topics)) || stored > 1<<62 || asked > 1<<62 || immunity > maxImmunity || checks > maxChecks || forgiven > checks ||
			(i > 0 && last.compare(h.Key) >= 0) {
			r.bad = true
			return
		}
		last = h.Key
		h.Size, h.Topic, h.Stored = uint32(size), topics[topic], time.UnixMilli(int64(stored))
		h.Immunity, h.Checks = time.Duration(immunity)*time.Millisecond, int(checks)
		h.Forgiven = int(forgiven)
		if asked > 0 {
			h.Last = time.UnixMilli(int64(asked))
		}
		t.Add(h)
	}
}

// Bounds of what a snapshot may say, well above what a topology allows.
const (
	maxImmunity = 1 << 40 // milliseconds
	maxChecks   = 1 << 30
)

// reader reads what Append wrote. The first fault sticks.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a count of elements that take at least a byte each.
func (r *reader) count() int {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.bad = true
		return 0
	}
	return int(n)
}
