package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

type point struct{ x, y int }

type box struct{ x, y, w, h int }

// chip is a router or a cache.
type chip struct {
	node nodeView
	kind string // class: router or cache
	box  box
}

// wire is a link with coordinates.
type wire struct {
	link
	from, to point
	path     string
}

// layout is a plan with coordinates.
type layout struct {
	*plan
	width, height int
	chips         []chip
	wires         []wire
	band          box // between the rows; lines only
	legend        int // y
}

// lay gives everything its place.
func lay(p *plan) *layout {
	l := &layout{plan: p}
	upper, lower := p.cities[:p.upper], p.cities[p.upper:]
	heights := [2]int{}
	for i, row := range [][]*cityPlan{upper, lower} {
		width := -citySpace
		for _, c := range row {
			c.measure()
			width += c.box.w + citySpace
			heights[i] = max(heights[i], c.box.h)
		}
		l.width = max(l.width, width)
	}
	l.width = max(l.width+2*margin, minWidth)
	top := margin + 2*lineHeight + 10
	if p.scene.topic != nil {
		top += lineHeight
	}
	band := bandHeight(len(p.cities))
	l.band = box{margin, top + heights[0], l.width - 2*margin, band}
	l.place(upper, func(c *cityPlan) int { return l.band.y - c.box.h })
	l.place(lower, func(*cityPlan) int { return l.band.y + band })
	l.legend = l.band.y + band + heights[1] + margin
	l.height = l.legend + legendHeight(p.scene, l.width) + margin
	l.wireUp()
	for _, r := range p.routes {
		l.run(r)
	}
	return l
}

// minWidth holds the legend and the title of a small topology, in pixels.
const minWidth = 720

// bandHeight grows with the lines that cross the band.
func bandHeight(cities int) int {
	switch {
	case cities < 2:
		return 0
	case cities == 2:
		return 110
	}
	return min(340, 130+16*cities)
}

func (l *layout) place(row []*cityPlan, y func(*cityPlan) int) {
	width := -citySpace
	for _, c := range row {
		width += c.box.w + citySpace
	}
	x := (l.width - width) / 2
	for _, c := range row {
		c.box.x, c.box.y = x, y(c)
		x += c.box.w + citySpace
		l.chips = append(l.chips, c.fill()...)
	}
}

func (c *cityPlan) gutter(i int) int { return gutterBase + laneWidth*c.gutters[i] }

func (c *cityPlan) gap(i int) int { return gutterBase + laneWidth*c.gaps[i] }

// rowHeight is that of the row's tallest card.
func (c *cityPlan) rowHeight(row int) int {
	lines := 1
	for _, card := range c.cards {
		if card.row == row {
			lines = max(lines, len(card.lines), card.ports/2+1)
		}
	}
	return lines*lineHeight + 2*cardPad
}

// chipRows returns how many rows of chips n nodes fill: two stand below a card.
func (c *cityPlan) chipRows(n int) int { return (n + 2*c.cols - 1) / (2 * c.cols) }

const chipStep = chipHeight + 6

func (c *cityPlan) measure() {
	c.box.w = 2 * cityPad
	for i := range c.cols {
		c.box.w += cardWidth + c.gutter(i)
	}
	c.box.w -= gutterBase
	c.box.h = headHeight + cityPad + c.strips()
	for r := range c.rows {
		c.box.h += c.rowHeight(r) + c.gap(r)
	}
}

// fill places the cards and returns the chips.
func (c *cityPlan) fill() []chip {
	y := c.box.y + headHeight
	strips := c.strips()
	if c.flipped {
		y = c.box.y + cityPad + strips
	}
	c.grid = y
	for r := range c.rows {
		h := c.rowHeight(r)
		for _, card := range c.cards {
			if card.row == r {
				card.box = box{c.columnX(card.col), y, cardWidth, h}
			}
		}
		y += h + c.gap(r)
	}
	// Routers stand next to the band, caches and coordinators between them and the zones.
	high := func(nodes []nodeView) int { return c.chipRows(len(nodes)) * chipStep }
	coordinators := y
	caches := coordinators + high(c.city.coordinators)
	routers := caches + high(c.city.caches)
	if c.flipped {
		routers = c.box.y + cityPad
		caches = routers + high(c.city.routers)
		coordinators = caches + high(c.city.caches)
	}
	chips := append(c.chipsAt(c.city.routers, "router", routers), c.chipsAt(c.city.caches, "cache", caches)...)
	return append(chips, c.chipsAt(c.city.coordinators, "coordinator", coordinators)...)
}

// strips returns the height of all rows of chips.
func (c *cityPlan) strips() int {
	return (c.chipRows(len(c.city.routers)) + c.chipRows(len(c.city.caches)) + c.chipRows(len(c.city.coordinators))) * chipStep
}

