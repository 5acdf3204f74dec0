package node

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// changed is the sample with one piece of text replaced, and its next epoch.
func changed(t *testing.T, number, old, text string) []byte {
	t.Helper()
	out := bytes.Replace(sample.YAML, []byte("number: 1}"), []byte("number: "+number+"}"), 1)
	if old != "" {
		if !bytes.Contains(out, []byte(old)) {
			t.Fatalf("the sample has no %q", old)
		}
		out = bytes.ReplaceAll(out, []byte(old), []byte(text))
	}
	return out
}

func parse(t *testing.T, text []byte) *zone.Topology {
	t.Helper()
	top, err := zone.Parse(text, "test")
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// TestTopologyThatNoLongerFitsTheNodeIsTold covers what a node cannot follow
// while it runs.
func TestTopologyThatNoLongerFitsTheNodeIsTold(t *testing.T) {
	for _, c := range []struct {
		what, node, old, text string
		says                  string // empty: nothing is wrong
	}{
		{"nothing changed", "rt-sh-1", "", "", ""},
		{"another node moved", "rt-sh-1", "127.0.0.1:7002", "127.0.0.1:7992", ""},
		{"a router's QUIC address", "rt-sh-1", "127.0.0.1:7001", "127.0.0.1:7991", "quic address"},
		{"a router's gossip address", "rt-sh-1", "127.0.0.1:6101", "127.0.0.1:6991", "wan address"},
		{"a broker's client address", "rz01-a-1", "127.0.0.1:8081", "127.0.0.1:8991", "client address"},
		{"a cache's admin address", "cache-sh", "127.0.0.1:5118", "127.0.0.1:5991", "admin address"},
		{"a removed router", "rt-sh-2", "name: rt-sh-2", "name: rt-sh-3", "not have this node any more"},
		{"a renamed zone", "rz01-a-1", "rz01", "rz91", "not have this node any more"},
		{"a renamed city", "rt-sh-1", "shanghai", "suzhou", "issue a certificate"},
	} {
		self := parse(t, sample.YAML).FindNode(zone.Node(c.node))
		got := drift(self, parse(t, changed(t, "2", c.old, c.text)))
		if c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q; want %q", c.what, got, c.says)
		}
	}
}

// TestTextIsOfTheTopologyInForce replaces the file by one that is refused before
// anybody has asked for the one in force.
func TestTextIsOfTheTopologyInForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topology.yaml")
	f := &fileText{path: path}
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.read(path); err != nil {
			t.Fatal(err)
		}
	}
	second := changed(t, "2", "", "")
	write(sample.YAML)
	if got := f.of(parse(t, sample.YAML)); !bytes.Equal(got, sample.YAML) {
		t.Error("the first text is not that of the file")
	}
	write(second)
	write([]byte("deployment: broken\n"))
	for range 2 * keepTexts {
		if _, err := f.read(path); err != nil { // a file that stays is read again and again
			t.Fatal(err)
		}
	}
	if got := f.of(parse(t, second)); !bytes.Equal(got, second) {
		t.Errorf("the text is not that of the topology in force, but begins with %.40q", got)
	}
}

// TestCitiesWithTwoTopologiesOfOneEpochAreTold compares what routers greeted with.
func TestCitiesWithTwoTopologiesOfOneEpochAreTold(t *testing.T) {
	mine := parse(t, sample.YAML)
	other := parse(t, bytes.Replace(sample.YAML, []byte("retention: 168h"), []byte("retention: 167h"), 1))
	newer := parse(t, changed(t, "2", "", ""))
	up := func(node zone.Node, city zone.City, class zone.Class, top *zone.Topology) link.Status {
		return link.Status{Node: node, City: city, Class: class, Epoch: top.Epoch, Digest: top.Digest}
	}
	got := diverged(mine, []link.Status{
		up("rt-hz-1", "hangzhou", zone.ClassUrgent, mine), up("rt-sz-1", "shenzhen", zone.ClassUrgent, newer),
		{Node: "rt-sz-2", City: "shenzhen"}, // never greeted
		up("rt-hz-2", "hangzhou", zone.ClassUrgent, other), up("rt-hz-2", "hangzhou", zone.ClassBulk, other),
	})
	if len(got) != 1 || !strings.Contains(got[0], "rt-hz-2 of hangzhou") {
		t.Errorf("got %q; want rt-hz-2 alone, once", got)
	}
}
