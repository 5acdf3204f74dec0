package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

// printPaths shows the ways between cities that are not simply the direct link:
// a table of what is as it should be would hide what is not.
func printPaths(w io.Writer, all []admin.Status) {
	t := newTable("PATH", "CLASS", "ON THE WAY", "SESSIONS", "FOR", "CHANGES", "WHY")
	for _, s := range all {
		for _, p := range s.Paths {
			way, why := "direct link", p.Reason
			switch {
			case p.Via != "":
				way = "via " + p.Via
				if p.Up {
					why += fmt.Sprintf("; back when it has worked for %v", p.Return)
				}
			case !p.Up:
				way, why = "none", "direct link down"
				if len(p.Detours) > 0 {
					why += "; about to go via " + strings.Join(p.Detours, ", ")
				} else {
					why += ", and no other city reaches " + p.City
				}
			case p.Detoured > 0:
				why = "direct link works again"
			default:
				continue
			}
			since := "-"
			if !p.Since.IsZero() {
				since = age(time.Since(p.Since))
			}
			t.row(s.Node+" - "+p.City, p.Class, way, fmt.Sprintf("%d direct, %d round", p.Direct, p.Detoured), since, p.Changes, why)
		}
	}
	section(w, "detours: every city is reached over its direct links", t)
}
