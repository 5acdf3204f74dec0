package render

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

// label is a text with the place that it takes, so that a test can tell whether
// anything lies upon it.
type label struct {
	text string
	box  box
}

// canvas writes SVG elements.
type canvas struct {
	b      bytes.Buffer
	labels []label
}

// esc escapes text for XML. Characters that XML forbids become U+FFFD.
func esc(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(s)) //nolint:errcheck // a bytes.Buffer takes everything
	return b.String()
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(&c.b, format, args...) }

func (c *canvas) rect(class string, r box, round int) {
	c.printf("<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"", class, r.x, r.y, r.w, r.h)
	if round > 0 {
		c.printf(" rx=\"%d\"", round)
	}
	c.printf("/>\n")
}

// text writes s with its baseline at y: from x to the right, or up to x when
// end is true.
func (c *canvas) text(class string, x, y int, end bool, s string) {
	if s == "" {
		return
	}
	width := charWidth
	if class[0] == 't' { // titles and what marks them
		width = titleWidth
	}
	l := label{s, box{x, y - fontSize, runes(s) * width, fontSize + 2}}
	anchor := ""
	if end {
		l.box.x -= l.box.w
		anchor = ` text-anchor="end"`
	}
	c.labels = append(c.labels, l)
	c.printf("<text class=\"%s\" x=\"%d\" y=\"%d\"%s>%s</text>\n", class, x, y, anchor, esc(s))
}

// path draws a line; tip is the class of its arrow heads, at its end and, with
// both, at its start. Markers name their classes.
func (c *canvas) path(class, d, tip string, start, end bool) {
	c.printf("<path class=\"%s\" d=\"%s\"", class, d)
	if start {
		c.printf(" marker-start=\"url(#%s)\"", tip)
	}
	if end {
		c.printf(" marker-end=\"url(#%s)\"", tip)
	}
	c.printf("/>\n")
}

// open begins a group that shows text when it is pointed at.
func (c *canvas) open(tip string) { c.printf("<g><title>%s</title>\n", esc(tip)) }

func (c *canvas) close() { c.printf("</g>\n") }
