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

// Elected begins the epoch of e with its lineage. lease is how long its first lease is
// at most, at is the wall clock's time for the report of a loss.
func (t Term) Elected(e Election, lineage record.LineageID, lease time.Duration, at time.Time) Term {
	n := t.Clone()
	n.Master, n.Epoch, n.Incarnation, n.Lineage = e.Master, e.Epoch, e.Incarnation, lineage
	n.InSync, n.Proposed = sorted(e.InSync), nil
	// Where a majority acknowledged, the new set is without those who may lack something.
	n.Majority, n.Alone, n.Leased = false, "", lease
	n.Version++
	if e.Loss != nil {
		l := *e.Loss
		l.At = at
		n.Lost = &l
		n.Committed = min(n.Committed, l.From)
	}
	return n
}

// Passed gives the next epoch to a member that the master chose. The in-sync set
// stays, and with it whether a majority sufficed so far. lease is as with Elected.
func (t Term) Passed(to zone.Node, lineage record.LineageID, lease time.Duration) Term {
	n := t.Clone()
	n.Master, n.Epoch, n.Lineage, n.Proposed = to, t.Epoch+1, lineage, nil
	n.Leased = lease
	n.Version++
	return n
}

// Noted returns the term with what is known to be committed, but as the same version:
// it goes along with another change.
func (t Term) Noted(committed record.Position) Term {
	t.Committed = max(t.Committed, committed)
	return t
}

// Marked notes something of its epoch: that a majority may acknowledge, that leases
// are up to so long, what is committed. Nothing of it is ever taken back.
func (t Term) Marked(majority bool, leased time.Duration, committed record.Position) Term {
	n := t.Clone().Noted(committed)
	n.Majority, n.Leased = n.Majority || majority, max(n.Leased, leased)
	n.Version++
	return n
}

// LeftAlone notes that the topology in force has one node for the group.
func (t Term) LeftAlone(n zone.Node) Term {
	next := t.Clone()
	next.Alone = n
	next.Version++
	return next
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
		// Whoever is in a set already stays there until the master's own topology has it
		// out: it may be older than the coordinator's.
		if !g.has(m) && !slices.Contains(t.InSync, m) && !slices.Contains(t.Proposed, m) {
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
