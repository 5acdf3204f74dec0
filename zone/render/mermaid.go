package render

import (
	"bytes"
	"fmt"
	"strings"
)

// mermaidText escapes for a quoted text of mermaid: character references keep what
// would end the text or be taken for markup.
func mermaidText(lines ...string) string {
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteString("<br/>")
		}
		for _, r := range strings.Map(printable, l) {
			switch {
			case strings.ContainsRune("\"<>&#;`", r):
				fmt.Fprintf(&b, "#%d;", r)
			default:
				b.WriteRune(r)
			}
		}
	}
	return `"` + b.String() + `"`
}

// mermaid prints the scene as a flow chart. Ids are numbers, since names could
// be words of the language.
func mermaid(s *scene) []byte {
	var b bytes.Buffer
	b.WriteString("flowchart LR\n")
	for _, l := range s.head() {
		fmt.Fprintf(&b, "  %%%% %s\n", strings.Map(printable, l))
	}
	ids, classes := map[string]string{}, map[string][]string{}
	n := 0
	class := func(id, name string) { classes[name] = append(classes[name], id) }
	for i, c := range s.cities {
		fmt.Fprintf(&b, "  subgraph c%d [%s]\n", i, mermaidText(markSign(c.mark)+c.name))
		for _, z := range c.zones {
			id := fmt.Sprintf("z%d", n)
			n++
			if ids[z.name] == "" || z.mark != removed {
				ids[z.name] = id
			}
			fmt.Fprintf(&b, "    %s[%s]\n", id, mermaidText(z.lines()...))
			class(id, z.kind)
			if z.lands {
				class(id, "lands")
			}
			if z.mark != same {
				class(id, z.mark.String())
			}
		}
		if len(c.routers) > 0 {
			fmt.Fprintf(&b, "    r%d{{%s}}\n", i, mermaidText(nodeLines("routers", c.routers)...))
		}
		if len(c.caches) > 0 {
			fmt.Fprintf(&b, "    k%d[(%s)]\n", i, mermaidText(nodeLines("caches", c.caches)...))
			class(fmt.Sprintf("k%d", i), "cache")
		}
		if len(c.coordinators) > 0 {
			fmt.Fprintf(&b, "    v%d([%s])\n", i, mermaidText(nodeLines("coordinators", c.coordinators)...))
			class(fmt.Sprintf("v%d", i), "coordinator")
		}
		b.WriteString("  end\n")
	}
	s.mermaidEdges(&b, ids)
	for _, name := range []string{"RZone", "GZone", "CZone", "cache", "coordinator", "lands", "added", "removed", "changed"} {
		if len(classes[name]) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  classDef %s %s\n  class %s %s\n", name, mermaidClasses[name], strings.Join(classes[name], ","), name)
	}
	return b.Bytes()
}

// mermaidClasses gives the classes strokes only, which are seen on any theme's
// background.
var mermaidClasses = map[string]string{
	"RZone":       "stroke:" + blue[0],
	"GZone":       "stroke:" + purple[0],
	"CZone":       "stroke:" + green[0],
	"cache":       "stroke:" + teal[0],
	"coordinator": "stroke:" + purple[0],
	"lands":       "stroke-width:4px",
	"added":       "stroke:" + green[0] + ",stroke-width:3px",
	"removed":     "stroke:" + red[0] + ",stroke-dasharray:4 3",
	"changed":     "stroke:" + amber[0] + ",stroke-width:3px",
}

func (s *scene) mermaidEdges(b *bytes.Buffer, ids map[string]string) {
	for _, l := range s.links {
		arrow := "---"
		from, to := l.a, l.b
		switch l.direction() {
		case "both":
			arrow = "<==>"
		case "forward":
			arrow = "==>"
		case "back":
			arrow, from, to = "==>", l.b, l.a
		}
		fmt.Fprintf(b, "  r%d %s%s r%d\n", from, arrow, edgeText(l.mark, ""), to)
	}
	for _, y := range s.standbys {
		fmt.Fprintf(b, "  %s -.->%s %s\n", ids[y.from], edgeText(y.mark, "standby"), ids[y.to])
	}
}

func edgeText(m mark, text string) string {
	if text = strings.TrimSpace(markSign(m) + text); text == "" {
		return ""
	}
	return "|" + mermaidText(text) + "|"
}

// printable keeps a text on its line: control characters become U+FFFD.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return 0xfffd
	}
	return r
}
