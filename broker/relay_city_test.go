package broker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/zone"
)

// fourCities is a deployment whose city d takes broadcasts from what b has landed.
// Each city X has the groups rz-X and cz-X.
func fourCities(t testing.TB, edits ...string) *zone.Topology {
	t.Helper()
	var b strings.Builder
	b.WriteString("deployment: four\nepoch: {term: 1, number: 1}\nshards: {count: 1, by: modulo, owners: {rza: 0}}\ncities:\n")
	port := 1
	for _, c := range []string{"a", "b", "c", "d"} {
		via := ""
		if c == "d" {
			via = "    broadcasts_via: b\n"
		}
		fmt.Fprintf(&b, "  - name: %s\n%s    routers: [{name: rt-%s, quic: h:%d, peer: h:%d, gossip: h:%d, wan: h:%d}]\n    zones:\n", c, via, c, port, port+1, port+2, port+3)
		port += 4
		for _, kind := range []string{"RZone", "CZone"} {
			z := strings.ToLower(kind[:2]) + c
			standby := "standby: none, "
			if kind == "CZone" {
				standby = ""
			}
			fmt.Fprintf(&b, "      - {name: %s, kind: %s, %sgroups: [{name: %s-g, nodes: [{name: %s-1, client: h:%d, peer: h:%d, gossip: h:%d}]}]}\n", z, kind, standby, z, z, port, port+1, port+2)
			port += 3
		}
	}
	b.WriteString("topics:\n  - {name: rules, max_body: 1MiB, budget: 64MiB, route: {broadcast: city}}\nconsumer_groups:\n  - {name: watch, topics: [rules]}\n")
	text := b.String()
	for i := 0; i+1 < len(edits); i += 2 {
		if !strings.Contains(text, edits[i]) {
			t.Fatalf("the topology does not contain %q", edits[i])
		}
		text = strings.Replace(text, edits[i], edits[i+1], 1)
	}
	topo, err := zone.Parse([]byte(text), "four.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

var fourNodes = []zone.Node{"rza-1", "cza-1", "czb-1", "czc-1", "czd-1"}

// stream publishes n records of rules at the site, some at a time.
func (s *site) stream(prefix string, n int, pace time.Duration) (ids []string) {
	for i := range n {
		id := fmt.Sprintf("%s-%d", prefix, i)
		s.publish(s.message("rules", id))
		ids = append(ids, id)
		time.Sleep(pace)
	}
	return ids
}

// TestRelayedCityIsServedFromLandings: a record crosses the link to the relay city
// once and the link from it to the next once; none crosses from the origin, which
// retains it all the same until every city has it.
func TestRelayedCityIsServedFromLandings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fourCities(t), testLimits(), fourNodes...)
		defer w.close()
		from := w.sites["rza-g"]
		ids := from.stream("rza", 300, 10*time.Millisecond)
		w.settled()
		for _, g := range []zone.Group{"cza-g", "czb-g", "czc-g", "czd-g"} {
			wantEach(t, string(g), w.sites[g].landedIDs("rules"), ids)
		}
		got := w.links.crossed()
		for link, want := range map[way]int{{"a", "b"}: 300, {"a", "c"}: 300, {"b", "d"}: 300, {"a", "d"}: 0, {"c", "d"}: 0} {
			if got[link] != want {
				t.Errorf("%d records crossed from %s to %s, want %d", got[link], link.from, link.to, want)
			}
		}
		for _, o := range from.Status().Outgoing {
			if o.Cursor != 300 {
				t.Errorf("cursor of %s is %d", o.City, o.Cursor)
			}
		}
		found, err := w.sites["czd-g"].FindMessage(t.Context(), "rza-7")
		if err != nil || len(found) != 1 || fmt.Sprint(found[0].Path) != "[a b]" {
			t.Errorf("found %+v, %v", found, err)
		}
	})
}

// relayRun is a deployment in which a publishes while something happens to the
// cities that serve d.
type relayRun struct {
	*world
	t    *testing.T
	from *site
	ids  []string
	n    int
}

