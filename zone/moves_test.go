package zone_test

import (
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

func TestMovesNamesEveryChangeOfOwner(t *testing.T) {
	parse := func(replace ...string) *zone.Topology {
		t.Helper()
		text := strings.NewReplacer(replace...).Replace(string(sample.YAML))
		if len(replace) > 0 && text == string(sample.YAML) {
			t.Fatalf("the sample has nothing of %q", replace)
		}
		top, err := zone.Parse([]byte(text), "sample")
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	running := parse()
	for _, c := range []struct {
		name    string
		replace []string
		want    string
	}{
		{"nothing", []string{"retention: 168h", "retention: 169h"}, ""},
		{"a slot", []string{"slots: 0-511", "slots: 0-510", "slots: 512-1023", "slots: 511-1023"}, "zone rz01: 1 slots change their broker group"},
		{"shards", []string{"rz01: 0-19", "rz01: 0-20", "rz02: 20-39", "rz02: 21-39"}, "1 shards change their zone"},
		{"another rule", []string{"by: last-digits", "by: xxhash"}, "how a shard is taken"},
	} {
		got := strings.Join(zone.Moves(running, parse(c.replace...)), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
