package render

import (
	"fmt"
	"strings"
)

// svg draws the plan.
func svg(p *plan, theme Theme) []byte {
	c := paint(lay(p), theme)
	return c.b.Bytes()
}

// paint draws from the back to the front: lines of the band, cities, standbys.
func paint(l *layout, theme Theme) *canvas {
	c := &canvas{}
	s := l.scene
	c.printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n", l.width, l.height, l.width, l.height)
	c.printf("<title>%s</title>\n<style>\n%s</style>\n<defs>\n", esc(s.title), css(theme))
	for _, tip := range []string{"topic", "standby", "remote", "added", "removed"} {
		c.printf("<marker id=\"%s\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerUnits=\"userSpaceOnUse\" markerWidth=\"9\" markerHeight=\"9\" orient=\"auto-start-reverse\">"+
			"<path class=\"tip-%s\" d=\"M0 0L8 4L0 8z\"/></marker>\n", tip, tip)
	}
	c.printf("</defs>\n")
	c.rect("bg", box{0, 0, l.width, l.height}, 0)
	l.head(c)
	for i := range l.wires {
		l.wire(c, &l.wires[i])
	}
	for _, city := range l.cities {
		l.city(c, city)
	}
	for _, ch := range l.chips {
		c.open(ch.kind + " " + ch.node.name)
		c.rect(ch.kind+" "+ch.node.mark.String(), ch.box, 9)
		c.text(textClass("n", ch.node.mark), ch.box.x+8, ch.box.y+14, false, shorten(markSign(ch.node.mark)+ch.node.name, (ch.box.w-16)/charWidth))
		c.close()
	}
	for _, r := range l.routes {
		l.standby(c, r)
	}
	legend(c, l)
	c.printf("</svg>\n")
	return c
}

func textClass(class string, m mark) string {
	if m == same {
		return class
	}
	return class + " t-" + m.String()
}

func (l *layout) head(c *canvas) {
	y := margin + fontSize
	s := l.scene
	room := (l.width - 2*margin) / titleWidth
	c.text("t", margin, y, false, shorten(s.title, room))
	y += lineHeight + 2
	c.text("s", margin, y, false, shorten(s.note, room))
	if t := s.topic; t != nil {
		from := "published anywhere"
		if t.from != "" {
			from = "published in " + t.from
		}
		c.text("h", margin, y+lineHeight+1, false, shorten(fmt.Sprintf("topic %s, route %s, %s", t.name, t.route, from), room))
	}
}

func (l *layout) wire(c *canvas, w *wire) {
	a, b := l.scene.cities[w.a].name, l.scene.cities[w.b].name
	class, tip := "link", fmt.Sprintf("routers of %s and %s, QUIC", a, b)
	switch {
	case w.ab || w.ba:
		class = "topic"
		tip += ": the topic's records"
	case l.scene.topic != nil:
		class = "link faint"
	}
	if w.mark != same {
		class += " " + w.mark.String()
		tip += ", " + w.mark.String()
	}
	c.open(tip)
	c.path(class, w.path, "topic", w.ba, w.ab)
	c.close()
}

func (l *layout) city(c *canvas, p *cityPlan) {
	c.rect("city "+p.city.mark.String(), p.box, 8)
	y := p.box.y + 18
	if p.flipped {
		y = p.box.y + p.box.h - 10
	}
	zones := fmt.Sprintf("%d zones", len(p.city.zones))
	if len(p.city.zones) == 1 {
		zones = "1 zone"
	}
	room := (p.box.w-2*cityPad)/titleWidth - 2
	name := shorten(markSign(p.city.mark)+p.city.name, room)
	c.text(textClass("t", p.city.mark), p.box.x+cityPad, y, false, name)
	if runes(name)+runes(zones) < room {
		c.text("s", p.box.x+p.box.w-cityPad, y, true, zones)
	}
	for _, card := range p.cards {
		l.card(c, card)
	}
}

func (l *layout) card(c *canvas, k *card) {
	class, stripe := "card", ""
	if z := k.zone; z != nil {
		c.open(z.tip())
		stripe = z.kind
		if z.lands {
			class += " lands"
		}
		class += " " + z.mark.String()
	} else {
		c.open(k.lines[0].left)
	}
	c.rect(class, k.box, 4)
	if stripe != "" {
		c.rect(stripe, box{k.box.x, k.box.y, 4, k.box.h}, 2)
	}
	for i, ln := range k.lines {
		y := k.box.y + cardPad + fontSize + i*lineHeight
		c.text(textClass(ln.style, ln.mark), k.box.x+cardPad, y, false, ln.left)
		right := ln.style
		if right == "t" {
			right = "s"
		}
		c.text(right, k.box.x+k.box.w-cardPad, y, true, ln.right)
	}
	c.close()
}

// tip says all that a card may have to shorten.
func (z *zoneView) tip() string {
	parts := []string{z.kind + " " + z.name}
	if z.shards != "" {
		parts = append(parts, "shards "+z.shards)
	}
	for _, g := range z.groups {
		var names []string
		for _, n := range g.nodes {
			names = append(names, n.name)
		}
		parts = append(parts, fmt.Sprintf("group %s: slots %s, brokers %s", g.name, g.slots, strings.Join(names, " ")))
	}
	if len(z.consumers) > 0 {
		parts = append(parts, "consumed by "+strings.Join(z.consumers, " "))
	}
	if z.mark != same {
		parts = append(parts, z.mark.String())
	}
	return strings.Join(parts, "\n")
}

func (l *layout) standby(c *canvas, r *route) {
	class, where := "standby", "in the city"
	if r.standby.remote {
		class, where = "remote", "in another city"
	}
	tip := class
	if m := r.standby.mark; m == added || m == removed {
		class, tip = class+" "+m.String(), m.String()
	}
	text := fmt.Sprintf("%s fails over to %s %s", r.standby.from, r.standby.to, where)
	if r.mutual {
		text += ", and the other way round"
	}
	c.open(text)
	c.path(class, r.path, tip, r.mutual, true)
	c.close()
}
