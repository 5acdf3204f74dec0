package commitlog

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/ship"
)

// withDefaults fills the zero values and reports what is missing.
func (o Options) withDefaults() (Options, error) {
	fail := func(what string) (Options, error) { return o, &StoreError{Dir: o.Dir, What: what} }
	switch {
	case o.FS == nil:
		return fail("no file system given")
	case o.Dir == "":
		return fail("no folder given")
	case o.Group == "":
		return fail("no broker group given")
	case o.Deliver == nil:
		return fail("no deliver function given")
	case o.Lanes < 0 || o.Lanes > 255:
		return fail("lane count is not in 1 to 255")
	}
	o.Lanes = defaulted(o.Lanes, 4)
	o.SegmentBytes = max(defaulted(o.SegmentBytes, 64<<20), 4<<10)
	o.MaxBatchBytes = defaulted(o.MaxBatchBytes, 4<<20)
	o.QueueBytes = defaulted(o.QueueBytes, 32<<20)
	o.TailBytes = defaulted(o.TailBytes, 32<<20)
	if o.Rand == nil {
		var seed [32]byte
		cryptorand.Read(seed[:]) // never fails
		o.Rand = rand.New(rand.NewChaCha8(seed))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = noop.Meter{}
	}
	return o, nil
}

func defaulted[T int | int64](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// Open locks the folder, creates the store when there is none, recovers the end
// of the log and begins a new lineage there, unless it is to follow. It reads the
// last segment only, of a log that follows now and then the one before. When it
// returns nil the new lineage is durable. Nothing is delivered before
// Start; the caller must Close the log.
//
// Errors: *StoreError (not a store of this group, or damaged beyond use),
// *MemberError, disk.ErrLocked, *CorruptError (corruption before the tail; nothing was
// changed), *OpError, those of Options.Alone, the context's.
func Open(ctx context.Context, o Options) (*Log, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := o.FS.MkdirAll(o.Dir); err != nil {
		return nil, &StoreError{Dir: o.Dir, What: "cannot create the folder", Err: err}
	}
	lock, err := o.FS.Lock(path.Join(o.Dir, lockName))
	if err != nil {
		return nil, &StoreError{Dir: o.Dir, What: "cannot lock the folder", Err: err}
	}
	st := &store{options: o, lock: lock}
	if err := st.open(ctx); err != nil {
		st.close()
		return nil, err
	}
	return newLog(st)
}

// store is the open files of a log.
type store struct {
	options  Options
	lock     io.Closer
	metaFile *metaFile
	meta     meta
	segments []*segment // ascending, at least one
	end      record.Position
	// committed is what is known to be: the end, unless the log is to follow.
	committed record.Position
	size      int64 // of the last segment's file
	full      bool  // the last segment could not be allocated in full
}

func (st *store) close() {
	for _, s := range st.segments {
		if s.file != nil {
			s.file.Close()
		}
	}
	if st.metaFile != nil {
		st.metaFile.file.Close()
	}
	st.lock.Close()
}

func (st *store) open(ctx context.Context) error {
	o := &st.options
	list, err := listSegments(o.FS, o.Dir)
	if err != nil {
		return &StoreError{Dir: o.Dir, What: "cannot list the folder", Err: err}
	}
	mf, m, err := openMeta(o.FS, o.Dir)
	switch {
	case isNotExist(err):
		if list, err = st.create(list); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		st.metaFile, st.meta = mf, *m
	}
	if st.meta.Group != o.Group {
		return &StoreError{Dir: o.Dir, What: "the store belongs to another broker group: " + string(st.meta.Group)}
	}
	if err := st.beAlone(ctx); err != nil {
		return err
	}
	if st.meta.Cut > 0 {
		if list, err = st.finishCut(list); err != nil {
			return err
		}
	}
	if err := st.openSegments(list); err != nil {
		return err
	}
	for i, row := range st.meta.Lineage { // of a store of before: where its segment begins
		if j := slices.IndexFunc(st.segments, func(s *segment) bool { return s.first() == row.First }); j >= 0 {
			st.meta.Lineage[i].First = st.segments[j].base
		}
	}
	if err := st.recoverEnd(ctx); err != nil {
		return err
	}
	if o.Follow {
		return st.join()
	}
	st.committed = published(st.segments[len(st.segments)-1], st.end)
	return st.beginLineage()
}

// finishCut does again what Truncate had not finished.
func (st *store) finishCut(list []*segment) ([]*segment, error) {
	o := &st.options
	if len(list) == 0 {
		return nil, &StoreError{Dir: o.Dir, What: "META without segments", Damage: true}
	}
	i := max(len(list)-1, 0)
	for i > 0 && list[i].base >= st.meta.Cut {
		i--
	}
	list[i].open(o.FS, o.Dir, st.meta.Incarnation)
	kept, err := cutSegments(o, list, st.meta.Cut)
	if list[i].file != nil {
		list[i].file.Close() // opened again, as any other
		list[i].file = nil
	}
	if err != nil {
		return nil, err
	}
	st.meta.Cut = 0
	return kept, st.metaFile.writeTwice(&st.meta)
}

// create makes a new store: first segment first, META last, so that a store
// with META always had a segment. list is what a crash in between left.
func (st *store) create(list []*segment) ([]*segment, error) {
	o := &st.options
	if len(list) > 1 || (len(list) == 1 && list[0].base != 0) {
		return nil, &StoreError{Dir: o.Dir, What: "segments without META", Damage: true}
	}
	if len(list) == 1 {
		if err := st.discardUnused(list[0]); err != nil {
			return nil, err
		}
	}
	st.meta = meta{Incarnation: record.Incarnation(nonZero(o.Rand)), Group: o.Group, Lanes: o.Lanes, Blank: o.Follow, Member: o.Follow}
	s, err := st.createAt(0)
	if err != nil {
		return nil, err
	}
	return []*segment{s}, nil
}

// createAt makes the first segment, with the base, and META.
func (st *store) createAt(base record.Position) (*segment, error) {
	o := &st.options
	f, err := newSpare(o.FS, o.Dir, o.SegmentBytes)
	if err != nil {
		return nil, err
	}
	s, err := newSegment(o.FS, o.Dir, f, st.meta.Incarnation, base)
	if err != nil {
		return nil, err
	}
	f.Close() // opened again with its header checked, as any other
	st.metaFile, err = createMeta(o.FS, o.Dir, &st.meta)
	if err != nil {
		return nil, &OpError{Op: "create", Segment: metaName, Err: err}
	}
	s.file = nil
	return s, nil
}

// Create makes the store of a replica in an empty folder, which need not exist: an
// empty log that begins at the origin's Begin. Open it with Follow. Of the options
// it uses FS, Dir, Group and SegmentBytes. A crash leaves the whole store, or one
// that must be removed.
//
// Errors: *StoreError (also when something is there), *OpError.
func Create(o Options, from ship.Origin) error {
	if o.Deliver == nil {
		o.Deliver = func(*Committed) {}
	}
	o.Lanes = from.Lanes
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if n := len(from.Lineage); from.Incarnation == 0 || (n > 0 && from.Lineage[n-1].First > from.Begin) || n > maxLineage {
		return &StoreError{Dir: o.Dir, What: "no store is like this origin"}
	}
	if err := o.FS.MkdirAll(o.Dir); err != nil {
		return &StoreError{Dir: o.Dir, What: "cannot create the folder", Err: err}
	}
	names, err := o.FS.List(o.Dir)
	if names = slices.DeleteFunc(names, func(n string) bool { return n == lockName }); err != nil || len(names) > 0 {
		return &StoreError{Dir: o.Dir, What: "the folder is not empty", Err: err}
	}
	st := &store{options: o, meta: meta{Incarnation: from.Incarnation, Group: o.Group, Lanes: o.Lanes,
		Begin: from.Begin, Committed: from.Begin, Lineage: from.Lineage, Member: true}}
	if _, err := st.createAt(from.Begin); err != nil {
		return err
	}
	return st.metaFile.file.Close()
}

// discardUnused removes the segment of a store whose creation did not finish.
func (st *store) discardUnused(s *segment) error {
	o := &st.options
	f, err := o.FS.Open(path.Join(o.Dir, s.name))
	if err != nil {
		return &StoreError{Dir: o.Dir, What: "segments without META", Err: err}
	}
	defer f.Close()
	var b [headerLen + frameLen]byte
	if _, err := f.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return &OpError{Op: "read", Segment: s.name, Err: err}
	}
	if [frameLen]byte(b[headerLen:]) != [frameLen]byte{} {
		return &StoreError{Dir: o.Dir, What: "segments with entries but without META", Damage: true}
	}
	if err := o.FS.Remove(path.Join(o.Dir, s.name)); err != nil {
		return &OpError{Op: "remove", Segment: s.name, Err: err}
	}
	return nil
}

