package coordinator

import (
	"slices"

	"github.com/mqrouter/mqrouter/zone"
)

// Group is what a coordinator has to know of a broker group; it comes from the
// topology in force.
type Group struct {
	Name zone.Group
	// Members are the group's nodes, at most MaxMembers; of logs that are equal, that
	// of the earlier member wins.
	Members []zone.Node
}

// has says whether the node is a member.
func (g Group) has(n zone.Node) bool { return slices.Contains(g.Members, n) }

// answers is how many of an in-sync set of n must have answered so that one of them
// has any record that was acknowledged.
func (t Term) answers(n int) int {
	if !t.Majority {
		return 1 // each of them has every one
	}
	majority := n/2 + 1
	return n - majority + 1
}

// ahead says whether the log of a reaches further than that of b: by the epoch of its
// last lineage, then by its end.
func ahead(a, b Standing) bool {
	if a.Epoch != b.Epoch {
		return a.Epoch > b.Epoch
	}
	return a.End > b.End
}

// level says whether the two logs hold the same: one lineage is written by one
// master, so that equal ends mean equal bytes.
func level(a, b Standing) bool { return a.Epoch == b.Epoch && a.End == b.End }
