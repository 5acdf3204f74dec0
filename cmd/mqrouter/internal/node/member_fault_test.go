package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/internal/disk"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// running is a member that a test can look into.
type running struct {
	*memberNode
	stop func()
}

// unstarted is a member that does not run.
func (c *coordinated) unstarted(t *testing.T, name zone.Node) *memberNode {
	t.Helper()
	o := Options{Version: "test", Logger: slog.New(slog.DiscardHandler), FS: disk.OS{}}
	b, err := open(t.Context(), config.Node{Name: string(name), Topology: c.file, PKI: c.dir, DataDir: filepath.Join(c.dir, "data", string(name))}, zone.RoleBroker, o)
	if err != nil {
		t.Fatal(err)
	}
	m := newMember(b, o)
	t.Cleanup(func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	})
	m.tails = broker.NewTails(o.FS, m.cfg.DataDir)
	return m
}

// member runs a node of the group until the test ends or stop is called.
func (c *coordinated) member(t *testing.T, name zone.Node) *running {
	t.Helper()
	return c.memberWith(t, name, true)
}

// memberWith says whether clients need TLS.
func (c *coordinated) memberWith(t *testing.T, name zone.Node, plaintext bool) *running {
	t.Helper()
	return c.memberOn(t, name, plaintext, broker.Limits{}, nil)
}

// memberOn is memberWith with limits of the store, and a disk.
func (c *coordinated) memberOn(t *testing.T, name zone.Node, plaintext bool, limits broker.Limits, fsys disk.FS) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	o := Options{Version: "test", Logger: slog.New(slog.DiscardHandler), Ready: func() { close(ready) }, Limits: limits, FS: fsys}
	b, err := open(ctx, config.Node{Name: string(name), Topology: c.file, PKI: c.dir, DataDir: filepath.Join(c.dir, "data", string(name)), Plaintext: plaintext, Grace: 2 * time.Second}, zone.RoleBroker, o)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{memberNode: newMember(b, o)}
	done := make(chan error, 1)
	go func() { done <- r.runAll(ctx) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("%s: %v", name, err)
	}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

// until waits for what must come to be. A wait that is in vain says what for, which the
// package's time limit would not.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	beat := time.NewTicker(5 * time.Millisecond)
	defer beat.Stop()
	late := time.After(3 * time.Minute)
	for !ok() {
		select {
		case <-beat.C:
		case <-late:
			t.Fatal("never: " + what)
		}
	}
}

// publishThrough sends a message through a node until it is acknowledged.
func (c *coordinated) publishThrough(t *testing.T, n zone.Node, topic string, number int) {
	t.Helper()
	conn, err := grpc.NewClient(c.top.FindNode(n).Client, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := pb.NewMessagingServiceClient(conn)
	until(t, "a publish through "+string(n), func() bool {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-mq-client-id", "c"), 5*time.Second)
		defer cancel()
		resp, err := client.SendMessage(ctx, &pb.SendMessageRequest{Messages: []*pb.Message{{Topic: &pb.Resource{Name: topic}, Body: []byte("x"),
			SystemProperties: &pb.SystemProperties{MessageId: fmt.Sprintf("01%030d", number), MessageType: pb.MessageType_NORMAL, BodyEncoding: pb.Encoding_IDENTITY, BornTimestamp: timestamppb.Now(), BornHost: "h"}}}})
		return err == nil && resp.GetStatus().GetCode() == pb.Code_OK
	})
}

// masterOf waits until one of the nodes serves as the master.
func masterOf(t *testing.T, nodes ...*running) (master *running, others []*running) {
	t.Helper()
	return masterAfter(t, 0, nodes...)
}

// masterAfter waits until one of the nodes serves as the master of a later epoch. On a
// machine that stands still for a moment anyone's lease may lapse, and anyone be elected.
func masterAfter(t *testing.T, epoch uint64, nodes ...*running) (master *running, others []*running) {
	t.Helper()
	until(t, fmt.Sprintf("a master after epoch %d", epoch), func() bool {
		master, others = nil, nil
		for _, n := range nodes {
			if l := n.life.Load(); l != nil && l.reigns() && l.holdsLease() && l.epoch.Load() > epoch {
				master = n
				continue
			}
			others = append(others, n)
		}
		return master != nil
	})
	return master, others
}

// sameStore reports whether the logs of two members that run are of one store.
func sameStore(a, b *running) bool {
	x, y := a.life.Load(), b.life.Load()
	return x != nil && y != nil && x.broker.Log().Incarnation() == y.broker.Log().Incarnation()
}

// A master of which a part fails gives its lease up, a later epoch begins, and all are in
// sync again. A replica whose store is damaged starts all the same, and becomes a copy.
func TestAMasterThatFailsIsReplaced(t *testing.T) {
	c := newTrio(t)
	a, b, d := c.member(t, "g-1"), c.member(t, "g-2"), c.member(t, "g-3")
	c.publishThrough(t, "g-1", "safe", 1) // all three are in sync
	first, _ := masterOf(t, a, b, d)
	epoch := first.known().Epoch
	first.life.Load().failed("broker", errors.New("an index cannot be opened"))
	second, others := masterAfter(t, epoch, a, b, d)
	c.publishThrough(t, first.self.Name, "safe", 2) // the one that failed is in sync again

	second.stop()
	third, rest := masterOf(t, others...)
	victim := rest[0]
	c.publishThrough(t, third.self.Name, "orders", 3)

	// The store is damaged while the node is down: it passes clients on, and becomes a
	// copy when the group has gone on without it.
	again := c.member(t, second.self.Name)
	c.publishThrough(t, third.self.Name, "safe", 4)
	victim.stop()
	data := filepath.Join(c.dir, "data", string(victim.self.Name))
	if err := os.Truncate(filepath.Join(data, "log", "META"), 0); err != nil {
		t.Fatal(err)
	}
	healed := c.member(t, victim.self.Name)
	until(t, "clients are passed on", func() bool { return healed.forwarder.Load() != nil })
	passes := healed.forwarder.Load()
	c.publishThrough(t, victim.self.Name, "orders", 5)
	until(t, "a copy of the others", func() bool {
		return sameStore(healed, again)
	})
	if healed.forwarder.Load() != passes { // before it is in sync and may be elected
		t.Error("clients were cut off while the store was replaced")
	}
	c.publishThrough(t, victim.self.Name, "safe", 6)
	entries, err := os.ReadDir(data)
	if err != nil {
		t.Fatal(err)
	}
	kept := false
	for _, e := range entries {
		kept = kept || strings.HasPrefix(e.Name(), "log.damaged-")
	}
	if !kept {
		t.Errorf("the damaged log was not kept: %v", entries)
	}
}
