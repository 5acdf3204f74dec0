package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// Ballot is what an election is decided from.
type Ballot struct {
	Group Group
	// Term is the group's; it has no master.
	Term Term
	// Standings are those that members made after they had seen Term.
	Standings []Standing
	// Known is the highest position that is known to be committed in Term's epoch.
	Known record.Position
	// Gone is the master that let its lease run out, which nobody waits for; "" = it gave
	// it back, or is not known.
	Gone zone.Node
	// Left is the master that gave its lease back, or was started again: of logs that are
	// equal another one's is preferred, since what failed there may fail again. "" = none.
	Left zone.Node
	// Settled says that those who have not answered were waited for long enough.
	Settled bool
}

// Election is the outcome of a ballot: what changes in the term.
type Election struct {
	Master      zone.Node
	Epoch       uint64
	Incarnation record.Incarnation
	InSync      []zone.Node
	Loss        *Loss // without its time; nil = nothing that was acknowledged is missing
}

// Elect applies the rule: of the in-sync members that answered and are fit, enough of
// whom there must be to have every acknowledged record among them, the one with the
// longest log. Only members that are in sync count, not those proposed to be: these
// may lack what was acknowledged before they were proposed. The new in-sync set is
// the old one without those who did not answer and, where a majority suffices for an
// acknowledgement, without those whose log is shorter than the new master's.
//
// The first master of a group is the member with the longest log; all members must
// have answered, and their logs be of one store.
//
// A group that was a single node for a while (Term.Alone) waits for that node, whose log
// alone has what it wrote meanwhile.
//
// When nobody is elected, why says so in words for people.
func (b Ballot) Elect() (e Election, why string, ok bool) {
	if b.Term.Epoch == 0 {
		return b.found()
	}
	if e, why, waits := b.alone(); waits || e.Master != "" {
		return e, why, !waits
	}
	able, unable := b.candidates()
	if need := b.Term.answers(len(b.Term.InSync)); len(able) < need {
		return Election{}, fmt.Sprintf("%d of the %d in sync must answer and be fit, %d do: %s", need, len(b.Term.InSync), len(able), unable), false
	}
	if !b.Settled && b.silent() > 0 {
		return Election{}, "waiting a moment for the others that are in sync: " + unable, false
	}
	return b.elected(b.longest(able), able), "", true
}

// Appoint is Elect with the winner given: it must be one whom enough of the others
// are not ahead of, so that it has every acknowledged record.
func (b Ballot) Appoint(to zone.Node) (e Election, why string, ok bool) {
	if b.Term.Epoch == 0 {
		e, why, ok = b.found()
		if ok && e.Master != to {
			return Election{}, fmt.Sprintf("%s has a longer log", e.Master), false
		}
		return e, why, ok
	}
	if e, why, waits := b.alone(); waits || e.Master != "" && e.Master != to {
		return Election{}, cmp.Or(why, fmt.Sprintf("%s was the group's only node, and only its log has what it wrote then", e.Master)), false
	} else if e.Master == to {
		return e, "", true
	}
	able, unable := b.candidates()
	i := slices.IndexFunc(able, func(s Standing) bool { return s.Node == to })
	if i < 0 {
		return Election{}, fmt.Sprintf("%s is not in sync, did not answer or is not fit: %s", to, unable), false
	}
	var behind []Standing
	for _, s := range able {
		if !ahead(s, able[i]) {
			behind = append(behind, s)
		}
	}
	if need := b.Term.answers(len(b.Term.InSync)); len(behind) < need {
		return Election{}, fmt.Sprintf("%d of the %d in sync must answer and not be ahead of %s, %d do", need, len(b.Term.InSync), to, len(behind)), false
	}
	return b.elected(able[i], able), "", true
}

// Counts says whether the standing was made after the term was seen.
func (s Standing) Counts(t Term) bool {
	return s.SeenEpoch > t.Epoch || s.SeenEpoch == t.Epoch && s.Seen >= t.Version
}

// Force appoints any member that answered, and says what is given up thereby. Nothing is
// when Appoint would have done it, or when Elect elects somebody without loss: then that
// one is the master, since consent to a loss is no wish for one.
func (b Ballot) Force(o Order) (e Election, why string, ok bool) {
	to := o.To
	if e, _, ok := b.Appoint(to); ok {
		return e, "", true
	}
	i := slices.IndexFunc(b.Standings, func(s Standing) bool { return s.Node == to })
	if !b.Group.has(to) {
		return Election{}, fmt.Sprintf("%s is not a node of the group", to), false
	}
	if e, _, ok := b.Elect(); ok && e.Loss == nil {
		return e, "", true
	}
	if i < 0 {
		return Election{}, fmt.Sprintf("%s does not answer", to), false
	}
	s := b.Standings[i]
	e = Election{Master: to, Epoch: b.epoch(), Incarnation: s.Incarnation, InSync: []zone.Node{to}}
	known := b.Known
	for _, other := range b.Standings {
		if b.ofTerm(other) {
			known = max(known, other.Committed)
		}
	}
	e.Loss = &Loss{Epoch: e.Epoch, From: s.End, Known: known, By: o.By, Reason: o.Reason}
	return e, "", true
}

