package render

import (
	"fmt"
)

// Sizes of the picture, in pixels at 100 %.
const (
	fontSize   = 11
	titleSize  = 13
	charWidth  = 7  // of a letter of fontSize in any monospaced face: 0.6 em, rounded up
	titleWidth = 8  // likewise of titleSize
	lineHeight = 15 // from one line of a card to the next
	cardWidth  = 236
	cardPad    = 9
	chipHeight = 20
	cityPad    = 14
	gutterBase = 12 // gutter or gap without lanes
	laneWidth  = 6  // for each standby that runs through
	headHeight = 26
	margin     = 24
	citySpace  = 28 // between two cities of a row
	rowWidth   = 1500
)

// maxCards is how many zones of a city are drawn; more would not be readable.
// The others are counted on a card.
const maxCards = 24

// plan is a scene laid out as rows of cities and grids of cards: everything
// that decides where lines run, before there are coordinates.
type plan struct {
	scene  *scene
	cities []*cityPlan // as scene.cities
	upper  int         // how many of them are in the upper row
	routes []*route
}

// cityPlan is a city's grid. Gutter c is right of column c, gap r is below row r.
type cityPlan struct {
	city    *city
	cards   []*card
	cols    int
	rows    int
	gutters []int // lanes in each gutter
	gaps    []int // lanes in each gap
	flipped bool  // of the lower row: routers above, name below

	box  box // of layout
	grid int // y of the first row of cards, of layout
}

// card is a zone, or the sum of those that are not drawn.
type card struct {
	zone     *zoneView // nil for the sum
	col, row int
	lines    []line
	ports    int // standbys that start or end here
	used     int // of these: those that have their place, of layout
	box      box
}

// line is one line of a card.
type line struct {
	left, right string
	style       string // class of the text
	mark        mark
}

// route is a standby between two cards that are drawn, or two that are each
// other's.
type route struct {
	standby    standby
	mutual     bool
	from, to   *card
	fc, tc     *cityPlan
	fl, tl     int // lane in the gutter of from's column and of to's
	gap        int // lane in the gap below from's row; -1 for none
	sameGutter bool
	path       string // of layout
	points     []point
	band       bool // crosses the band
}

// newPlan decides rows, grids and lanes.
func newPlan(s *scene) *plan {
	p := &plan{scene: s, upper: (len(s.cities) + 1) / 2}
	cols := map[bool]int{true: columns(p.upper), false: columns(len(s.cities) - p.upper)}
	where := map[string]*card{}
	cityOf := map[*card]*cityPlan{}
	for i, c := range s.cities {
		cp := newCityPlan(c, cols[i < p.upper])
		cp.flipped = i >= p.upper
		p.cities = append(p.cities, cp)
		for _, card := range cp.cards {
			cityOf[card] = cp
			if z := card.zone; z != nil && (where[z.name] == nil || z.mark != removed) {
				where[z.name] = card
			}
		}
	}
	drawn := map[standby]*route{}
	for _, s := range s.standbys {
		from, to := where[s.from], where[s.to]
		if from == nil || to == nil {
			continue
		}
		if r := drawn[standby{s.to, s.from, s.remote, s.mark}]; r != nil {
			r.mutual = true
			continue
		}
		r := newRoute(s, from, to, cityOf[from], cityOf[to])
		drawn[s] = r
		p.routes = append(p.routes, r)
	}
	return p
}

// columns returns how many cards stand side by side when a row has that many
// cities.
func columns(cities int) int {
	if cities == 0 {
		return 1
	}
	return min(6, max(2, rowWidth/cities/(cardWidth+gutterBase)))
}