func newRelayRun(t *testing.T, edits ...string) *relayRun {
	w := newWorld(t, fourCities(t, edits...), testLimits(), fourNodes...)
	return &relayRun{world: w, t: t, from: w.sites["rza-g"]}
}

// run publishes for a while, ten records a second.
func (r *relayRun) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); r.n++ {
		r.ids = append(r.ids, r.from.stream(fmt.Sprintf("rza-%d", r.n), 1, 100*time.Millisecond)...)
	}
}

// within publishes until d has everything, which must be so within the time.
func (r *relayRun) within(d time.Duration, what string) {
	r.t.Helper()
	for end := time.Now().Add(d); ; {
		r.run(200 * time.Millisecond)
		synctest.Wait()
		if len(r.sites["czd-g"].landedIDs("rules")) >= len(r.ids) {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("%s: d has %d of %d after %v", what, len(r.sites["czd-g"].landedIDs("rules")), len(r.ids), d)
		}
	}
}

// each fails unless the cities have everything once, in order.
func (r *relayRun) each(groups ...zone.Group) {
	r.t.Helper()
	r.settled()
	for _, g := range groups {
		wantEach(r.t, string(g), r.sites[g].landedIDs("rules"), r.ids)
	}
}

// TestChildGoesOnWhenItsParentDies: another city that has landed the records serves
// the child, then the declared one again; the origin sends it nothing.
func TestChildGoesOnWhenItsParentDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelayRun(t)
		defer r.close()
		r.run(5 * time.Second)
		r.sites["czb-g"].down()
		r.links.crossed()
		r.within(5*time.Second, "the parent is down")
		r.run(3 * time.Second)
		got := r.links.crossed()
		if got[way{"a", "d"}] != 0 || got[way{"c", "d"}] < 30 {
			t.Errorf("while the parent is down: %v", got)
		}
		r.sites["czb-g"].up()
		r.run(time.Minute) // longer than the rest of one failure or two
		r.links.crossed()
		r.run(5 * time.Second)
		time.Sleep(time.Second)
		got = r.links.crossed()
		if got[way{"b", "d"}] < 49 || got[way{"c", "d"}] > 0 || got[way{"a", "d"}] > 0 {
			t.Errorf("after the parent's return: %v", got)
		}
		r.each("cza-g", "czb-g", "czc-g", "czd-g")
	})
}

// TestChildLeavesASilentParent: nothing comes from the parent, although all
// connections stand.
func TestChildLeavesASilentParent(t *testing.T) {
	for name, cut := range map[string][]way{
		"its link to the child carries nothing": {{"b", "d"}},
		"its own records do not come":           {{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRelayRun(t)
				defer r.close()
				r.run(5 * time.Second)
				for _, c := range cut {
					r.links.set(c, true)
				}
				r.links.crossed()
				r.within(6*time.Second, "the parent is silent")
				r.run(20 * time.Second)
				got := r.links.crossed()
				// While the declared parent is tried again, who serves goes on.
				if got[way{"a", "d"}] > 0 || got[way{"c", "d"}] < 200 {
					t.Errorf("while the parent is silent: %v", got)
				}
				for _, c := range cut {
					r.links.set(c, false)
				}
				r.run(3 * time.Minute)
				r.links.crossed()
				r.run(5 * time.Second)
				time.Sleep(time.Second)
				if got := r.links.crossed(); got[way{"b", "d"}] < 49 || got[way{"c", "d"}] > 0 {
					t.Errorf("after the parent speaks again: %v", got)
				}
				r.each("cza-g", "czb-g", "czc-g", "czd-g")
			})
		})
	}
}

