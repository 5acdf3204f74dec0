package render

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

var rewrite = flag.Bool("rewrite", false, "record the pictures of the sample anew")

func parse(t *testing.T, yaml []byte) *zone.Topology {
	t.Helper()
	topo, err := zone.Parse(yaml, "test")
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func draw(t *testing.T, topo *zone.Topology, f Format, o Options) []byte {
	t.Helper()
	b, err := Draw(topo, f, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// deployment writes a topology of that many cities with zones, routers and
// caches each. Names are as long as they may be when long.
func deployment(t *testing.T, cities, zones, routers int, long bool) *zone.Topology {
	t.Helper()
	name := func(format string, args ...any) string {
		s := fmt.Sprintf(format, args...)
		if long {
			s += strings.Repeat("-w", 20)
			s = strings.TrimRight(s[:40], "-")
		}
		return s
	}
	var b strings.Builder
	port := 1000
	next := func() string { port++; return fmt.Sprintf("127.0.0.1:%d", port) }
	fmt.Fprintf(&b, "deployment: %s\nepoch: {term: 1, number: 1}\nshards:\n  count: %d\n  by: modulo\n  owners:\n", name("d"), cities*zones)
	for c := range cities {
		for z := range zones {
			fmt.Fprintf(&b, "    %s: %d\n", name("rz-%d-%d", c, z), c*zones+z)
		}
	}
	b.WriteString("cities:\n")
	for c := range cities {
		fmt.Fprintf(&b, "  - name: %s\n    routers:\n", name("city-%d", c))
		for r := range routers {
			fmt.Fprintf(&b, "      - {name: %s, quic: %q, peer: %q, gossip: %q, wan: %q}\n", name("rt-%d-%d", c, r), next(), next(), next(), next())
		}
		fmt.Fprintf(&b, "    caches: [{name: %s, admin: %q}]\n    zones:\n", name("cache-%d", c), next())
		for z := range zones {
			standby := "remote: none"
			if other := (c + 1 + z%2*(cities/2)) % cities; other != c {
				standby = "remote: " + name("rz-%d-%d", other, z)
			}
			if zones > 1 {
				standby += ", in_city: " + name("rz-%d-%d", c, (z+1)%zones)
			}
			fmt.Fprintf(&b, "      - name: %s\n        kind: RZone\n        standby: {%s}\n        groups: [{name: %s, nodes: [{name: %s, client: %q, peer: %q, gossip: %q}]}]\n",
				name("rz-%d-%d", c, z), standby, name("g-%d-%d", c, z), name("n-%d-%d", c, z), next(), next(), next())
		}
		fmt.Fprintf(&b, "      - {name: %s, kind: CZone, groups: [{name: %s, nodes: [{name: %s, client: %q, peer: %q, gossip: %q}]}]}\n",
			name("cz-%d", c), name("czg-%d", c), name("czn-%d", c), next(), next(), next())
	}
	topic := strings.Repeat("transfer-", 14)[:126]
	fmt.Fprintf(&b, "topics:\n  - {name: %s, route: {shard: {property: userId}}}\nconsumer_groups:\n  - {name: %s, topics: [%s]}\n", topic, strings.Repeat("credit-", 17), topic)
	return parse(t, []byte(b.String()))
}

// TestRecordedPictures keeps the pictures of the sample: same topology, same
// bytes.
func TestRecordedPictures(t *testing.T) {
	topo := parse(t, sample.YAML)
	transfer := Options{Topic: topo.FindTopic("transfer"), From: topo.FindZone("rz05")}
	for _, c := range []struct {
		file string
		f    Format
		o    Options
	}{
		{"sample.svg", SVG, Options{}},
		{"sample-transfer.svg", SVG, transfer},
		{"sample-transfer.dot", DOT, transfer},
		{"sample-transfer.mmd", Mermaid, transfer},
	} {
		path := filepath.Join("..", "..", "testdata", "pictures", c.file)
		got := draw(t, topo, c.f, c.o)
		second := parse(t, sample.YAML)
		if again := draw(t, second, c.f, optionsOf(second, c.o)); !bytes.Equal(got, again) {
			t.Errorf("%s: two drawings differ", c.file)
		}
		if *rewrite {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from what was recorded; look at it, then go test ./zone/render -rewrite", c.file)
		}
	}
}

// optionsOf translates options to another value of the same topology.
func optionsOf(topo *zone.Topology, o Options) Options {
	if o.Topic != nil {
		o.Topic = topo.FindTopic(o.Topic.Name)
	}
	if o.From != nil {
		o.From = topo.FindZone(o.From.Name)
	}
	return o
}

var reference = regexp.MustCompile(`url\(#([a-z]+)\)`)

// TestSVGIsWellFormedAndAlone checks what a browser asks of a picture that is
// mailed around: one well-formed document that refers to nothing outside.
func TestSVGIsWellFormedAndAlone(t *testing.T) {
	topo := parse(t, sample.YAML)
	for _, theme := range []Theme{"", ThemeAuto, ThemeLight, ThemeDark} {
		b := draw(t, topo, SVG, Options{Theme: theme, Topic: topo.FindTopic("transfer")})
		ids := wellFormed(t, b)
		for _, m := range reference.FindAllSubmatch(b, -1) {
			if !ids[string(m[1])] {
				t.Errorf("theme %q: refers to %s, which is not there", theme, m[1])
			}
		}
		if bytes.Contains(bytes.ReplaceAll(b, []byte("http://www.w3.org/2000/svg"), nil), []byte("http")) || bytes.Contains(b, []byte("href")) {
			t.Errorf("theme %q: refers to something outside", theme)
		}
		if dark := bytes.Contains(b, []byte("prefers-color-scheme:dark")); dark != (theme == "" || theme == ThemeAuto) {
			t.Errorf("theme %q: follows the viewer's setting: %v", theme, dark)
		}
	}
}

// wellFormed reads the document to its end and returns its ids.
func wellFormed(t *testing.T, b []byte) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return ids
		}
		if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
		if el, ok := tok.(xml.StartElement); ok {
			for _, a := range el.Attr {
				if a.Name.Local == "id" {
					ids[a.Value] = true
				}
			}
		}
	}
}