func (c *cityPlan) columnX(col int) int {
	x := c.box.x + cityPad
	for i := range col {
		x += cardWidth + c.gutter(i)
	}
	return x
}

func (c *cityPlan) chipsAt(nodes []nodeView, kind string, y int) []chip {
	const width = (cardWidth - 6) / 2
	var all []chip
	for i, n := range nodes {
		col, row := i%(2*c.cols), i/(2*c.cols)
		x := c.columnX(col/2) + (col%2)*(width+6)
		all = append(all, chip{n, kind, box{x, y + row*chipStep, width, chipHeight}})
	}
	return all
}

// edge returns the city's side of the band.
func (c *cityPlan) edge() int {
	if c.flipped {
		return c.box.y
	}
	return c.box.y + c.box.h
}

// wireUp gives each link an end at each city, in the order of the peers' places
// so that they cross as little as they can.
func (l *layout) wireUp() {
	type end struct{ wire, city, peer int }
	ends := make([][]end, len(l.cities))
	for i, k := range l.scene.links {
		l.wires = append(l.wires, wire{link: k})
		ends[k.a] = append(ends[k.a], end{i, k.a, k.b})
		ends[k.b] = append(ends[k.b], end{i, k.b, k.a})
	}
	for ci, list := range ends {
		c := l.cities[ci]
		mid := c.box.x + c.box.w/2
		slices.SortStableFunc(list, func(a, b end) int { return cmp.Compare(l.slant(c, mid, a.peer), l.slant(c, mid, b.peer)) })
		for i, e := range list {
			at := point{c.box.x + c.box.w*(i+1)/(len(list)+1), c.edge()}
			if l.wires[e.wire].a == ci {
				l.wires[e.wire].from = at
			} else {
				l.wires[e.wire].to = at
			}
		}
	}
	for i := range l.wires {
		w := &l.wires[i]
		w.path = fmt.Sprintf("M%d %d%s", w.from.x, w.from.y, l.curve(w.from, w.to, 0))
	}
}

// slant orders peers from left to right as seen from a city: those of its own
// row, on the left, come first, since their arcs are the lowest ones there; the
// nearest of them is the outermost.
func (l *layout) slant(c *cityPlan, mid, peer int) int {
	p := l.cities[peer]
	px := p.box.x + p.box.w/2
	if p.flipped == c.flipped {
		if px < mid {
			return -1_000_000 - px
		}
		return 1_000_000 - px
	}
	return px - mid
}

// curve continues a path at from across the band to to. Lines between cities of
// one row bow into the band, the deeper the farther they go.
func (l *layout) curve(from, to point, shift int) string {
	middle := l.band.y + l.band.h/2
	if from.y != to.y {
		return fmt.Sprintf(" C%d %d %d %d %d %d", from.x, middle, to.x, middle, to.x, to.y)
	}
	far := max(from.x-to.x, to.x-from.x)
	depth := min(l.band.h-14, 30+l.band.h*far/max(1, l.band.w)+shift) * 4 / 3
	y := from.y + depth
	if from.y >= middle {
		y = from.y - depth
	}
	return fmt.Sprintf(" C%d %d %d %d %d %d", from.x, y, to.x, y, to.x, to.y)
}

// run draws a standby: out of the card on its right, along gutters and gaps, and
// into the other card from its right.
func (l *layout) run(r *route) {
	port := func(c *card) point {
		c.used++
		return point{c.box.x + c.box.w, c.box.y + c.box.h*c.used/(c.ports+1)}
	}
	lane := func(c *cityPlan, k *card, n int) int {
		return k.box.x + cardWidth + gutterBase/2 + laneWidth*n + laneWidth/2
	}
	from, to := port(r.from), port(r.to)
	fx, tx := lane(r.fc, r.from, r.fl), lane(r.tc, r.to, r.tl)
	var b strings.Builder
	fmt.Fprintf(&b, "M%d %d H%d", from.x, from.y, fx)
	r.points = []point{from, {fx, from.y}}
	switch {
	case r.band:
		a, z := point{fx, r.fc.edge()}, point{tx, r.tc.edge()}
		fmt.Fprintf(&b, " V%d%s V%d", a.y, l.curve(a, z, 12), to.y)
		r.points = append(r.points, a, z, point{tx, to.y})
	case r.sameGutter:
		fmt.Fprintf(&b, " V%d", to.y)
		r.points = append(r.points, point{fx, to.y})
	default:
		y := r.from.box.y + r.from.box.h + gutterBase/2 + laneWidth*r.gap + laneWidth/2
		fmt.Fprintf(&b, " V%d H%d V%d", y, tx, to.y)
		r.points = append(r.points, point{fx, y}, point{tx, y}, point{tx, to.y})
	}
	fmt.Fprintf(&b, " H%d", to.x)
	r.points = append(r.points, to)
	r.path = b.String()
}
