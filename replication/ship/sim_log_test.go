package ship

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// simSegment is the size of a simulated segment: a few dozen frames.
const simSegment = 4 << 10

var errSimDisk = errors.New("simulated disk failed")

// simLog is a log on a simulated disk: a master's and a replica's, as the node
// changes roles.
type simLog struct {
	w    *simWorld
	node zone.Node
	rng  *rand.Rand

	mu        *sync.Mutex              // the disk's
	d         *simDisk                 // guarded by mu
	committed record.Position          // guarded by mu
	acked     record.Position          // guarded by mu
	retain    record.Position          // guarded by mu
	watchers  map[chan<- struct{}]bool // guarded by mu
	failed    error                    // guarded by mu
	slow      time.Duration            // of a sync; guarded by mu
	breaking  bool                     // the next sync fails; guarded by mu
}

var (
	_ LeaderLog   = (*simLog)(nil)
	_ FollowerLog = (*simLog)(nil)
)

func openSimLog(w *simWorld, node zone.Node, d *simDisk, rng *rand.Rand) *simLog {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &simLog{w: w, mu: &d.mu, node: node, rng: rng, d: d, committed: d.marked(), retain: nothing, watchers: map[chan<- struct{}]bool{}}
}

func (l *simLog) Incarnation() record.Incarnation {
	return locked(l, func() record.Incarnation { return l.d.inc })
}
func (l *simLog) Begin() record.Position {
	return locked(l, func() record.Position { return l.d.begin })
}
func (l *simLog) End() record.Position { return locked(l, func() record.Position { return l.d.end() }) }
func (l *simLog) Synced() record.Position {
	return locked(l, func() record.Position { return l.d.synced() })
}
func (l *simLog) Committed() record.Position {
	return locked(l, func() record.Position { return l.committed })
}
func (l *simLog) Err() error { return locked(l, func() error { return l.failed }) }
func (l *simLog) Lineage() []record.LineageStart {
	return locked(l, func() []record.LineageStart { return slices.Clone(l.d.rows) })
}

func locked[T any](l *simLog, fn func() T) T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fn()
}

// tell wakes the watchers. The caller holds mu.
func (l *simLog) tell() {
	for c := range l.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (l *simLog) Notify(c chan<- struct{}) (cancel func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[c] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, c)
	}
}

func (l *simLog) ReadRaw(_ context.Context, from record.Position, limit int, dst []byte) (Stretch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := Stretch{From: from, Next: from}
	if from < l.d.begin {
		return st, ErrTrimmed
	}
	i := slices.IndexFunc(l.d.frames, func(f *simFrame) bool { return f.from() >= from })
	if i < 0 {
		return st, nil
	}
	if l.d.frames[i].from() != from {
		l.w.fault("%s: nothing begins at %d", l.node, from)
		return st, errSimDisk
	}
	head := l.d.frames[i]
	st.Base, st.Frames = head.first, dst[:0]
	for _, f := range l.d.frames[i:] {
		if f != head && (f.first || f.lineage() != head.lineage() || len(st.Frames)+len(f.data) > limit) {
			break
		}
		st.Frames, st.Next = append(st.Frames, f.data...), f.next
	}
	return st, nil
}

func (l *simLog) LastFrame(_ context.Context, end record.Position) (Fingerprint, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range slices.Backward(l.d.frames) {
		if f.next <= end {
			return Fingerprint{Position: f.pos, Checksum: f.sum()}, true, nil
		}
	}
	return Fingerprint{}, false, nil
}

func (l *simLog) Commit(p record.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p > l.d.synced() {
		l.w.fault("%s: commit of %d, durable up to %d", l.node, p, l.d.synced())
	}
	for _, f := range l.d.frames {
		if f.pos >= l.committed && f.next <= p {
			l.w.sawCommitted(l.node, f)
		}
	}
	l.committed = max(l.committed, p)
	l.acked = max(l.acked, p)
	l.tell()
}

func (l *simLog) Acked(p record.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked = max(l.acked, p)
	l.tell()
}

func (l *simLog) Retain(p record.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retain = p
}

