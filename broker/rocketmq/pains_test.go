package rocketmq

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// openOn makes a server with the real broker on a disk. The broker is closed when
// the test ends, not with the server: for the disk it crashed. topo is nil at the
// first start on a disk.
func openOn(t *testing.T, fs disk.FS, topo *zone.Topology) (*bench, *broker.Broker) {
	t.Helper()
	var core *broker.Broker
	b := start(t, func(o *Options) {
		if topo == nil {
			topo = o.Store.Topology()
		}
		var err error
		core, err = broker.Open(t.Context(), broker.Options{FS: fs, Dir: "data", Node: topo.FindNode("bc1"), Topology: topo})
		if err != nil {
			t.Fatal(err)
		}
		o.Store, o.Zone = core, "c1"
	})
	core.SetLiveness(b.Alive)
	t.Cleanup(func() {
		b.stop()
		if err := core.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b, core
}

// The broker dies by power loss with messages in its clients' hands. Handles need
// no memory of the server: at the next one every one settles its delivery, by
// whatever call comes first, and what was settled does not come again.
func TestQ3_HandlesOutliveTheServer(t *testing.T) {
	mem := disk.NewMem()
	first, core := openOn(t, mem, nil)
	c := first.dial(t, nil)
	for _, id := range []string{"acked", "moved", "buried", "left"} {
		mustSend(t, c, msg("t", id, nil))
	}
	handles := map[string]string{}
	got, err := tryPull(as(t, "c"), c, push("g", "t", time.Second)) // renewed by the server as long as its client lives
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range got.msgs {
		handles[m.GetSystemProperties().GetMessageId()] = m.GetSystemProperties().GetReceiptHandle()
	}
	if len(handles) != 4 {
		t.Fatalf("received %v", handles)
	}
	after := mem.Crash(rand.New(rand.NewPCG(1, 1)))
	first.stop()

	second, _ := openOn(t, after, core.Topology())
	c = second.dial(t, nil)
	want(t, ack(t, c, handles["acked"]).GetStatus(), pb.Code_OK)
	moved := nack(t, c, "stranger", handles["moved"], durationpb.New(time.Hour))
	want(t, moved.GetStatus(), pb.Code_OK)
	want(t, dead(t, c, handles["buried"]), pb.Code_OK)
	again := pull(t, c, simple("g", "t", 32))
	if len(again.msgs) != 1 || again.msgs[0].GetSystemProperties().GetMessageId() != "left" {
		t.Errorf("what comes again: %v, want the message that nobody settled", again.msgs)
	}
	want(t, ack(t, c, moved.GetReceiptHandle()).GetStatus(), pb.Code_OK)
	if letters := pull(t, c, simple("g", "%DLQ%g", 32)); len(letters.msgs) != 1 {
		t.Errorf("dead letters %v", letters.msgs)
	}
}

// A settlement fails inside, in whatever way may pass: the client is not told that
// its handle is void, its next try with it succeeds, and so does the one after.
func TestQ4_EverySettlementMayBeRepeated(t *testing.T) {
	for name, settle := range map[string]func(*testing.T, pb.MessagingServiceClient, string) *pb.Status{
		"ack": func(t *testing.T, c pb.MessagingServiceClient, h string) *pb.Status { return ack(t, c, h).GetStatus() },
		"forward": func(t *testing.T, c pb.MessagingServiceClient, h string) *pb.Status {
			return dead(t, c, h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			c := b.dial(t, nil)
			handle := deliver(t, c, "M").GetReceiptHandle()
			b.store.mu.Lock()
			failures := []broker.Kind{broker.KindBusy, broker.KindDiskFull, broker.KindStopped, broker.KindInternal}
			b.store.settle = func(op, _ string) error {
				if len(failures) == 0 {
					return nil
				}
				k := failures[0]
				failures = failures[1:]
				return &broker.Error{Op: op, Kind: k}
			}
			tries := len(failures)
			b.store.mu.Unlock()
			for range tries {
				if st := settle(t, c, handle); st.GetCode() == pb.Code_OK || st.GetCode() == pb.Code_INVALID_RECEIPT_HANDLE {
					t.Fatalf("%v although it failed: the client would not try again", st)
				}
			}
			want(t, settle(t, c, handle), pb.Code_OK)
			want(t, settle(t, c, handle), pb.Code_OK)
			if again := pull(t, c, simple("g", "t", 1)); len(again.msgs) != 0 {
				t.Errorf("it came again: %v", again.msgs)
			}
		})
	}
}

// An order is promised to whom the topic and the message say it: what does not go
// together is refused with both named, and nothing is stored. That the topic decides
// for a group which says nothing is proved at the broker.
func TestO1_MessageTypeGoesWithTheTopic(t *testing.T) {
	b := start(t, nil)
	c := b.dial(t, nil)
	for what, r := range map[string]*pb.SendMessageResponse{
		"an ordered message on a normal topic":   send(t, c, msg("t", "M", fifo("u1"))),
		"a normal message on an ordered topic":   send(t, c, msg("ordered", "M", nil)),
		"a message group on a normal message":    send(t, c, msg("t", "M", func(m *pb.Message) { m.SystemProperties.MessageGroup = str("u1") })),
		"a message group on an ordered's normal": send(t, c, msg("ordered", "M", func(m *pb.Message) { m.SystemProperties.MessageGroup = str("u1") })),
	} {
		if st := r.GetStatus(); st.GetCode() != pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE || st.GetMessage() == "" {
			t.Errorf("%s: %v", what, st)
		}
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if len(b.store.topics["t"])+len(b.store.topics["ordered"]) != 0 {
		t.Error("something was stored")
	}
}

// Names that the system makes itself, and patterns that might match them, name
// nothing that a client can write: no rule reaches retries, dead letters, half
// messages or probes. Only dead letters can be read, by name.
func TestP4_InternalTopicsAreOutOfReach(t *testing.T) {
	c := start(t, nil).dial(t, nil)
	for _, name := range []string{
		"%RETRY%g", "%DLQ%g", "%DLQ%", "%DLQ%nobody", "%SYS%x", "%LMQ%x", "%MQR%probe", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
		"rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster", "SCHEDULE_TOPIC_XXXX", "TBW102", "BenchmarkTest", "OFFSET_MOVED_EVENT", "CID_RMQ_SYS_TRANS",
		"*", "t*", ">", "t.>", "+/t", "#", "%", "|",
	} {
		denied := func(what string, st *pb.Status) {
			t.Helper()
			switch st.GetCode() {
			case pb.Code_ILLEGAL_TOPIC, pb.Code_TOPIC_NOT_FOUND:
			default:
				t.Errorf("%s %q: %v", what, name, st)
			}
		}
		denied("send to", send(t, c, msg(name, "M", nil)).GetStatus())
		if strings.HasPrefix(name, broker.DeadLetterPrefix) {
			for _, q := range route(t, c, res(name)).GetMessageQueues() {
				if q.GetPermission() != pb.Permission_READ {
					t.Errorf("%s may be used for %v", name, q.GetPermission())
				}
			}
			continue
		}
		denied("route of", route(t, c, res(name)).GetStatus())
		denied("receive of", pull(t, c, simple("g", name, 1)).status)
	}
	// Nor can a topology declare them, or use a pattern.
	for _, name := range []string{"%RETRY%g", "%DLQ%g", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "TBW102", "t*", "*"} {
		text := strings.Replace(strings.ReplaceAll(topologyText, "%d", "1"), "topics:\n", "topics:\n  - {name: '"+name+"', route: {broadcast: city}}\n", 1)
		if _, err := zone.Parse([]byte(text), "test.yaml"); err == nil {
			t.Errorf("a topology may declare the topic %s", name)
		}
	}
}
