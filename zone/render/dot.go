package render

import (
	"bytes"
	"fmt"
	"strings"
)

// dotEscaper escapes for a quoted string of the DOT language.
var dotEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// quote returns a quoted string of DOT, in which \n breaks a line.
func quote(lines ...string) string {
	escaped := make([]string, len(lines))
	for i, l := range lines {
		escaped[i] = dotEscaper.Replace(strings.Map(printable, l))
	}
	return `"` + strings.Join(escaped, `\n`) + `"`
}

// dotColours are the light shades of what marks, kinds and lines look like.
var dotColours = map[string]string{
	"RZone": blue[0], "GZone": purple[0], "CZone": green[0],
	"added": green[0], "removed": red[0], "changed": amber[0],
	"topic": magenta[0], "standby": amber[0], "remote": orange[0], "link": grey[0], "cache": teal[0],
	"coordinator": purple[0],
}

// dot prints the scene in the DOT language. Cities are clusters; a link leads
// between the clusters' hubs, which stand for all routers of a city.
func dot(s *scene) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "digraph topology {\n  label=%s;\n  labelloc=t;\n  compound=true;\n  rankdir=LR;\n", quote(s.head()...))
	b.WriteString("  node [shape=box, style=rounded, fontname=monospace, fontsize=10];\n  edge [fontname=monospace, fontsize=9];\n")
	for i, c := range s.cities {
		fmt.Fprintf(&b, "  subgraph cluster_%d {\n    label=%s;\n", i, quote(markSign(c.mark)+c.name))
		if c.mark != same {
			fmt.Fprintf(&b, "    color=%q;\n", dotColours[c.mark.String()])
		}
		for _, z := range c.zones {
			fmt.Fprintf(&b, "    %s [label=%s, color=%q%s];\n", quote(zoneID(i, z)), quote(z.lines()...), z.colour(), z.dotStyle())
		}
		if len(c.routers) > 0 {
			fmt.Fprintf(&b, "    %s [label=%s, shape=hexagon];\n", quote(hub(i)), quote(nodeLines("routers", c.routers)...))
		}
		if len(c.caches) > 0 {
			fmt.Fprintf(&b, "    \"caches/%d\" [label=%s, shape=cylinder, color=%q];\n", i, quote(nodeLines("caches", c.caches)...), dotColours["cache"])
		}
		if len(c.coordinators) > 0 {
			fmt.Fprintf(&b, "    \"coordinators/%d\" [label=%s, shape=octagon, color=%q];\n", i, quote(nodeLines("coordinators", c.coordinators)...), dotColours["coordinator"])
		}
		b.WriteString("  }\n")
	}
	for _, l := range s.links {
		fmt.Fprintf(&b, "  %s -> %s [dir=%s, constraint=false, %s];\n", quote(hub(l.a)), quote(hub(l.b)), l.direction(), l.dotStyle())
	}
	ids := s.ids()
	for _, y := range s.standbys {
		kind := "standby"
		if y.remote {
			kind = "remote"
		}
		colour := dotColours[kind]
		if y.mark != same {
			colour = dotColours[y.mark.String()]
		}
		fmt.Fprintf(&b, "  %s -> %s [style=dashed, color=%q, label=%s];\n", quote(ids[y.from]), quote(ids[y.to]), colour, quote(markSign(y.mark)+"standby"))
	}
	b.WriteString("}\n")
	return b.Bytes()
}

func hub(city int) string { return fmt.Sprintf("routers/%d", city) }

// zoneID is unique even when a diff shows a zone in two cities.
func zoneID(city int, z *zoneView) string { return fmt.Sprintf("zone/%d/%s", city, z.name) }

// ids returns the id of each zone by its name; of one that moved between cities,
// where it is now.
func (s *scene) ids() map[string]string {
	all := map[string]string{}
	for i, c := range s.cities {
		for _, z := range c.zones {
			if all[z.name] == "" || z.mark != removed {
				all[z.name] = zoneID(i, z)
			}
		}
	}
	return all
}

// head is the title of a picture that does not place it itself.
func (s *scene) head() []string {
	lines := []string{s.title, s.note}
	if t := s.topic; t != nil {
		text := fmt.Sprintf("topic %s, route %s", t.name, t.route)
		if t.from != "" {
			text += ", published in " + t.from
		}
		lines = append(lines, text)
	}
	return lines
}

// lines is what a zone says of itself where there is room.
func (z *zoneView) lines() []string {
	kind := z.kind
	if z.idle {
		kind += ", standby"
	} else if z.kind == "GZone" {
		kind += ", active"
	}
	lines := []string{markSign(z.mark) + z.name + " (" + kind + ")"}
	if z.shards != "" {
		lines = append(lines, "shards "+z.shards)
	}
	for _, g := range z.groups {
		lines = append(lines, fmt.Sprintf("%s%s: slots %s", markSign(g.mark), g.name, g.slots))
	}
	if z.lands {
		lines = append(lines, strings.TrimSpace("lands here "+strings.Join(z.consumers, " ")))
	}
	return lines
}

func nodeLines(title string, nodes []nodeView) []string {
	lines := []string{title}
	for _, n := range nodes {
		lines = append(lines, markSign(n.mark)+n.name)
	}
	return lines
}

func (z *zoneView) colour() string {
	if z.mark != same {
		return dotColours[z.mark.String()]
	}
	return dotColours[z.kind]
}

func (z *zoneView) dotStyle() string {
	switch {
	case z.lands:
		return fmt.Sprintf(", style=\"rounded,filled\", fillcolor=%q", blush[0])
	case z.mark == removed:
		return `, style="rounded,dashed"`
	}
	return ""
}

func (l link) direction() string {
	switch {
	case l.ab && l.ba:
		return "both"
	case l.ab:
		return "forward"
	case l.ba:
		return "back"
	}
	return "none"
}

func (l link) dotStyle() string {
	kind := "link"
	switch {
	case l.mark != same:
		kind = l.mark.String()
	case l.ab || l.ba:
		kind = "topic"
	}
	return fmt.Sprintf("color=%q", dotColours[kind])
}
