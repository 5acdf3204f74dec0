package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

func TestConsulIsAskedWhereTheTopologySaysSo(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)...) // nobody answers there
	c := newCoordinated(t)
	at := func(top *zone.Topology, name zone.Node) city {
		log := slog.New(slog.DiscardHandler)
		b := &base{stack: newStack(), log: log, self: top.FindNode(name), cfg: config.Node{DataDir: "data", Consul: config.Consul{Address: "http://" + addr}}}
		return city{b, func() *zone.Topology { return top }}
	}
	if _, err := at(c.top, "g-1").startConsul(t.Context(), disk.NewMem()); err == nil || !strings.Contains(err.Error(), "not Consul") {
		t.Errorf("a place at Consul in a city with raft: %v", err)
	}
	top := parse(t, []byte(strings.Replace(withoutVoters(c.text), "driver: raft", "driver: consul", 1)))
	member := at(top, "g-1")
	place, err := member.startConsul(t.Context(), disk.NewMem())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := member.close(); err != nil {
			t.Error(err)
		}
	}()
	if d := place.Timing(); d.Lease != top.FindCity("c").Coordinator.Lease || d.Renew*2 > d.Lease || d.Margin == 0 {
		t.Errorf("timing %+v for a lease of %s", d, top.FindCity("c").Coordinator.Lease)
	}
	if own := member.ownGroups(); len(own) != 1 || own[0] != "g" {
		t.Errorf("own groups %v", own)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if _, _, err := place.Renew(ctx, "g", coordinator.Standing{Node: "g-1", Fit: true}); !errors.Is(err, coordinator.KindNoQuorum) {
		t.Errorf("renew at an address where nobody answers: %v", err)
	}
}

// withoutVoters takes the voters and nodes out of a coordinator.
func withoutVoters(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		s := strings.TrimSpace(line)
		ofVoters := strings.HasPrefix(s, "voters:") || strings.HasPrefix(s, "- {name: co-") || strings.HasPrefix(line, "      nodes:")
		if !ofVoters {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}