// evil is a scene of names that a topology does not allow today: the picture
// must not lean on that.
func evil(name string) *scene {
	s := &scene{title: name, note: name, topic: &topicView{name: name, route: name, from: name}, diff: true}
	for _, other := range []string{"", "2"} {
		s.cities = append(s.cities, &city{name: name + other, routers: []nodeView{{name: name}}, caches: []nodeView{{name: name}},
			zones: []*zoneView{{name: name + other, kind: "RZone", shards: name, lands: true, consumers: []string{name}, groups: []groupView{{name: name, slots: name}}}}})
	}
	s.links = []link{{a: 0, b: 1, ab: true}}
	s.standbys = []standby{{from: name, to: name + "2", remote: true}}
	return s
}

func TestTextIsEscaped(t *testing.T) {
	for _, name := range []string{`</text><script>`, `a"b`, `a\`, "]];\n}", "a--> b", "x\x00\x1b[31m", "<br/>", "#quot;", "日本", `\N`, "%% end", "click z0"} {
		b, err := evil(name).draw(SVG, ThemeLight)
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, b)
		if bytes.Contains(b, []byte("<script")) {
			t.Errorf("%q: markup in the SVG", name)
		}
		for _, f := range []Format{DOT, Mermaid} {
			b, err := evil(name).draw(f, "")
			if err != nil {
				t.Fatal(err)
			}
			checkGraph(t, f, b)
			acceptedByGraphviz(t, f, b)
		}
	}
}

// checkGraph checks the shape of DOT and mermaid: every line is of a known
// form, and quotes and blocks are closed.
func checkGraph(t *testing.T, f Format, b []byte) {
	t.Helper()
	text := `"(?:[^"\\]|\\.)*"`
	attrs := `(?: \[\w+=(?:` + text + `|\w+)(?:, \w+=(?:` + text + `|\w+))*\])?`
	form := `digraph topology \{|\}|subgraph cluster_\d+ \{|\w+=(?:` + text + `|\w+);|(?:node|edge)` + attrs + `;|` + text + attrs + `;|` + text + ` -> ` + text + attrs + `;`
	if f == Mermaid {
		text = `"[^"<>]*(?:<br/>[^"<>]*)*"`
		form = `flowchart LR|%% .*|subgraph c\d+ \[` + text + `\]|end|z\d+\[` + text + `\]|r\d+\{\{` + text + `\}\}|k\d+\[\(` + text + `\)\]|v\d+\(\[` + text + `\]\)|` +
			`[rz]\d+ (?:---|==>|<==>|-\.->)(?:\|` + text + `\|)? [rz]\d+|classDef \w+ [\w:#,. -]+|class [\w,]+ \w+`
	}
	re := regexp.MustCompile(`^\s*(?:` + form + `)$`)
	depth := 0
	for _, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		if !re.MatchString(line) {
			t.Errorf("%s: a line of no known form: %q", f, line)
		}
		switch word := strings.TrimSpace(line); {
		case strings.HasSuffix(word, "{"), strings.HasPrefix(word, "subgraph") && f == Mermaid:
			depth++
		case word == "}", word == "end":
			depth--
		}
	}
	if depth != 0 {
		t.Errorf("%s: %d blocks are not closed", f, depth)
	}
}

// acceptedByGraphviz asks the real parser where there is one.
func acceptedByGraphviz(t *testing.T, f Format, b []byte) {
	t.Helper()
	dot, err := exec.LookPath("dot")
	if f != DOT || err != nil {
		return
	}
	cmd := exec.CommandContext(t.Context(), dot, "-Tcanon")
	cmd.Stdin = bytes.NewReader(b)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("dot refuses it: %v\n%s", err, out)
	}
}

func TestGraphsOfManyCities(t *testing.T) {
	topo := deployment(t, 12, 3, 2, true)
	for _, f := range []Format{DOT, Mermaid} {
		b := draw(t, topo, f, Options{Topic: topo.Topics[0]})
		checkGraph(t, f, b)
		acceptedByGraphviz(t, f, b)
		for _, z := range topo.Zones() {
			if !bytes.Contains(b, []byte(z.Name)) {
				t.Errorf("%s: zone %s is missing", f, z.Name)
			}
		}
	}
}

func TestUnknownFormatsAreRefused(t *testing.T) {
	topo := parse(t, sample.YAML)
	var bad *OptionError
	if _, err := Draw(topo, "png", Options{}); !errors.As(err, &bad) || bad.What != "format" {
		t.Errorf("format png: %v", err)
	}
	if _, err := Draw(topo, SVG, Options{Theme: "pink"}); !errors.As(err, &bad) || bad.What != "theme" {
		t.Errorf("theme pink: %v", err)
	}
}