// TestW1_SlowChildCostsItsParentNothing: the link from the relay city to its child
// takes most of a second for a frame. Parent and siblings have each record as soon
// as without it, and the child has all of them in the end.
func TestW1_SlowChildCostsItsParentNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelayRun(t)
		defer r.close()
		r.run(time.Second)
		r.links.slowed(way{"b", "d"}, 800*time.Millisecond)
		behind := false
		for range 100 {
			r.run(100 * time.Millisecond)
			for _, g := range []zone.Group{"cza-g", "czb-g", "czc-g"} {
				if n := len(r.sites[g].landedIDs("rules")); n < len(r.ids) {
					t.Fatalf("%s has %d of %d records 100ms after the last", g, n, len(r.ids))
				}
			}
			behind = behind || len(r.sites["czd-g"].landedIDs("rules")) < len(r.ids)
		}
		if !behind {
			t.Error("the link was not slow: the child was never behind")
		}
		r.links.slowed(way{"b", "d"}, 0)
		r.each("cza-g", "czb-g", "czc-g", "czd-g")
	})
}

// TestOriginServesAtLast: no other city has the records.
func TestOriginServesAtLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelayRun(t)
		defer r.close()
		r.run(5 * time.Second)
		r.sites["czb-g"].down()
		r.sites["czc-g"].down()
		r.links.crossed()
		r.within(5*time.Second, "nobody else has them")
		r.run(5 * time.Second)
		if got := r.links.crossed(); got[way{"a", "d"}] < 50 {
			t.Errorf("%v", got)
		}
		r.sites["czb-g"].up()
		r.sites["czc-g"].up()
		r.run(2 * time.Minute)
		r.links.crossed()
		r.run(5 * time.Second)
		time.Sleep(time.Second)
		if got := r.links.crossed(); got[way{"b", "d"}] < 49 || got[way{"a", "d"}] > 0 {
			t.Errorf("after the parent's return: %v", got)
		}
		r.each("cza-g", "czb-g", "czc-g", "czd-g")
	})
}

// TestRelayedCityGetsEachRecordOnceThroughAnyFault is I2 and I3 of pulls: cities die,
// are wiped and put back to old copies, links are cut in either direction, origins
// restart and come back as an older copy. Every city ends with each record once, in
// order, and the origin has heard of it.
func TestRelayedCityGetsEachRecordOnceThroughAnyFault(t *testing.T) {
	for seed := range *relaySeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { citiesUnderFaults(t, seed) })
		})
	}
}

