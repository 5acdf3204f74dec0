package broker

import (
	"cmp"
	"slices"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/replication/record"
)

// A message that the group lost, with the tail of a log, and that is offered again says
// where it stood there (record.Again). The fold lets each such place count once, so that
// a tail may be offered as often as anybody likes, by whomever, through any crash. What
// it remembers is ranges of positions for each lineage: a tail that was offered whole
// is one.

// Bounds of what the fold remembers of tails.
const (
	maxLostLineages = 1024  // each is one master that a fail-over left behind
	maxLostRanges   = 65536 // 16 bytes each, of all lineages
)

// again is where the messages stood that were stored again.
type again struct {
	lineages map[record.LineageID]*lostLineage
	ranges   int // of all lineages
}

type lostLineage struct {
	epoch uint64
	done  []positionRange // ascending, none touches the next
}

// positionRange is the positions from from on, below to.
type positionRange struct{ from, to record.Position }

// comesAgain reports whether a record is a message that comes again, and where it stood.
// What is made of one later, when it is due or decided, is another record.
func comesAgain(v *record.View) (a record.Again, ok bool) {
	if !v.IsAgain() {
		return a, false
	}
	a = v.Again()
	if a.Lineage == 0 || v.Type() == record.TypeHalf || len(v.Cause()) == 0 {
		return a, a.Lineage != 0
	}
	c, err := ParseCause(v.Cause())
	return a, err == nil && (c.Kind == CauseDue && c.Bucket == 0 || c.Kind == CauseCommit && a.Decides)
}

// applyAgain folds a message that comes again.
func (s *state) applyAgain(e *commitlog.Entry, v record.View, a *record.Again) (placement, error) {
	switch {
	case s.again.has(a):
		s.counts.AgainRepeated++
		return placement{offer: offerRepeated}, nil
	case !s.again.room(a):
		s.counts.AgainRefused++
		return placement{offer: offerNoRoom}, nil
	}
	p, err := s.applySend(e, v)
	if err != nil || p.conflict {
		return p, err
	}
	s.again.add(a)
	if p.ok && !p.again {
		s.counts.Again++
	}
	return p, nil
}

// applySend folds a message or half message.
func (s *state) applySend(e *commitlog.Entry, v record.View) (placement, error) {
	if o, once := countsOnce(&v); once {
		return s.applyOnce(e, v, &o)
	}
	if v.Type() == record.TypeHalf {
		return s.applyHalf(e, v)
	}
	return s.applyMessage(e, v)
}

// find returns the index of the first range that ends behind the position.
func (l *lostLineage) find(p record.Position) int {
	i, _ := slices.BinarySearchFunc(l.done, p, func(r positionRange, p record.Position) int {
		if r.to <= p {
			return -1
		}
		return 1
	})
	return i
}

// has reports whether the message that stood there was stored again.
func (g *again) has(a *record.Again) bool {
	l := g.lineages[a.Lineage]
	if l == nil {
		return false
	}
	i := l.find(a.Position)
	return i < len(l.done) && l.done[i].from <= a.Position
}

// room reports whether there is room to remember the place.
func (g *again) room(a *record.Again) bool {
	return g.ranges < maxLostRanges && (g.lineages[a.Lineage] != nil || len(g.lineages) < maxLostLineages)
}

// add remembers the place, and that nothing was to be offered since a.After.
func (g *again) add(a *record.Again) {
	if g.lineages == nil {
		g.lineages = map[record.LineageID]*lostLineage{}
	}
	l := g.lineages[a.Lineage]
	if l == nil {
		l = &lostLineage{epoch: a.Epoch}
		g.lineages[a.Lineage] = l
	}
	r := positionRange{min(a.After, a.Position), a.Position + 1}
	// Ranges that it overlaps or touches become one with it.
	from := l.find(r.from)
	if from > 0 && l.done[from-1].to == r.from {
		from--
	}
	to := from
	for to < len(l.done) && l.done[to].from <= r.to {
		r.from, r.to = min(r.from, l.done[to].from), max(r.to, l.done[to].to)
		to++
	}
	g.ranges -= len(l.done)
	l.done = slices.Replace(l.done, from, to, r)
	g.ranges += len(l.done)
}

// sorted returns the lineages in order.
func (g *again) sorted() []record.LineageID {
	ids := make([]record.LineageID, 0, len(g.lineages))
	for id := range g.lineages {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b record.LineageID) int {
		return cmp.Or(cmp.Compare(g.lineages[a].epoch, g.lineages[b].epoch), cmp.Compare(a, b))
	})
	return ids
}

func (e *encoder) again(g *again) {
	e.uint(uint64(len(g.lineages)))
	for _, id := range g.sorted() {
		l := g.lineages[id]
		e.u64(uint64(id))
		e.uint(l.epoch)
		e.uint(uint64(len(l.done)))
		at := record.Position(0)
		for _, r := range l.done {
			e.uint(uint64(r.from - at))
			e.uint(uint64(r.to - r.from))
			at = r.to
		}
	}
}

func (d *decoder) again(g *again) {
	n := d.count()
	if n > 0 {
		g.lineages = make(map[record.LineageID]*lostLineage, n)
	}
	for range n {
		id, l := record.LineageID(d.u64()), &lostLineage{epoch: d.uint()}
		at := record.Position(0)
		for range d.count() {
			from := at + record.Position(d.uint())
			r := positionRange{from, from + record.Position(d.uint())}
			if from < at || r.to <= r.from || at > 0 && from == at {
				d.bad = true
				return
			}
			l.done, at = append(l.done, r), r.to
		}
		if g.ranges += len(l.done); d.bad || id == 0 || g.lineages[id] != nil || len(l.done) == 0 || g.ranges > maxLostRanges || n > maxLostLineages {
			d.bad = true
			return
		}
		g.lineages[id] = l
	}
}

// landedRun is positions of an origin's log, both ends included: what of the flow was
// written there has landed here.
type landedRun struct {
	lineage       record.LineageID
	from, through record.Position
}

// maxRuns bounds the runs that a destination remembers of a flow: each change of the
// origin's lineage begins one, and so does each record that did not land.
const maxRuns = 64

// ran notes that the record with the position has landed.
func (f *inFlow) ran(lineage record.LineageID, p record.Position) {
	n := len(f.runs)
	if n > 0 && !f.broken && f.runs[n-1].lineage == lineage && p > f.runs[n-1].through {
		f.runs[n-1].through = p
		return
	}
	f.broken = false
	if n == maxRuns {
		f.runs = slices.Delete(f.runs, 0, 1)
	}
	f.runs = append(f.runs, landedRun{lineage, p, p})
}

// knows reports whether a message that comes again landed here on this flow, where it
// stood before.
func (f *inFlow) knows(a *record.Again) bool {
	return a.Sent != 0 && slices.ContainsFunc(f.runs, func(r landedRun) bool {
		return r.lineage == a.Lineage && r.from <= a.Sent && a.Sent <= r.through
	})
}

func (e *encoder) runs(f *inFlow) {
	e.bool(f.broken)
	e.uint(uint64(len(f.runs)))
	for _, r := range f.runs {
		e.u64(uint64(r.lineage))
		e.uint(uint64(r.from))
		e.uint(uint64(r.through))
	}
}

func (d *decoder) runs(f *inFlow) {
	f.broken = d.bool()
	for range d.count() {
		f.runs = append(f.runs, landedRun{record.LineageID(d.u64()), record.Position(d.uint()), record.Position(d.uint())})
	}
	if len(f.runs) > maxRuns {
		d.bad = true
	}
}
