package dev

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/pki"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

// TestMapNamesAnAdminAddressThatExists takes routers away, which are the first
// that the hint could name: a deployment of one city needs none.
func TestMapNamesAnAdminAddressThatExists(t *testing.T) {
	admins := regexp.MustCompile(`\n +admin: 127\.0\.0\.1:51(01|02)\b`)
	for what, c := range map[string]struct {
		text    []byte
		routers bool
		want    string
	}{
		"the default address needs no hint": {sample.YAML, true, ""},
		"no router has an admin address":    {admins.ReplaceAll(sample.YAML, nil), true, "export MQROUTER_ADMIN=127.0.0.1:5118"},
		"no routers":                        {sample.YAML, false, "export MQROUTER_ADMIN=127.0.0.1:5118"},
	} {
		top, err := zone.Parse(c.text, "sample")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !c.routers {
			top.Cities = top.Cities[:1]
			top.Cities[0].Routers = nil
		}
		var out bytes.Buffer
		d := &deployment{o: Options{Out: &out, Program: "mqrouter"}, t: top, nodes: pki.Nodes(top)}
		d.printMap()
		if got := out.String(); c.want == "" && strings.Contains(got, "MQROUTER_ADMIN") || !strings.Contains(got, c.want) {
			t.Errorf("%s: want %q in\n%s", what, c.want, got)
		}
	}
}

// TestMapSuggestsOnlyWhatTheTopologyHas takes a topology without the tour's zones.
func TestMapSuggestsOnlyWhatTheTopologyHas(t *testing.T) {
	for _, c := range []struct {
		text []byte
		want []string
		not  string
	}{
		{sample.YAML, []string{"mqrouter publish --zone rz01", "mqrouter consume --zone rz04", "mqrouter broadcast set", "cache   in-process"}, "topic list"},
		{bytes.ReplaceAll(sample.YAML, []byte("rz04"), []byte("rz94")), []string{"mqrouter status", "mqrouter topic list"}, "rz01 --topic"},
	} {
		top, err := zone.Parse(c.text, "sample")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		(&deployment{o: Options{Out: &out, Program: "mqrouter"}, t: top, nodes: pki.Nodes(top)}).printMap()
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in\n%s", want, out.String())
			}
		}
		if strings.Contains(out.String(), c.not) {
			t.Errorf("%q in\n%s", c.not, out.String())
		}
	}
}

// TestOnlyWhatIsChosenIsStartedAndShown chooses a city, a zone and a node.
func TestOnlyWhatIsChosenIsStartedAndShown(t *testing.T) {
	top, err := zone.Parse(sample.YAML, "sample")
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := chosen(top, []string{"shenzhen", "rz04", "rt-hz-2"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range nodes {
		names = append(names, string(n.Name))
	}
	if got := strings.Join(names, " "); got != "rt-hz-2 rz04-a-1 rt-sz-1 rt-sz-2 cache-sz rz05-a-1 cz-sz-a-1" {
		t.Errorf("chosen: %s", got)
	}
	var out bytes.Buffer
	(&deployment{o: Options{Out: &out, Program: "mqrouter"}, t: top, nodes: nodes}).printMap()
	for want, there := range map[string]bool{"shanghai": false, "127.0.0.1:7003": false, "127.0.0.1:7004": true, "rz03": false, "8087": true, "8090": true,
		"MQROUTER_ADMIN=127.0.0.1:5109": true, "mqrouter topic list": true} {
		if strings.Contains(out.String(), want) != there {
			t.Errorf("%q in the map is not %v:\n%s", want, there, out.String())
		}
	}
	if _, err := chosen(top, []string{"rz99"}); err == nil {
		t.Error("a name of nothing was accepted")
	}
}

// TestMapSaysHowToKillAMaster of a group with replicas, which is not the same process
// after each fail-over.
func TestMapSaysHowToKillAMaster(t *testing.T) {
	text, err := sample.Replicated(3)
	if err != nil {
		t.Fatal(err)
	}
	top, err := zone.Parse(text, "replicas")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	d := &deployment{o: Options{Out: &out, Program: "mqrouter", Processes: true, Replicas: 3}, f: folder{"x"}, t: top, nodes: pki.Nodes(top)}
	d.printMap()
	for _, want := range []string{"mqrouter brokergroup status", "kill -9 $(cat x/masters/rz01-a)", "127.0.0.1:8083"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
}
