package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/render"
)

// renderFlags are the picture that is asked for. Output hides the flag of all
// commands that picks between text and JSON: a picture is neither.
type renderFlags struct {
	format, theme, topic, from, output string
}

func (p *renderFlags) declare(c *cobra.Command, fallback render.Format) {
	f := c.Flags()
	f.StringVar(&p.format, "format", string(fallback), "svg, dot (Graphviz) or mermaid")
	f.StringVar(&p.theme, "theme", string(render.ThemeAuto), "background of an SVG: auto follows the viewer's setting; light, dark")
	f.StringVar(&p.topic, "topic", "", "show where this topic's records go")
	f.StringVar(&p.from, "from", "", "with --topic: only what is published in this zone")
}

func newTopologyRender(e *env) *cobra.Command {
	var p renderFlags
	c := &cobra.Command{
		Use:   "render [FILE]",
		Short: "Draw a topology: the file, or what the node at --admin follows",
		Long: `Draw a topology as a picture: cities, zones with their shards, broker groups with
their slots, routers, caches, links between cities, and where zones fail over to.
The same topology gives the same bytes, so a picture can be kept beside it.

An SVG opens in any browser and needs no other program. mqrouter topology diff
draws what differs between two files.`,
		Example: `  mqrouter topology render my-topology.yaml -o topology.svg
  mqrouter topology render my-topology.yaml --topic transfer --from rz01 -o transfer.svg
  mqrouter topology render my-topology.yaml --format dot | dot -Tpng -o topology.png`,
		Args: optionalArg("the topology file"),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := e.anyTopology(c, args)
			if err != nil {
				return err
			}
			o, err := p.options(t)
			if err != nil {
				return err
			}
			picture, err := render.Draw(t, render.Format(p.format), o)
			if err != nil {
				return asUsage(err)
			}
			return e.write(p.output, picture)
		},
	}
	p.declare(c, render.SVG)
	c.Flags().StringVarP(&p.output, "output", "o", "", "file to write; by default the standard output")
	e.fleetFlags(c)
	return c
}

// options checks the flags against the topology that is drawn.
func (p *renderFlags) options(t *zone.Topology) (render.Options, error) {
	o := render.Options{Theme: render.Theme(p.theme)}
	if p.topic != "" {
		if o.Topic = t.FindTopic(zone.Topic(p.topic)); o.Topic == nil {
			return o, fmt.Errorf("topic %q is not in the topology", p.topic)
		}
	}
	if p.from != "" {
		if o.Topic == nil {
			return o, usageError{errors.New("--from needs --topic")}
		}
		if o.From = t.FindZone(zone.Zone(p.from)); o.From == nil {
			return o, fmt.Errorf("zone %q is not in the topology; it has %s", p.from, strings.Join(zoneNames(t), ", "))
		}
	}
	return o, nil
}

// asUsage makes a bad format or theme wrong use.
func asUsage(err error) error {
	var bad *render.OptionError
	if errors.As(err, &bad) {
		return usageError{err}
	}
	return err
}

// write writes to the file, or to the standard output without a name.
func (e *env) write(path string, data []byte) error {
	if path == "" || path == "-" {
		_, err := e.out.Write(data)
		return err
	}
	return os.WriteFile(path, data, 0o644) //nolint:gosec // a picture is for everybody
}

// drawDiff prints the picture of what differs.
func (e *env) drawDiff(p *renderFlags, older, newer *zone.Topology) error {
	o, err := p.options(newer)
	if err != nil {
		return err
	}
	picture, err := render.DrawDiff(older, newer, render.Format(p.format), o)
	if err != nil {
		return asUsage(err)
	}
	return e.write("", picture)
}
