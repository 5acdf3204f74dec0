package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/internal/admin"
)

func TestStatusShowsALinkOnceUnlessItsEndsDisagree(t *testing.T) {
	ends := func(a, b string) []admin.Status {
		return []admin.Status{
			{Node: "rt-a", City: "east", Ready: true, Links: []admin.Link{{Peer: "rt-b", City: "west", Class: "bulk", State: a}}},
			{Node: "rt-b", City: "west", Ready: true, Links: []admin.Link{{Peer: "rt-a", City: "east", Class: "bulk", State: b}}},
		}
	}
	for _, c := range []struct {
		a, b string
		rows int
	}{{"up", "up", 1}, {"up", "red", 2}} {
		var out bytes.Buffer
		printLinks(&out, ends(c.a, c.b))
		if got := strings.Count(out.String(), "bulk"); got != c.rows {
			t.Errorf("%s and %s: %d rows, want %d:\n%s", c.a, c.b, got, c.rows, out.String())
		}
	}
	var out bytes.Buffer
	printLinks(&out, ends("up", "up")[1:])
	if !strings.Contains(out.String(), "rt-b - rt-a") {
		t.Errorf("the only end that answered is not shown:\n%s", out.String())
	}
	want := "2 of 2 nodes ready, 1 of 2 link ends up, 0 records on the way, 0 messages not consumed"
	if got := verdict(ends("up", "red")); got != want {
		t.Errorf("verdict %q, want %q", got, want)
	}
}

func TestStatusShowsWhatCorrectionLeaves(t *testing.T) {
	for want, l := range map[string]admin.Link{
		"1.20% -":                {Loss: 0.012},
		"1.00% 0.02% left, +14%": {Loss: 0.0002, Correction: &admin.Correction{Loss: 0.01, Redundancy: 0.141}},
		"2.00% held back: queue of " + age(30*1e6): {Loss: 0.02, Correction: &admin.Correction{Loss: 0.02, Congested: true, Queue: 30 * 1e6}},
	} {
		l.Class, l.State = "bulk", "up"
		var out bytes.Buffer
		printLinks(&out, []admin.Status{{Node: "rt-a", City: "east", Links: []admin.Link{l}}})
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
}