// openSegments opens the files that hold positions from the oldest kept on and
// removes what an interrupted trim or roll left.
func (st *store) openSegments(list []*segment) error {
	o := &st.options
	for i, s := range list {
		if i+1 < len(list) && list[i+1].base <= st.meta.Begin {
			if err := o.FS.Remove(path.Join(o.Dir, s.name)); err != nil {
				o.Logger.Warn("a trimmed segment could not be removed", "segment", s.name, "err", err)
			}
			continue
		}
		s.open(o.FS, o.Dir, st.meta.Incarnation)
		st.segments = append(st.segments, s)
	}
	for _, left := range []string{spareName, mendName} {
		if err := o.FS.Remove(path.Join(o.Dir, left)); err != nil && !isNotExist(err) {
			return &OpError{Op: "remove", Segment: left, Err: err}
		}
	}
	if len(st.segments) == 0 {
		return &StoreError{Dir: o.Dir, What: "META without segments", Damage: true}
	}
	st.reportDamage()
	if last := st.segments[len(st.segments)-1]; last.damage != nil {
		return last.damage
	}
	return nil
}

// reportDamage logs what is wrong with older segments; reads there fail.
func (st *store) reportDamage() {
	logger := st.options.Logger
	if first := st.segments[0]; first.base > st.meta.Begin {
		logger.Error("commit log segment is missing", "position", uint64(st.meta.Begin))
	}
	for i, s := range st.segments[:len(st.segments)-1] {
		if s.damage != nil {
			logger.Error("commit log segment is damaged", "segment", s.name, "err", s.damage)
			continue
		}
		next := st.segments[i+1].base
		if size, err := s.file.Size(); err != nil || s.base+record.Position(size) < next {
			logger.Error("commit log segment is too short or the next one is missing",
				"segment", s.name, "position", uint64(s.base)+uint64(size), "err", err)
		}
	}
}

