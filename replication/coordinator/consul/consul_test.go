package consul

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/coordinator/conformance"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// quick is DefaultTiming at half the length.
var quick = coordinator.Timing{Lease: time.Second, Renew: 250 * time.Millisecond, Margin: 150 * time.Millisecond, Settle: 120 * time.Millisecond}

// member returns the coordinator of a node that runs until the test ends.
func member(t *testing.T, client *api.Client, n zone.Node) *Coordinator {
	t.Helper()
	c, _ := startMember(t, client, n, nil, quick)
	return c
}

// startMember is member with a memory; stop ends it before the test does.
func startMember(t *testing.T, client *api.Client, n zone.Node, m Memory, times coordinator.Timing) (c *Coordinator, stop func()) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("COORDINATOR_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", string(n))
	}
	c, err := New(Options{Client: client, Prefix: "mqrouter/test/" + t.Name(), Self: n, Group: conformance.Group, Groups: conformance.Groups, Timing: times,
		Memory: m, Lineage: func() record.LineageID { return record.LineageID(rand.Uint64() | 1) }, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return c, stop
}

// subject has each member at a server of its own, as agents are.
func subject(t *testing.T, all []*server, times coordinator.Timing) conformance.Subject {
	members := map[zone.Node]coordinator.Coordinator{}
	for i, n := range append([]zone.Node{"n9"}, conformance.Nodes...) {
		members[n], _ = startMember(t, all[i%len(all)].client(), n, nil, times)
	}
	return conformance.Subject{Client: func(n zone.Node) coordinator.Coordinator { return members[n] }, Timing: times}
}

func TestConsulConforms(t *testing.T) {
	all := servers(t, 1)
	conformance.Suite(t, quick, func(t *testing.T, times coordinator.Timing) conformance.Subject { return subject(t, all, times) })
}

func TestConsulKeepsThePromisesWhileItsServersDie(t *testing.T) {
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	all := servers(t, 3)
	s := subject(t, all, quick)
	s.Disturb = disturb(all)
	conformance.Faults(t, s, 1, rounds)
}

func TestWithoutConsulNothingIsDecided(t *testing.T) {
	all := servers(t, 1)
	c := member(t, all[0].client(), "n1")
	all[0].kill()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, l, err := c.Renew(ctx, conformance.Name, coordinator.Standing{Node: "n1", Fit: true})
	if !errors.Is(err, coordinator.KindNoQuorum) || l != (coordinator.Lease{}) {
		t.Errorf("renew without Consul: %+v, %v", l, err)
	}
	if _, err := c.Terms(ctx); !errors.Is(err, coordinator.KindNoQuorum) {
		t.Errorf("terms without Consul: %v", err)
	}
}

func TestForeignBytesAreRefusedAndNotOverwritten(t *testing.T) {
	all := servers(t, 1)
	kv := all[0].client().KV()
	c := member(t, all[0].client(), "n1")
	key := c.key(conformance.Name, "term")
	if _, err := kv.Put(&api.KVPair{Key: key, Value: []byte("{")}, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Renew(t.Context(), conformance.Name, coordinator.Standing{Node: "n1", Fit: true}); !errors.Is(err, coordinator.KindNoQuorum) {
		t.Errorf("renew over a term that is none: %v", err)
	}
	if p, _, err := kv.Get(key, nil); err != nil || p == nil || string(p.Value) != "{" {
		t.Errorf("the key was overwritten: %+v, %v", p, err)
	}
}
