package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/admin"
)

func TestStatusShowsThePathsThatAreNotAsTheyShouldBe(t *testing.T) {
	show := func(p admin.Path) string {
		p.City, p.Class, p.Since = "west", "bulk", time.Now().Add(-time.Minute)
		var out bytes.Buffer
		printPaths(&out, []admin.Status{{Node: "rt-a", City: "east", Paths: []admin.Path{p}}})
		return strings.Join(strings.Fields(out.String()), " ")
	}
	for name, c := range map[string]struct {
		path admin.Path
		want []string
	}{
		"direct":       {admin.Path{Up: true, Direct: 3, Detours: []string{"north"}}, []string{"no detours"}},
		"round":        {admin.Path{Via: "north", Reason: "direct link down", Detoured: 2}, []string{"rt-a - west", "via north", "0 direct, 2 round", "direct link down"}},
		"about to end": {admin.Path{Up: true, Via: "north", Reason: "direct link down", Return: 10 * time.Second}, []string{"via north", "back when it has worked for 10s"}},
		"ended":        {admin.Path{Up: true, Direct: 1, Detoured: 1}, []string{"direct link works again", "1 direct, 1 round"}},
		"no way":       {admin.Path{}, []string{"none", "no other city reaches west"}},
		"no way yet":   {admin.Path{Detours: []string{"north"}}, []string{"none", "about to go via north"}},
	} {
		got := show(c.path)
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", name, got, w)
			}
		}
	}
}
