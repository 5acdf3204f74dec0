package render

import (
	"fmt"

	"github.com/mqrouter/mqrouter/zone"
)

// Format is what a picture is written in.
type Format string

// The formats.
const (
	SVG     Format = "svg"
	DOT     Format = "dot"
	Mermaid Format = "mermaid"
)

// Theme is the background that an SVG is made for.
type Theme string

// The themes. ThemeAuto follows the viewer's setting where its program has one.
const (
	ThemeAuto  Theme = "auto"
	ThemeLight Theme = "light"
	ThemeDark  Theme = "dark"
)

// Options say what a picture shows besides the places.
type Options struct {
	// Topic, when not nil, is shown in the picture: where its records land, who
	// consumes them, which links they take. It is of the topology drawn.
	Topic *zone.TopicInfo
	// From, with Topic, shows only what is published in that zone. nil is
	// every zone that may publish it.
	From *zone.ZoneInfo
	// Theme is of SVG. "" is ThemeAuto.
	Theme Theme
}

// OptionError says that a format or a theme is not known.
type OptionError struct {
	What  string // format or theme
	Value string
	Known string // what would be right
}

// Error implements error.
func (e *OptionError) Error() string {
	return fmt.Sprintf("render: %s %q is not known: write %s", e.What, e.Value, e.Known)
}

// Draw returns a picture of t, or an *OptionError.
func Draw(t *zone.Topology, f Format, o Options) ([]byte, error) {
	return newScene(t, o).draw(f, o.Theme)
}

// DrawDiff returns a picture of newer that shows what differs from older: what
// is new, what is gone, what changed. Options.Topic is of newer.
func DrawDiff(older, newer *zone.Topology, f Format, o Options) ([]byte, error) {
	return merge(newScene(older, Options{}), newScene(newer, o)).draw(f, o.Theme)
}

func (s *scene) draw(f Format, theme Theme) ([]byte, error) {
	switch theme {
	case "":
		theme = ThemeAuto
	case ThemeAuto, ThemeLight, ThemeDark:
	default:
		return nil, &OptionError{What: "theme", Value: string(theme), Known: "auto, light or dark"}
	}
	switch f {
	case SVG:
		return svg(newPlan(s), theme), nil
	case DOT:
		return dot(s), nil
	case Mermaid:
		return mermaid(s), nil
	}
	return nil, &OptionError{What: "format", Value: string(f), Known: "svg, dot or mermaid"}
}