// found elects a group's first master.
func (b Ballot) found() (Election, string, bool) {
	var missing, unfit []string
	var withLog []Standing
	var all []Standing
	for _, m := range b.Group.Members {
		i := slices.IndexFunc(b.Standings, func(s Standing) bool { return s.Node == m })
		switch {
		case i < 0:
			missing = append(missing, string(m))
			continue
		case !b.Standings[i].Fit:
			unfit = append(unfit, string(m))
		}
		all = append(all, b.Standings[i])
		if b.Standings[i].Incarnation != 0 {
			withLog = append(withLog, b.Standings[i])
		}
	}
	switch {
	case len(b.Group.Members) == 0:
		return Election{}, "the group has no nodes", false
	case len(missing) > 0:
		return Election{}, "a group's first master is elected when all its nodes have answered; missing: " + strings.Join(missing, ", "), false
	case len(unfit) > 0:
		return Election{}, "a group's first master is elected when all its nodes are fit; not: " + strings.Join(unfit, ", "), false
	}
	for _, s := range withLog {
		if s.Incarnation != withLog[0].Incarnation {
			return Election{}, fmt.Sprintf("%s and %s have logs of different stores: empty the one that does not count, or choose by force", withLog[0].Node, s.Node), false
		}
	}
	w := b.longest(all)
	return Election{Master: w.Node, Epoch: b.epoch(), Incarnation: w.Incarnation, InSync: []zone.Node{w.Node}}, "", true
}

// candidates returns who of the in-sync set may be elected, and says why the others
// may not.
func (b Ballot) candidates() (able []Standing, unable string) {
	var words []string
	no := func(m zone.Node, why string) { words = append(words, fmt.Sprintf("%s %s", m, why)) }
	for _, m := range b.Term.InSync {
		i := slices.IndexFunc(b.Standings, func(s Standing) bool { return s.Node == m })
		switch {
		case !b.Group.has(m):
			no(m, "is not in the topology any more")
		case i < 0:
			no(m, "does not answer")
		case !b.Standings[i].Fit:
			no(m, "is not fit")
		case b.foreign(b.Standings[i]):
			no(m, "has another store than the one that was in sync")
		case b.Standings[i].End < b.Known:
			no(m, fmt.Sprintf("has a log up to %d, but %d was committed: it was set back", b.Standings[i].End, b.Known))
		default:
			able = append(able, b.Standings[i])
		}
	}
	if len(words) == 0 {
		return able, "all answer"
	}
	return able, strings.Join(words, "; ")
}

// alone decides for a group that was a single node for a while. That node must have
// answered, with the store that it had; when its log has epochs that no term knows, it
// wrote them, and only its log has them.
func (b Ballot) alone() (e Election, why string, waits bool) {
	n := b.Term.Alone
	if n == "" {
		return Election{}, "", false
	}
	i := slices.IndexFunc(b.Standings, func(s Standing) bool { return s.Node == n })
	if i < 0 || !b.Standings[i].Fit || b.foreign(b.Standings[i]) {
		return Election{}, fmt.Sprintf("%s was the group's only node for a while, and what it wrote then is nowhere else: it must answer, with that store, and be fit", n), true
	}
	s := b.Standings[i]
	if s.Epoch <= b.Term.Epoch {
		return Election{}, "", false
	}
	e = Election{Master: n, Epoch: b.epoch(), Incarnation: s.Incarnation, InSync: []zone.Node{n}}
	if !slices.Contains(b.Term.InSync, n) { // the topology gave the group to a node that lacked something
		e.Loss = &Loss{Epoch: e.Epoch, From: s.End, Known: b.Known}
	}
	return e, "", false
}

// foreign says whether the standing is of another store than the group's, which was
// emptied or exchanged since.
func (b Ballot) foreign(s Standing) bool {
	return b.Term.Incarnation != 0 && s.Incarnation != b.Term.Incarnation
}

// silent is how many of the in-sync set have not answered that are waited for.
func (b Ballot) silent() int {
	n := 0
	for _, m := range b.Term.InSync {
		if b.Group.has(m) && m != b.Gone && !slices.ContainsFunc(b.Standings, func(s Standing) bool { return s.Node == m }) {
			n++
		}
	}
	return n
}

// longest returns the one with the longest log; of equal ones one that did not give the
// lease back, and then the group's earlier member. all is not empty.
func (b Ballot) longest(all []Standing) Standing {
	return slices.MinFunc(all, func(x, y Standing) int {
		switch {
		case ahead(x, y):
			return -1
		case ahead(y, x):
			return 1
		case x.Node == b.Left:
			return 1
		case y.Node == b.Left:
			return -1
		}
		return cmp.Compare(slices.Index(b.Group.Members, x.Node), slices.Index(b.Group.Members, y.Node))
	})
}

func (b Ballot) elected(w Standing, able []Standing) Election {
	e := Election{Master: w.Node, Epoch: b.epoch(), Incarnation: cmp.Or(b.Term.Incarnation, w.Incarnation)}
	for _, s := range able {
		if !b.Term.Majority || level(s, w) {
			e.InSync = append(e.InSync, s.Node)
		}
	}
	slices.Sort(e.InSync)
	return e
}

// epoch is the next one: above the term's, above that of every log and above every one
// that a member has heard of, since both may be older than their coordinator.
func (b Ballot) epoch() uint64 {
	e := b.Term.Epoch
	for _, s := range b.Standings {
		e = max(e, s.Epoch, s.SeenEpoch)
	}
	return e + 1
}

// ofTerm says whether what the standing says to be committed is so in the term's
// epoch: its log has that epoch's lineage.
func (b Ballot) ofTerm(s Standing) bool { return b.Term.Epoch != 0 && s.Epoch == b.Term.Epoch }