func citiesUnderFaults(t *testing.T, seed uint64) {
	limits := testLimits()
	limits.SnapshotBytes = 20 << 10
	edits := []string{}
	if seed%3 == 0 { // two cities between an origin and the last
		edits = []string{"  - name: b\n", "  - name: b\n    broadcasts_via: c\n"}
	}
	if seed%2 == 0 {
		edits = append(edits, "route: {broadcast: city}", "route: {broadcast: zone}")
	}
	nodes := append([]zone.Node{"rzb-1", "rzc-1", "rzd-1"}, fourNodes...)
	w := newWorld(t, fourCities(t, edits...), limits, nodes...)
	defer w.close()
	w.rng = rand.New(rand.NewPCG(seed, 1))
	origins := []zone.Group{"rza-g", "rzc-g"}
	targets := []zone.Group{"czb-g", "czb-g", "czc-g", "czd-g", "czd-g", "rza-g", "rzc-g"}
	cities := []zone.City{"a", "b", "c", "d"}
	kept := map[zone.Group]*disk.Mem{}
	for round := range 25 {
		for _, g := range origins {
			for i := range 1 + w.rng.IntN(20) {
				s := w.sites[g]
				s.publish(s.message("rules", fmt.Sprintf("%s-%d-%d", s.Zone().Name, round, i)))
			}
		}
		time.Sleep(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
		g := targets[w.rng.IntN(len(targets))]
		s := w.sites[g]
		wipe := g != "rza-g" && g != "rzc-g" // what an origin loses is lost
		switch w.rng.IntN(9) {
		case 0, 1:
			s.crash()
		case 2:
			s.bounce()
		case 3:
			kept[g] = s.mem.Crash(w.rng)
		case 4:
			if old := kept[g]; old != nil {
				s.replace(old)
				delete(kept, g)
			}
		case 5:
			if wipe {
				s.replace(disk.NewMem())
			}
		default:
			from, to := cities[w.rng.IntN(4)], cities[w.rng.IntN(4)]
			w.links.set(way{from, to}, w.rng.IntN(2) == 0)
		}
	}
	for _, from := range cities {
		for _, to := range cities {
			w.links.set(way{from, to}, false)
		}
	}
	time.Sleep(10 * time.Second) // streams in which frames vanished are found out
	for _, g := range origins {
		s := w.sites[g]
		s.publish(s.message("rules", string(s.Zone().Name)+"-last"))
	}
	w.settledAt("cza-g", "czb-g", "czc-g", "czd-g", "rzd-g")
	var ids []string
	for _, g := range origins {
		ids = append(ids, w.sites[g].publishedIDs("rules")...)
	}
	check := []zone.Group{"cza-g", "czb-g", "czc-g", "czd-g"}
	if seed%2 == 0 {
		check = append(check, "rzd-g", "rzb-g")
	}
	for _, g := range check {
		wantEach(t, fmt.Sprintf("seed %d, %s", seed, g), w.sites[g].landedIDs("rules"), ids)
	}
	for _, s := range w.sites {
		wantSlots(t, s.station)
	}
}

// P5: all cities have links to all others, and a consumer in one of them publishes
// again what it receives, under the same message id. Each city stores each of the two
// once: the second is a message of its own, with a way and hops of its own.
func TestP5_RepublishedBroadcastIsAMessageOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fourCities(t), testLimits(), append([]zone.Node{"rzb-1", "rzd-1"}, fourNodes...)...)
		defer w.close()
		from, again := w.sites["rza-g"], w.sites["rzd-g"]
		ids := from.stream("rza", 50, 10*time.Millisecond)
		w.settled()
		for id := range w.sites["czd-g"].drain("watch", "rules") {
			again.publish(again.message("rules", id))
		}
		w.settled()
		for _, g := range []zone.Group{"cza-g", "czb-g", "czc-g", "czd-g"} {
			copies := map[string]int{}
			for _, id := range w.sites[g].landedIDs("rules") {
				copies[id]++
			}
			for _, id := range ids {
				if copies[id] != 2 {
					t.Fatalf("%s has %d copies of %s, want the message and the one published again", g, copies[id], id)
				}
			}
			found, err := w.sites[g].FindMessage(t.Context(), ids[7])
			if err != nil || len(found) != 2 {
				t.Fatalf("%s: %+v, %v", g, found, err)
			}
			for _, f := range found {
				if len(f.Path) > 2 || f.Path[0] != "a" && f.Original.Group == "rza-g" || f.Path[0] != "d" && f.Original.Group == "rzd-g" {
					t.Errorf("%s: of %s over %v", g, f.Original.Group, f.Path)
				}
			}
		}
		time.Sleep(time.Minute) // nothing goes round
		for _, g := range []zone.Group{"cza-g", "czb-g", "czc-g", "czd-g"} {
			if n := len(w.sites[g].landedIDs("rules")); n != 100 {
				t.Errorf("%s has %d", g, n)
			}
		}
	})
}

// TestRecordsPassNoCityThatTheyMayNotEnter is I7: the declared relay city is one that
// the residency excludes; the child is served by a city that has the records.
func TestRecordsPassNoCityThatTheyMayNotEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fourCities(t, "route: {broadcast: city}", "residency: [a, c, d], route: {broadcast: city}"), testLimits(), fourNodes...)
		defer w.close()
		from := w.sites["rza-g"]
		ids := from.stream("rza", 100, 10*time.Millisecond)
		w.settled()
		for _, g := range []zone.Group{"cza-g", "czc-g", "czd-g"} {
			wantEach(t, string(g), w.sites[g].landedIDs("rules"), ids)
		}
		for link, n := range w.links.crossed() {
			if (link.from == "b" || link.to == "b") && n > 0 {
				t.Errorf("%d records crossed from %s to %s", n, link.from, link.to)
			}
		}
	})
}
