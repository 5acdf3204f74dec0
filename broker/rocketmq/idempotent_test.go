package rocketmq

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// neighbours lets the brokers of a zone ask each other without a network.
type neighbours map[zone.Group]*broker.Broker

// Call implements broker.Caller.
func (n neighbours) Call(ctx context.Context, group zone.Group, kind broker.CallKind, body []byte) ([]byte, error) {
	if n[group] == nil {
		return nil, &broker.Error{Op: "call", Kind: broker.KindUnavailable, Text: "group " + string(group)}
	}
	return n[group].ServeCall(ctx, kind, append([]byte(nil), body...))
}

// startZone is a front end over each of two brokers of one zone, with topic t
// idempotent, and who reaches whom.
func startZone(t *testing.T) (front [2]*bench, zoned neighbours) {
	t.Helper()
	zoned = neighbours{}
	text := strings.Replace(topologyText, "{name: t, queues: 2,", "{name: t, queues: 2, idempotent: 10m,", 1)
	topo, err := zone.Parse(fmt.Appendf(nil, text, 8081), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []zone.Node{"b1", "b2"} {
		var core *broker.Broker
		b := start(t, func(o *Options) {
			var err error
			core, err = broker.Open(t.Context(), broker.Options{FS: disk.NewMem(), Dir: "data", Node: topo.FindNode(name), Topology: topo})
			if err != nil {
				t.Fatal(err)
			}
			o.Store, o.Group = core, topo.FindNode(name).Group.Name
		})
		zoned[topo.FindNode(name).Group.Name] = core
		core.SetCaller(zoned)
		t.Cleanup(func() { // before the one of start, so the server ends first
			b.stop()
			if err := core.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		front[i] = b
	}
	return front, zoned
}

// A client that repeats a send at another broker of the zone gets the first answer;
// one that uses an id twice is told so; one whose message's home is away is asked to
// come again.
func TestIdempotentSendsOverTheProtocol(t *testing.T) {
	front, zoned := startZone(t)
	clients := []pb.MessagingServiceClient{front[0].dial(t, nil), front[1].dial(t, nil)}
	for i := range 20 {
		m := msg("t", fmt.Sprint("M", i), nil)
		first, again := send(t, clients[0], m), send(t, clients[1], m)
		want(t, first.GetStatus(), pb.Code_OK)
		want(t, again.GetStatus(), pb.Code_OK)
		a, b := first.GetEntries()[0], again.GetEntries()[0]
		if a.GetOffset() != b.GetOffset() || a.GetMessageId() != b.GetMessageId() || a.GetStatus().GetMessage() != b.GetStatus().GetMessage() {
			t.Errorf("message %d: %v, then %v", i, a, b)
		}
		m.Body = []byte("another payment")
		want(t, send(t, clients[i%2], m).GetStatus(), pb.Code_ILLEGAL_MESSAGE_ID)
	}
	delete(zoned, "g2")
	codes := map[pb.Code]int{}
	for i := range 40 {
		codes[send(t, clients[0], msg("t", fmt.Sprint("N", i), nil)).GetStatus().GetCode()]++
	}
	if codes[pb.Code_OK] < 5 || codes[pb.Code_TOO_MANY_REQUESTS] < 5 || len(codes) != 2 {
		t.Errorf("with one of two groups away: %v", codes)
	}
}
