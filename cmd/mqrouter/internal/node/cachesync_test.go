package node

import (
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

func sampleWith(t *testing.T, replace ...string) *zone.Topology {
	t.Helper()
	topology, err := zone.Parse([]byte(strings.NewReplacer(replace...).Replace(string(sample.YAML))), "sample")
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

func TestCacheReadsFromTheOwnerOfTheChannelsSlot(t *testing.T) {
	plain := sampleWith(t)
	shared := "  - name: prices\n    class: urgent\n    channel: member\n    route: {broadcast: city}\n\n  - name: member\n"
	for _, c := range []struct {
		name     string
		topology *zone.Topology
		group    string
		want     string // of the error, or topics with what they are read from
	}{
		{"sample", plain, "member-cache", "member from cz-hz-a-1 of cz-hz-a, exclusive"},
		{"unknown group", plain, "nobody", `consumer group "nobody" is not in the topology`},
		{"consumers' group", plain, "member-watch", `consumer group "member-watch" is not declared with cache: true`},
		{"two topics", sampleWith(t, "  - name: member\n", shared, "  - name: member-cache\n    topics: [member]", "  - name: member-cache\n    topics: [member, prices]"),
			"member-cache", "member from cz-hz-a-1 of cz-hz-a; prices from cz-hz-a-1 of cz-hz-a"},
	} {
		n := &cacheNode{base: &base{self: c.topology.FindNode("cache-hz"), cfg: config.Node{Group: c.group}}}
		feeds, err := n.plan(c.topology)
		got := ""
		if err != nil {
			got = err.Error()
		}
		for i, f := range feeds {
			if i > 0 {
				got += "; "
			}
			got += string(f.topic) + " from " + string(f.target.Identity.Name) + " of " + string(f.group)
			if f.exclusive {
				got += ", exclusive"
			}
			if f.target.Identity.City != "hangzhou" || f.target.Addr == "" || f.target.Class != zone.ClassUrgent {
				t.Errorf("%s: target %+v", c.name, f.target)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestCacheStatusAddsUpItsTopics(t *testing.T) {
	c := &admin.Cache{}
	addCache(c, &broadcast.Status{State: broadcast.StateFollowing, Place: broadcast.Place{Offset: 7}, Lag: 1, Applied: 2, Gaps: 1, Watermarks: make([]broadcast.Mark, 2)}, true)
	addCache(c, &broadcast.Status{State: broadcast.StateHeld, Place: broadcast.Place{Offset: 9}, Lag: 3, Applied: 4, Rejected: 5, Superseded: 6, Problem: "why"}, false)
	addCache(c, &broadcast.Status{State: broadcast.StateFollowing}, false)
	if c.State != "held" || c.Offset != 7 || c.Lag != 4 || c.Applied != 6 || c.Rejected != 5 || c.Superseded != 6 || c.Gaps != 1 || len(c.Watermarks) != 2 || c.Problem != "why" {
		t.Errorf("%+v", c)
	}
}