func newCityPlan(c *city, cols int) *cityPlan {
	zones := c.zones
	hidden := 0
	if len(zones) > maxCards {
		hidden = len(zones) - maxCards + 1
		zones = zones[:maxCards-1]
	}
	cp := &cityPlan{city: c}
	for _, z := range zones {
		cp.cards = append(cp.cards, &card{zone: z, lines: cardLines(z)})
	}
	if hidden > 0 {
		cp.cards = append(cp.cards, &card{lines: []line{{left: fmt.Sprintf("and %d more zones", hidden), style: "t"}}})
	}
	for n := len(cp.cards); cols*cols*3/2 < n; {
		cols++
	}
	cp.cols = max(1, min(cols, len(cp.cards)))
	cp.rows = max(1, (len(cp.cards)+cp.cols-1)/cp.cols)
	cp.cols = max(1, (len(cp.cards)+cp.rows-1)/cp.rows) // no narrower than it has to be, no wider
	for i, card := range cp.cards {
		card.col, card.row = i%cp.cols, i/cp.cols
	}
	cp.gutters, cp.gaps = make([]int, cp.cols), make([]int, cp.rows)
	return cp
}

// newRoute reserves the lanes of a standby.
func newRoute(s standby, from, to *card, fc, tc *cityPlan) *route {
	r := &route{standby: s, from: from, to: to, fc: fc, tc: tc, gap: -1, band: fc != tc}
	from.ports++
	to.ports++
	lane := func(lanes []int, i int) int { lanes[i]++; return lanes[i] - 1 }
	r.fl = lane(fc.gutters, from.col)
	switch {
	case r.band:
		r.tl = lane(tc.gutters, to.col)
	case from.col == to.col:
		r.tl, r.sameGutter = r.fl, true
	default:
		r.tl, r.gap = lane(fc.gutters, to.col), lane(fc.gaps, from.row)
	}
	return r
}

// maxGroupLines is how many broker groups a card names.
const maxGroupLines = 6

// cardLines is the text of a zone's card.
func cardLines(z *zoneView) []line {
	kind := z.kind
	if z.kind == "GZone" {
		kind = "GZone, active"
		if z.idle {
			kind = "GZone, standby"
		}
	}
	lines := []line{fit(z.name, kind, "t", z.mark)}
	if z.shards != "" {
		lines = append(lines, fit("shards", z.shards, "s", same))
	}
	for i, g := range z.groups {
		if i == maxGroupLines-1 && len(z.groups) > maxGroupLines {
			lines = append(lines, line{left: fmt.Sprintf("and %d more groups", len(z.groups)-i), style: "s"})
			break
		}
		lines = append(lines, fit(g.name, "slots "+g.slots, "s", g.mark))
	}
	if z.lands {
		lines = append(lines, landLines(z.consumers)...)
	}
	return lines
}

// maxConsumerLines is how many consumer groups a card names.
const maxConsumerLines = 4

func landLines(consumers []string) []line {
	lines := []line{fit("lands here", "", "h", same)}
	for i, name := range consumers {
		if i == maxConsumerLines-1 && len(consumers) > maxConsumerLines {
			lines = append(lines, line{right: fmt.Sprintf("and %d more", len(consumers)-i), style: "h"})
			break
		}
		if ln := fit("lands here", name, "h", same); i == 0 {
			lines[0] = ln
			continue
		}
		lines = append(lines, fit("", name, "h", same))
	}
	return lines
}

// markSign begins what a diff shows, so that colour is not the only sign.
func markSign(m mark) string { return [...]string{"", "+ ", "- ", "~ "}[m] }

// fit shortens both texts so that they stand side by side on a card. The right
// one gives way first.
func fit(left, right, style string, m mark) line {
	width := charWidth
	if style == "t" {
		width = titleWidth
	}
	room := (cardWidth - 2*cardPad) / width
	l := line{left: shorten(markSign(m)+left, max(room*3/5, room-2-runes(right))), style: style, mark: m}
	l.right = shorten(right, room-2-runes(l.left))
	return l
}

func runes(s string) int { return len([]rune(s)) }

// shorten cuts a text in its end; the last letter says that it was.
func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:max(0, most-1)]) + "…"
}
