package render

import (
	"fmt"
	"strings"
)

// rule is a class of the picture with what it looks like on each background.
type rule struct {
	class       string
	shape       string // what does not depend on the background
	fill        [2]string
	stroke      [2]string // light, dark
	strokeWidth string
}

// The colours, light and dark: text has a contrast of at least 4.5 to 1 on its
// background (WCAG 2.1, level AA), lines and borders that say something 3 to 1.
var (
	ink     = [2]string{"#1f2328", "#e6edf3"}
	soft    = [2]string{"#59636e", "#9ba3ad"}
	paper   = [2]string{"#ffffff", "#0d1117"}
	ground  = [2]string{"#f3f5f7", "#161b22"}
	edges   = [2]string{"#aab2ba", "#4b535d"}
	blue    = [2]string{"#0969da", "#58a6ff"}
	purple  = [2]string{"#8250df", "#b38af9"}
	green   = [2]string{"#1a7f37", "#3fb950"}
	teal    = [2]string{"#0b7285", "#4dc4d6"}
	grey    = [2]string{"#6e7781", "#8b949e"}
	amber   = [2]string{"#8a5a00", "#d9a528"}
	orange  = [2]string{"#bc4c00", "#f0883e"}
	magenta = [2]string{"#b0256f", "#f778ba"}
	blush   = [2]string{"#fdeef6", "#2c1724"}
	red     = [2]string{"#c21f2b", "#ff7b72"}
	none    = [2]string{"none", "none"}
	unset   [2]string
)

// rules are in the order of the cascade: what comes later wins.
var rules = []rule{
	{class: "bg", fill: paper},
	{class: "city", fill: ground, stroke: edges, strokeWidth: "1"},
	{class: "card", fill: paper, stroke: edges, strokeWidth: "1"},
	{class: "lands", fill: blush, stroke: magenta, strokeWidth: "1.5"},
	{class: "RZone", fill: blue},
	{class: "GZone", fill: purple},
	{class: "CZone", fill: green},
	{class: "router", fill: paper, stroke: grey, strokeWidth: "1"},
	{class: "cache", fill: paper, stroke: teal, strokeWidth: "1.5"},
	{class: "coordinator", fill: paper, stroke: purple, strokeWidth: "1.5"},
	{class: "link", fill: none, stroke: grey, strokeWidth: "1.2"},
	{class: "faint", shape: "stroke-opacity:.35"},
	{class: "topic", fill: none, stroke: magenta, strokeWidth: "2.2"},
	{class: "standby", shape: "stroke-dasharray:5 3", fill: none, stroke: amber, strokeWidth: "1.3"},
	{class: "remote", shape: "stroke-dasharray:2 3", fill: none, stroke: orange, strokeWidth: "1.5"},
	{class: "added", stroke: green, strokeWidth: "2"},
	{class: "removed", shape: "stroke-dasharray:4 3", stroke: red, strokeWidth: "2"},
	{class: "changed", stroke: amber, strokeWidth: "2"},
	{class: "tip-topic", fill: magenta},
	{class: "tip-standby", fill: amber},
	{class: "tip-remote", fill: orange},
	{class: "tip-added", fill: green},
	{class: "tip-removed", fill: red},
	{class: "t", shape: fmt.Sprintf("font-weight:bold;font-size:%dpx", titleSize), fill: ink},
	{class: "s", fill: soft},
	{class: "n", fill: ink},
	{class: "h", shape: "font-weight:bold", fill: magenta},
	{class: "t-added", fill: green},
	{class: "t-removed", fill: red},
	{class: "t-changed", fill: amber},
}

// css returns the style sheet of a theme.
func css(theme Theme) string {
	var b strings.Builder
	b.WriteString("text{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;")
	fmt.Fprintf(&b, "font-size:%dpx;white-space:pre}\n", fontSize)
	shade := 0
	if theme == ThemeDark {
		shade = 1
	}
	for _, r := range rules {
		r.write(&b, shade, true)
	}
	if theme == ThemeAuto {
		b.WriteString("@media (prefers-color-scheme:dark){\n")
		for _, r := range rules {
			r.write(&b, 1, false)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

func (r *rule) write(b *strings.Builder, shade int, whole bool) {
	var parts []string
	if whole && r.shape != "" {
		parts = append(parts, r.shape)
	}
	if r.fill != unset {
		parts = append(parts, "fill:"+r.fill[shade])
	}
	if r.stroke != unset {
		parts = append(parts, "stroke:"+r.stroke[shade])
	}
	if whole && r.strokeWidth != "" {
		parts = append(parts, "stroke-width:"+r.strokeWidth)
	}
	if len(parts) > 0 {
		fmt.Fprintf(b, ".%s{%s}\n", r.class, strings.Join(parts, ";"))
	}
}
