package render

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// FuzzDraw draws every topology that is valid: the pictures are well formed.
func FuzzDraw(f *testing.F) {
	f.Add(sample.YAML)
	reference, err := os.ReadFile(filepath.Join("..", "..", "testdata", "topologies", "reference.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(reference)
	f.Add([]byte("{deployment: d, epoch: 1.1, cities: [{name: c, zones: [{name: z, kind: CZone, groups: [{name: g, nodes: [{name: n, client: a:1, peer: a:2, gossip: a:3}]}]}]}]}"))
	old, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, err := zone.Parse(data, "fuzz.yaml")
		if err != nil {
			return
		}
		o := Options{}
		if len(topo.Topics) > 0 {
			o.Topic = topo.Topics[0]
		}
		wellFormed(t, draw(t, topo, SVG, o))
		for _, format := range []Format{DOT, Mermaid} {
			checkGraph(t, format, draw(t, topo, format, o))
		}
		b, err := DrawDiff(old, topo, SVG, o)
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, b)
	})
}
