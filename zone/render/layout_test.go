package render

import (
	"fmt"
	"testing"

	"github.com/mqrouter/mqrouter/zone/sample"
)

func (b box) meets(o box) bool {
	return b.x < o.x+o.w && o.x < b.x+b.w && b.y < o.y+o.h && o.y < b.y+b.h
}

func (b box) holds(o box) bool {
	return b.x <= o.x && o.x+o.w <= b.x+b.w && b.y <= o.y && o.y+o.h <= b.y+b.h
}

// TestNothingLiesUponText draws deployments of 1 to 12 cities and checks that no
// two texts overlap, that each is inside the picture, and that no line runs
// through one.
func TestNothingLiesUponText(t *testing.T) {
	sampled := parse(t, sample.YAML)
	plans := map[string]*scene{"sample": newScene(sampled, Options{Topic: sampled.FindTopic("transfer")})}
	for _, cities := range []int{1, 2, 3, 4, 7, 12} {
		for _, zones := range []int{1, 4} {
			topo := deployment(t, cities, zones, 1+cities%5, zones == 4)
			plans[fmt.Sprintf("%d cities of %d zones", cities, zones)] = newScene(topo, Options{Topic: topo.Topics[0]})
		}
	}
	crowded := deployment(t, 3, 40, 9, false)
	plans["crowded"] = newScene(crowded, Options{Topic: crowded.Topics[0]})
	for name, s := range plans {
		l := lay(newPlan(s))
		c := paint(l, ThemeLight)
		checkLabels(t, name, l, c)
		for _, w := range l.wires {
			checkLine(t, name, c, curvePoints(l, w.from, w.to, 0))
		}
		for _, r := range l.routes {
			checkLine(t, name, c, r.walk(l))
		}
		for i, a := range l.cities {
			for _, b := range l.cities[i+1:] {
				if a.box.meets(b.box) {
					t.Errorf("%s: cities %s and %s overlap", name, a.city.name, b.city.name)
				}
			}
			if a.box.meets(l.band) {
				t.Errorf("%s: city %s lies upon the band", name, a.city.name)
			}
		}
	}
}

func checkLabels(t *testing.T, name string, l *layout, c *canvas) {
	t.Helper()
	picture := box{0, 0, l.width, l.height}
	for i, a := range c.labels {
		if !picture.holds(a.box) {
			t.Errorf("%s: %q at %v is outside of %v", name, a.text, a.box, picture)
		}
		for _, b := range c.labels[i+1:] {
			if a.box.meets(b.box) {
				t.Errorf("%s: %q lies upon %q: %v, %v", name, a.text, b.text, a.box, b.box)
			}
		}
	}
	for _, p := range l.cities {
		for _, k := range p.cards {
			if !p.box.holds(k.box) {
				t.Errorf("%s: card %v is outside of city %s %v", name, k.box, p.city.name, p.box)
			}
		}
	}
}

// curvePoints samples the curve that layout.curve writes.
func curvePoints(l *layout, from, to point, shift int) []point {
	var x1, y1, x2, y2, x3, y3 int
	if _, err := fmt.Sscanf(l.curve(from, to, shift), " C%d %d %d %d %d %d", &x1, &y1, &x2, &y2, &x3, &y3); err != nil {
		panic(err)
	}
	var all []point
	for i := range 25 {
		u := float64(i) / 24
		v := 1 - u
		at := func(a, b, c, d int) int {
			return int(v*v*v*float64(a) + 3*v*v*u*float64(b) + 3*v*u*u*float64(c) + u*u*u*float64(d))
		}
		all = append(all, point{at(from.x, x1, x2, x3), at(from.y, y1, y2, y3)})
	}
	return all
}

// walk returns the corners of a route, with its curve sampled.
func (r *route) walk(l *layout) []point {
	if !r.band {
		return r.points
	}
	all := append([]point{}, r.points[:2]...)
	all = append(all, curvePoints(l, r.points[2], r.points[3], 12)...)
	return append(all, r.points[4:]...)
}

// checkLine checks that no piece of the line meets a text.
func checkLine(t *testing.T, name string, c *canvas, points []point) {
	t.Helper()
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		piece := box{min(a.x, b.x), min(a.y, b.y), max(1, max(a.x, b.x)-min(a.x, b.x)), max(1, max(a.y, b.y)-min(a.y, b.y))}
		for _, label := range c.labels {
			if piece.meets(label.box) {
				t.Errorf("%s: a line from %v to %v runs through %q at %v", name, a, b, label.text, label.box)
				return
			}
		}
	}
}

func TestCitiesWithManyZonesAreSummedUp(t *testing.T) {
	p := newPlan(newScene(deployment(t, 2, 100, 2, false), Options{}))
	for _, c := range p.cities {
		if len(c.cards) != maxCards {
			t.Errorf("%d cards, want %d", len(c.cards), maxCards)
		}
		if got, want := c.cards[maxCards-1].lines[0].left, "and 78 more zones"; got != want {
			t.Errorf("the last card says %q, want %q", got, want)
		}
	}
}
