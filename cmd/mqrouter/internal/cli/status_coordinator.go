package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// printCoordinators shows the voters of each city, and the broker groups as those
// that lead have them.
func printCoordinators(w io.Writer, all []admin.Status) {
	voters := newTable("CITY", "VOTER", "STATE", "LEADER", "LEADERSHIP", "DECISION", "QUORUM")
	groups := newTable("CITY", "COORDINATED GROUP", "EPOCH", "MASTER", "LEASE", "IN SYNC", "NOTE")
	for _, s := range all {
		c := s.Coordinator
		if c == nil {
			continue
		}
		voters.row(s.City, s.Node, c.State, orDash(c.Leader), fmt.Sprint(c.Leadership), fmt.Sprint(c.Applied), orDash(strings.Join(nodesOf(c.Servers), " ")))
		for _, g := range c.Groups {
			groups.row(s.City, g.Group, fmt.Sprint(g.Epoch), orDash(g.Master), leaseWord(g), orDash(strings.Join(g.InSync, " ")), orDash(groupNote(g)))
		}
	}
	sectionOfSome(w, voters)
	sectionOfSome(w, groups)
}

func leaseWord(g admin.CoordinatedGroup) string {
	switch {
	case g.Master == "":
		return "-"
	case g.Leased:
		return "held"
	}
	return "over"
}

// groupNote says what an operator should know of a group.
func groupNote(g admin.CoordinatedGroup) string {
	var notes []string
	if g.Waiting != "" {
		notes = append(notes, g.Waiting)
	}
	if len(g.Proposed) > 0 {
		notes = append(notes, "becoming "+strings.Join(g.Proposed, " "))
	}
	if l := g.Lost; l != nil {
		notes = append(notes, fmt.Sprintf("epoch %d gave up what was acknowledged from %d on, at least up to %d", l.Epoch, l.From, l.Known))
	}
	return strings.Join(notes, "; ")
}

// nodesOf cuts the store off the servers of a quorum.
func nodesOf(servers []string) []string {
	var all []string
	for _, s := range servers {
		n, _, _ := strings.Cut(s, "@")
		all = append(all, n)
	}
	return all
}

// orDash stands for nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