func (st *store) recoverEnd(ctx context.Context) error {
	last := st.segments[len(st.segments)-1]
	t, err := scanTail(ctx, last, &st.meta)
	if err != nil {
		return err
	}
	if t.cut > 0 {
		st.options.Logger.Warn("torn end of the commit log was cut",
			"segment", last.name, "position", uint64(t.end), "bytes", t.cut)
	}
	if st.full, err = repairTail(ctx, last, t, st.options.SegmentBytes); err != nil {
		return err
	}
	if st.size, err = last.file.Size(); err != nil {
		return &OpError{Op: "size", Segment: last.name, Err: err}
	}
	st.end = t.end
	if st.options.Follow {
		return st.recoverCommitted(t)
	}
	return nil
}

func (st *store) beginLineage() error {
	first := published(st.segments[len(st.segments)-1], st.end)
	row := LineageStart{Epoch: 1, ID: record.LineageID(nonZero(st.options.Rand)), First: first}
	if n := len(st.meta.Lineage); n > 0 {
		row.Epoch = st.meta.Lineage[n-1].Epoch + 1
	}
	st.meta.addLineage(row)
	st.meta.CleanEnd, st.meta.Blank, st.meta.Committed, st.meta.Loose, st.meta.Member = 0, false, 0, 0, false
	// Into both slots: whichever of them is damaged later, the other one knows
	// the lineage, without which its entries would look like a torn end.
	for range 2 {
		if err := st.metaFile.write(&st.meta); err != nil {
			return &OpError{Op: "write", Segment: metaName, Err: err}
		}
	}
	return nil
}

func nonZero(r *rand.Rand) uint64 {
	for {
		if v := r.Uint64(); v != 0 {
			return v
		}
	}
}

func newLog(st *store) (*Log, error) {
	last := st.segments[len(st.segments)-1]
	l := &Log{
		options: st.options,
		store:   st,
		inc:     st.meta.Incarnation,
		gated:   st.options.Follow,
		gate:    newGate(),
		loose:   st.meta.Loose,
		from:    st.committed,
		queue:   newQueue(st.options.QueueBytes),
		notes:   make(chan note, deliverDepth),
		free:    make(chan *group, deliverDepth+2),
		spares:  make(chan disk.File, 1),
		missing: make(chan struct{}, 1),
		used:    make(chan struct{}, 1),
		needed:  make(chan struct{}, 1),
		quit:    make(chan struct{}),
		metaUse: make(chan struct{}, 1),
		still:   make(chan struct{}),
		mending: make(chan struct{}, 1),
	}
	l.tail.limit = st.options.TailBytes
	l.segments.Store(&st.segments)
	l.setTable(st.meta.Lineage)
	if !l.gated {
		l.lineage, _ = l.lastRow()
	}
	l.blank.Store(st.meta.Blank)
	l.committed.Store(uint64(st.committed))
	l.begin.Store(uint64(st.meta.Begin))
	l.gate.end.Store(uint64(published(last, st.end)))
	l.gate.synced.Store(l.gate.end.Load())
	l.writer = writer{log: l, segment: last, size: st.size,
		end: st.end, synced: st.end, repair: st.full, marked: true}
	var err error
	if l.metrics, err = newMetrics(l); err != nil {
		st.close()
		return nil, &StoreError{Dir: st.options.Dir, What: "cannot make the metrics", Err: err}
	}
	return l, nil
}
