package config

import (
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/router/link"
)

func TestLinkSettings(t *testing.T) {
	n, err := load(t, "router")
	if err != nil {
		t.Fatal(err)
	}
	if rate, err := n.Link.RateBytes(); n.Link.Correct() == nil || rate != 0 || err != nil || n.Link.Connections != 4 {
		t.Errorf("by default: %+v, want four connections, correction and no limit", n.Link)
	}
	if n, err := n.Link.WindowBytes(); n != link.DefaultWindowMemory || err != nil {
		t.Errorf("windows by default: %d, %v", n, err)
	}
	if n, err := (Link{Windows: "0"}).WindowBytes(); n >= 0 || err != nil {
		t.Errorf("no windows: %d, %v", n, err)
	}
	t.Setenv("MQROUTER_LINK_RATE_LIMIT", "12MiB")
	path := file(t, "link-correction: auto\nlink-correction-extra: 40\nlink-connections: 8\n")
	n, err = load(t, "router", "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	if rate, err := n.Link.RateBytes(); rate != 12<<20 || err != nil || n.Link.Connections != 8 {
		t.Errorf("got %+v, %d, %v", n.Link, rate, err)
	}
	if c := n.Link.Correct(); c == nil || c.Extra != 0.4 {
		t.Errorf("correction %+v, want up to 40 %%", c)
	}
	for _, words := range []string{"auto", ""} {
		if c := (Link{Correction: words}).Correct(); c == nil || c.Extra != 0.25 {
			t.Errorf("correction %+v, want up to 25 %%", c)
		}
	}
	if c := (Link{Correction: "off"}).Correct(); c != nil {
		t.Errorf("correction %+v, want none", c)
	}
	if err := n.Link.validate(); err != nil {
		t.Error(err)
	}
}

func TestLinkFaultsAreNamed(t *testing.T) {
	for want, l := range map[string]Link{
		"write a number from 1 to 16":      {Connections: 17},
		"write auto or off":                {Correction: "on"},
		"write percent from 1 to 100":      {Extra: 250},
		"did you mean 12MiB":               {Rate: "12MB"},
		"a size from 256KiB to 100GiB":     {Rate: "1000"},
		"out of bounds":                    {Rate: "200GiB"},
		`link-rate-limit "-5MiB"`:          {Rate: "-5MiB"},
		"link-correction-extra -1: write":  {Extra: -1},
		`link-window-memory "1MiB": it is`: {Windows: "1MiB"},
		`link-window-memory "64"`:          {Windows: "64"},
		`link-window-memory "-1"`:          {Windows: "-1"},
	} {
		n := Node{Link: l}
		if err := n.Validate("router"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", l, err, want)
		}
		if err := n.Validate("broker"); err != nil && strings.Contains(err.Error(), "link-") {
			t.Errorf("a broker's configuration is told about links: %v", err)
		}
	}
}