// append writes a record at the end, as a master does, and returns where it ends.
func (l *simLog) append(id uint64, size int) record.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	row := l.d.rows[len(l.d.rows)-1]
	f := &simFrame{pos: l.d.end(), base: l.d.begin, first: true}
	if n := len(l.d.frames); n > 0 {
		f.base, f.first = l.d.frames[n-1].base, false
	}
	if f.first || f.pos-f.base > simSegment {
		l.d.durable = len(l.d.frames) // what stands before a segment is durable before it appears
		f.base, f.first = f.pos, true
		f.pos += simBase
	}
	f.data = newSimFrame(f.pos, row.ID, l.committed, id, size)
	f.next = f.pos + record.Position(len(f.data))
	l.w.wrote(l.node, row, f)
	l.d.frames = append(l.d.frames, f)
	l.tell()
	return f.next
}

// promote begins a lineage at the end.
func (l *simLog) promote(epoch uint64, id record.LineageID) {
	l.mu.Lock()
	l.d.durable = len(l.d.frames)
	if l.d.inc == 0 {
		l.d.inc = record.Incarnation(l.w.number())
	}
	l.d.rows = append(l.d.rows, record.LineageStart{Epoch: epoch, ID: id, First: l.d.end()})
	l.mu.Unlock()
	l.append(0, 0)
}

func (l *simLog) AppendRaw(_ context.Context, s Stretch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := s.From
	if at != l.d.end() || len(l.d.rows) == 0 {
		return ErrRefused
	}
	base, first := l.d.begin, false
	if n := len(l.d.frames); n > 0 {
		base = l.d.frames[n-1].base
	} else if !s.Base {
		return ErrRefused
	}
	if s.Base {
		base, first, at = at, true, at+simBase
	}
	row := l.d.rows[len(l.d.rows)-1]
	var add []*simFrame
	for b := slices.Clone(s.Frames); len(b) > 0; first = false {
		data := parseSimFrame(b, at)
		f := &simFrame{pos: at, next: at + record.Position(len(data)), base: base, first: first, data: data}
		if data == nil || f.lineage() != row.ID {
			return ErrRefused
		}
		add = append(add, f)
		b, at = b[len(data):], f.next
	}
	if at != s.Next {
		return ErrRefused
	}
	if s.Base {
		l.d.durable = len(l.d.frames)
	}
	l.d.frames = append(l.d.frames, add...)
	l.tell()
	return nil
}

func (l *simLog) Sync(ctx context.Context) (record.Position, error) {
	l.mu.Lock()
	end, slow := l.d.end(), l.slow
	took := time.Duration(l.rng.Int64N(int64(4*time.Millisecond))) + slow
	l.mu.Unlock()
	t := time.NewTimer(took)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.breaking && l.failed == nil {
		l.failed = errSimDisk
	}
	if l.failed != nil {
		l.tell()
		return 0, l.failed
	}
	for l.d.durable < len(l.d.frames) && l.d.frames[l.d.durable].next <= end { // by position: segments may be trimmed meanwhile
		l.d.durable++
	}
	l.tell()
	return l.d.synced(), nil
}

func (l *simLog) AddLineage(_ context.Context, row record.LineageStart) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if row.First != l.d.end() || row.Epoch <= l.d.epoch() {
		l.w.fault("%s: lineage %d at %d, log of %d ends at %d", l.node, row.Epoch, row.First, l.d.epoch(), l.d.end())
		return ErrRefused
	}
	l.d.durable = len(l.d.frames)
	l.d.rows = append(l.d.rows, row)
	return nil
}

func (l *simLog) Truncate(_ context.Context, to record.Position) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to < l.committed {
		return ErrCommitted
	}
	l.d.cut(to)
	return nil
}

func (l *simLog) Keep(context.Context, record.Position) error { return nil }

// ids returns the numbers of the records in the log, in order, from Begin on.
func (l *simLog) ids() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []uint64
	for _, f := range l.d.frames {
		if f.id() != 0 {
			all = append(all, f.id())
		}
	}
	return all
}
