package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// printMembers shows the nodes of broker groups with several: who is master, and how far
// the others are.
func printMembers(w io.Writer, all []admin.Status) {
	t := newTable("GROUP", "NODE", "ROLE", "EPOCH", "COMMITTED", "END", "STATE")
	for _, s := range all {
		if m := s.Member; m != nil {
			t.row(s.Group, s.Node, m.Role, fmt.Sprint(m.Epoch), fmt.Sprint(m.Committed), fmt.Sprint(m.End), memberNote(s.Node, m, all))
		}
	}
	sectionOfSome(w, t)
}

// memberNote says how a member stands to its group.
func memberNote(node string, m *admin.Member, all []admin.Status) string {
	var notes []string
	switch {
	case m.Problem != "":
		notes = append(notes, m.Problem)
	case m.Role == "master":
		notes = append(notes, fmt.Sprintf("%s in sync", count(len(m.InSync), "node", "nodes")))
		if len(m.Proposed) > 0 {
			notes = append(notes, "becoming "+strings.Join(m.Proposed, " "))
		}
	case m.Following:
		notes = append(notes, "follows "+m.Master)
	case m.FollowErr != "":
		notes = append(notes, m.FollowErr)
	case m.Master == "":
		notes = append(notes, "the group has no master")
	}
	for _, s := range all { // what its master says of it
		if s.Member == nil || s.Member.Role != "master" {
			continue
		}
		if i := slices.IndexFunc(s.Member.Replicas, func(r admin.Replica) bool { return r.Node == node }); i >= 0 {
			r := s.Member.Replicas[i]
			note := r.Phase
			if r.Behind > 0 {
				note += fmt.Sprintf(", %d bytes behind", r.Behind)
			}
			if r.Fault != "" {
				note += ", " + r.Fault
			}
			notes = append(notes, note)
		}
	}
	if m.CoordinatorErr != "" {
		notes = append(notes, "coordinator: "+m.CoordinatorErr)
	}
	return orDash(strings.Join(notes, "; "))
}
