package zone

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// viaTopology is the sample with broadcasts_via of cities, pairs of city and via,
// and a residency of the topic member.
func viaTopology(t *testing.T, residency string, vias ...string) (*Topology, error) {
	t.Helper()
	data, err := os.ReadFile("sample/sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i+1 < len(vias); i += 2 {
		text = strings.Replace(text, "  - name: "+vias[i]+"\n", "  - name: "+vias[i]+"\n    broadcasts_via: "+vias[i+1]+"\n", 1)
	}
	if residency != "" {
		text = strings.Replace(text, "    route: {broadcast: city}", "    residency: ["+residency+"]\n    route: {broadcast: city}", 1)
	}
	return Parse([]byte(text), "sample.yaml")
}

func TestViaSaysWhoServesACity(t *testing.T) {
	for _, c := range []struct {
		what, residency string
		vias            []string
		city, origin    City
		want            string
	}{
		{"nothing declared", "", nil, "shenzhen", "shanghai", ""},
		{"the declared one, then the others", "", []string{"shenzhen", "hangzhou"}, "shenzhen", "shanghai", "hangzhou"},
		{"the origin is there", "", []string{"shenzhen", "hangzhou"}, "shenzhen", "hangzhou", ""},
		{"its own broadcasts", "", []string{"shenzhen", "hangzhou"}, "shenzhen", "shenzhen", ""},
		{"a city without via", "", []string{"shenzhen", "hangzhou"}, "hangzhou", "shanghai", ""},
		{"two on the way", "", []string{"shenzhen", "hangzhou", "hangzhou", "shanghai"}, "shenzhen", "shenzhen", ""},
		{"residency excludes the declared one", "shanghai, shenzhen", []string{"shenzhen", "hangzhou"}, "shenzhen", "shanghai", ""},
		{"residency excludes the city", "shanghai, hangzhou", []string{"shenzhen", "hangzhou"}, "shenzhen", "shanghai", ""},
		{"residency allows both", "shanghai, hangzhou, shenzhen", []string{"shenzhen", "hangzhou"}, "shenzhen", "shanghai", "hangzhou"},
	} {
		top, err := viaTopology(t, c.residency, c.vias...)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		var got []string
		for _, h := range top.Holders(top.FindTopic("member").Channel, top.FindCity(c.city), c.origin) {
			got = append(got, string(h.Name))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.what, got, c.want)
		}
		if top.Relays() != (len(c.vias) > 0) {
			t.Errorf("%s: relays %v", c.what, top.Relays())
		}
	}
}

func TestViaCyclesAndLongWaysAreRefused(t *testing.T) {
	for what, c := range map[string]struct {
		vias []string
		want string
		n    int
	}{
		"two": {[]string{"shenzhen", "hangzhou", "hangzhou", "shenzhen"}, "by way of itself: shenzhen from hangzhou from shenzhen", 2},
		"three": {[]string{"shenzhen", "hangzhou", "hangzhou", "shanghai", "shanghai", "shenzhen"},
			"by way of itself: shanghai from shenzhen from hangzhou from shanghai", 3},
	} {
		_, err := viaTopology(t, "", c.vias...)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), "by way of itself") != c.n {
			t.Errorf("%s: %v", what, err)
		}
	}
	var b strings.Builder
	b.WriteString("deployment: x\nepoch: {term: 1, number: 1}\ncities:\n")
	for i := range 4 {
		via := ""
		if i > 0 {
			via = fmt.Sprintf("broadcasts_via: c%d, ", i-1)
		}
		fmt.Fprintf(&b, "  - {name: c%d, %srouters: [{name: r%d, quic: h:%d, peer: h:%d, gossip: h:%d, wan: h:%d}], zones: [{name: z%d, kind: CZone, groups: [{name: g%d, nodes: [{name: n%d, client: i:%d, peer: i:%d, gossip: i:%d}]}]}]}\n",
			i, via, i, 4*i+1, 4*i+2, 4*i+3, 4*i+4, i, i, i, 3*i+1, 3*i+2, 3*i+3)
	}
	if _, err := Parse([]byte(b.String()), "x.yaml"); err == nil || !strings.Contains(err.Error(), "by way of 3 others: c3 from c2 from c1 from c0") {
		t.Errorf("a long way: %v", err)
	}
}

func TestViaIsShownExplainedAndCompared(t *testing.T) {
	a, err := viaTopology(t, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := viaTopology(t, "", "shenzhen", "hangzhou")
	if err != nil {
		t.Fatal(err)
	}
	diff := Diff(a, b)
	if len(diff) != 1 || diff[0].String() != "~ city shenzhen: broadcasts_via: - -> hangzhou" || a.Digest == b.Digest {
		t.Errorf("diff %v", diff)
	}
	if show := Show(b); !strings.Contains(show, "broadcasts of other cities reach shenzhen from what hangzhou has landed") {
		t.Errorf("show:\n%s", show)
	}
	text := ""
	for _, s := range b.Explain(QueryFor(b.FindTopic("member"), b.FindZone("rz01"), "k")) {
		text += s.String() + "\n"
	}
	if !strings.Contains(text, "city shenzhen, from what hangzhou has landed") || strings.Contains(text, "city hangzhou, from") {
		t.Errorf("explain:\n%s", text)
	}
}
