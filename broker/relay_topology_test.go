package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// TestWhoServesFollowsTheTopology: what a topology says of who serves a city counts
// for flows that are never idle, too, and a change loses and repeats nothing.
func TestWhoServesFollowsTheTopology(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelayRun(t)
		defer r.close()
		r.run(5 * time.Second)
		for i, step := range []struct {
			via  string
			from zone.City
		}{{"broadcasts_via: c", "c"}, {"", "a"}, {"broadcasts_via: b", "b"}, {"", "a"}, {"broadcasts_via: c", "c"}} {
			topo := fourCities(t, "number: 1}", fmt.Sprintf("number: %d}", i+2), "broadcasts_via: b", step.via)
			for _, s := range r.sites {
				if err := s.ApplyTopology(t.Context(), topo); err != nil {
					t.Fatal(err)
				}
			}
			r.run(10 * time.Second) // whoever is on its way arrives
			r.links.crossed()       // from here on
			r.run(5 * time.Second)
			crossed := r.links.crossed()
			for _, c := range []zone.City{"a", "b", "c"} {
				n := crossed[way{c, "d"}]
				if c == step.from && n < 40 || c != step.from && n > 0 {
					t.Errorf("step %d: %d of some 50 records crossed from %s to d", i+1, n, c)
				}
			}
		}
		r.each("cza-g", "czb-g", "czc-g", "czd-g")
	})
}
