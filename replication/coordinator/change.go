package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// The methods below are the only ways in which a term changes. They return the next
// term and leave t as it was.

// Vacated takes the epoch away from its master.
func (t Term) Vacated() Term {
	n := t.Clone()
	n.Master, n.Proposed = "", nil
	n.Version++
	return n
}

// Elected begins the epoch of e with its lineage. at is the wall clock's time for the
// report of a loss.
func (t Term) Elected(e Election, lineage record.LineageID, at time.Time) Term {
	n := t.Clone()
	n.Master, n.Epoch, n.Incarnation, n.Lineage = e.Master, e.Epoch, e.Incarnation, lineage
	n.InSync, n.Proposed = sorted(e.InSync), nil
	n.Version++
	if e.Loss != nil {
		l := *e.Loss
		l.At = at
		n.Lost = &l
	}
	return n
}

// Passed gives the next epoch to a member that the master chose. The in-sync set
// stays: each of it has every acknowledged record.
func (t Term) Passed(to zone.Node, lineage record.LineageID) Term {
	n := t.Clone()
	n.Master, n.Epoch, n.Lineage, n.Proposed = to, t.Epoch+1, lineage, nil
	n.Version++
	return n
}

// Named notes the incarnation that the first master's empty store was given.
func (t Term) Named(i record.Incarnation) Term {
	n := t.Clone()
	n.Incarnation = i
	n.Version++
	return n
}

// Changed sets the in-sync sets, if the rules of Coordinator.ChangeSet allow it; the
// error is *Error.
func (t Term) Changed(g Group, epoch, version uint64, inSync, proposed []zone.Node) (Term, error) {
	fail := func(k Kind, format string, args ...any) (Term, error) {
		return t, &Error{Op: "change set", Group: t.Group, Kind: k, Text: fmt.Sprintf(format, args...)}
	}
	inSync, proposed = sorted(inSync), sorted(proposed)
	switch {
	case epoch != t.Epoch || t.Master == "":
		return fail(KindStaleEpoch, "the epoch is %d, of %q", t.Epoch, t.Master)
	case version != t.Version:
		return fail(KindStaleVersion, "the version is %d, not %d", t.Version, version)
	case !slices.Contains(inSync, t.Master):
		return fail(KindRefused, "the master %s is not in the set", t.Master)
	case len(proposed) > 0 && !slices.Contains(proposed, t.Master):
		return fail(KindRefused, "the master %s is not in the proposed set", t.Master)
	case len(inSync) > MaxMembers || len(proposed) > MaxMembers:
		return fail(KindRefused, "more than %d members", MaxMembers)
	}
	for _, m := range inSync {
		if !slices.Contains(t.InSync, m) && !slices.Contains(t.Proposed, m) {
			return fail(KindRefused, "%s was not proposed before", m)
		}
	}
	for _, m := range slices.Concat(inSync, proposed) {
		if !g.has(m) {
			return fail(KindRefused, "%s is not a node of the group", m)
		}
	}
	n := t.Clone()
	n.InSync, n.Proposed = inSync, proposed
	n.Version++
	return n, nil
}

// sorted returns a sorted copy without repetitions; nil when there is nothing in it.
func sorted(nodes []zone.Node) []zone.Node {
	if len(nodes) == 0 {
		return nil
	}
	c := slices.Clone(nodes)
	slices.Sort(c)
	return slices.Compact(c)
}
