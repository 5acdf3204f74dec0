package render

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestTopicsAreShownWhereTheyGo compares the links and zones that a topic lights
// up with what its route means.
func TestTopicsAreShownWhereTheyGo(t *testing.T) {
	topo := parse(t, sample.YAML)
	relayed := parse(t, bytes.Replace(sample.YAML, []byte("  - name: shenzhen\n"), []byte("  - name: shenzhen\n    broadcasts_via: hangzhou\n"), 1))
	for _, c := range []struct {
		topo        *zone.Topology
		topic, from string
		lands       string
		links       string // "0>1": from city 0 to city 1
	}{
		{topo, "transfer", "rz05", "rz01 rz02 rz03 rz04 rz05", "2>0 2>1"},
		{topo, "transfer", "", "rz01 rz02 rz03 rz04 rz05", "0>1 1>0 0>2 2>0 1>2 2>1"},
		{topo, "member", "rz01", "cz-sh cz-hz cz-sz", "0>1 0>2"},
		{relayed, "member", "rz01", "cz-sh cz-hz cz-sz", "0>1 1>2"},
		{relayed, "member", "", "cz-sh cz-hz cz-sz", "0>1 1>0 2>0 1>2 2>1"},
		{relayed, "transfer", "rz01", "rz01 rz02 rz03 rz04 rz05", "0>1 0>2"},
		{topo, "member", "rz03", "cz-sh cz-hz cz-sz", "1>0 1>2"},
	} {
		o := Options{Topic: c.topo.FindTopic(zone.Topic(c.topic))}
		if c.from != "" {
			o.From = c.topo.FindZone(zone.Zone(c.from))
		}
		s := newScene(c.topo, o)
		var lands, links []string
		for _, city := range s.cities {
			for _, z := range city.zones {
				if z.lands {
					lands = append(lands, z.name)
				}
			}
		}
		for _, l := range s.links {
			if l.ab {
				links = append(links, fmt.Sprintf("%d>%d", l.a, l.b))
			}
			if l.ba {
				links = append(links, fmt.Sprintf("%d>%d", l.b, l.a))
			}
		}
		if got := strings.Join(lands, " "); got != c.lands {
			t.Errorf("%s from %q lands in %q, want %q", c.topic, c.from, got, c.lands)
		}
		if got := strings.Join(links, " "); got != c.links {
			t.Errorf("%s from %q takes %q, want %q", c.topic, c.from, got, c.links)
		}
	}
}

// TestDiffMarksWhatDiffers changes the sample and looks for the signs.
func TestDiffMarksWhatDiffers(t *testing.T) {
	older := parse(t, sample.YAML)
	text := string(sample.YAML)
	for _, edit := range [][2]string{
		{"rz01: 0-19", "rz01: 0-9"}, {"rz02: 20-39", "rz02: 10-39"},
		{"epoch: {term: 1, number: 1}", "epoch: {term: 1, number: 2}"},
		{"remote: rz03", "remote: rz04"},
		{"name: rt-sz-2", "name: rt-sz-9"},
		{"name: rz05-a\n", "name: rz05-b\n"},
	} {
		if !strings.Contains(text, edit[0]) {
			t.Fatalf("the sample has no %q", edit[0])
		}
		text = strings.Replace(text, edit[0], edit[1], 1)
	}
	s := merge(newScene(older, Options{}), newScene(parse(t, []byte(text)), Options{}))
	var got []string
	note := func(m mark, what string) {
		if m != same {
			got = append(got, markSign(m)+what)
		}
	}
	for _, c := range s.cities {
		note(c.mark, c.name)
		for _, z := range c.zones {
			note(z.mark, z.name)
			for _, g := range z.groups {
				note(g.mark, g.name)
			}
		}
		for _, n := range c.routers {
			note(n.mark, n.name)
		}
	}
	for _, y := range s.standbys {
		note(y.mark, y.from+" to "+y.to)
	}
	slices.Sort(got)
	want := []string{"+ rt-sz-9", "+ rz01 to rz04", "+ rz05-b", "- rt-sz-2", "- rz01 to rz03", "- rz05-a", "~ rz01", "~ rz02", "~ rz05"}
	if !slices.Equal(got, want) {
		t.Errorf("marks\n%q, want\n%q", got, want)
	}
	for _, f := range []Format{SVG, DOT, Mermaid} {
		b, err := DrawDiff(older, parse(t, []byte(text)), f, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, sign := range []string{"+ rt-sz-9", "- rz05-a", "~ rz01"} {
			if !bytes.Contains(b, []byte(sign)) {
				t.Errorf("%s does not show %q", f, sign)
			}
		}
		if f == SVG {
			wellFormed(t, b)
		} else {
			checkGraph(t, f, b)
			acceptedByGraphviz(t, f, b)
		}
	}
}

// TestDiffOfCitiesAndMoves draws cities that came and went.
func TestDiffOfCitiesAndMoves(t *testing.T) {
	small, large := deployment(t, 3, 2, 2, false), deployment(t, 5, 2, 2, false)
	s := merge(newScene(small, Options{}), newScene(large, Options{}))
	if s.cities[4].mark != added || s.cities[4].zones[0].mark != added || s.links[len(s.links)-1].mark != added {
		t.Error("a new city is not marked")
	}
	s = merge(newScene(large, Options{}), newScene(small, Options{}))
	if len(s.cities) != 5 || s.cities[3].mark != removed || s.cities[3].zones[0].mark != removed || len(s.links) != 10 || s.links[9].mark != removed {
		t.Error("a city that is gone is not shown as such")
	}
	l := lay(newPlan(s))
	checkLabels(t, "diff", l, paint(l, ThemeDark))
}
