package rocketmq

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// startReal is start with the real broker, in memory, as the store.
func startReal(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	var core *broker.Broker
	b := start(t, func(o *Options) {
		topo := o.Store.Topology()
		var err error
		core, err = broker.Open(t.Context(), broker.Options{FS: disk.NewMem(), Dir: "data", Node: topo.FindNode("bc1"), Topology: topo})
		if err != nil {
			t.Fatal(err)
		}
		o.Store, o.Zone, o.Group = core, "c1", "gc1" // a zone of one broker: every slot is at home
		for _, c := range change {
			c(o)
		}
	})
	core.SetLiveness(b.Alive)
	core.SetLiteNotify(b.LiteLost)
	core.SetProducers(b.CheckBack)
	t.Cleanup(func() { // before the one of start, so the server ends first
		b.stop()
		if err := core.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// TestOneStoryOnBothStores: what the other tests see of the store in memory is what
// the real broker does.
func TestOneStoryOnBothStores(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) *bench{
		"memory": func(t *testing.T) *bench { return start(t, nil) },
		"broker": func(t *testing.T) *bench { return startReal(t) },
	} {
		t.Run(name, func(t *testing.T) { story(t, begin(t).dial(t, nil)) })
	}
}

func story(t *testing.T, c pb.MessagingServiceClient) {
	var ms []*pb.Message
	for i := range 4 {
		ms = append(ms, msg("t", fmt.Sprint("M", i), func(m *pb.Message) {
			m.UserProperties = map[string]string{"k": "v"}
			m.SystemProperties.Tag, m.SystemProperties.Keys = str("x"), []string{"a", "b"}
			m.SystemProperties.TraceContext = str("00-a-b-01")
			m.SystemProperties.BodyEncoding = pb.Encoding_GZIP
		}))
	}
	resp := send(t, c, ms...)
	want(t, resp.GetStatus(), pb.Code_OK)
	if text := resp.GetEntries()[0].GetStatus().GetMessage(); !strings.HasPrefix(text, "level=stored zone=") {
		t.Errorf("level %q", text)
	}
	want(t, pull(t, c, withTag(simple("g", "t", 32), "none")).status, pb.Code_MESSAGE_NOT_FOUND)
	mustSend(t, c, msg("t", "M4", nil), msg("t", "M5", nil))
	if got := pull(t, c, withTag(simple("steps", "t", 32), "x")); len(got.msgs) != 4 {
		t.Errorf("the filtered group got %d messages, want 4", len(got.msgs))
	}
	handles := map[string]string{}
	got := pull(t, c, simple("g", "t", 32))
	for _, m := range got.msgs {
		handles[m.GetSystemProperties().GetMessageId()] = m.GetSystemProperties().GetReceiptHandle()
		if a := m.GetSystemProperties().GetDeliveryAttempt(); a != 1 {
			t.Errorf("first delivery is attempt %d", a)
		}
	}
	if len(handles) != 2 {
		t.Fatalf("received %v, want M4 and M5: the group passed over the others", handles)
	}
	want(t, ack(t, c, handles["M4"]).GetStatus(), pb.Code_OK)
	want(t, ack(t, c, handles["M4"]).GetStatus(), pb.Code_OK)
	want(t, ack(t, c, handles["M4"]+"0", "forged").GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)

	changed := nack(t, c, "consumer", handles["M5"], durationpb.New(0))
	want(t, changed.GetStatus(), pb.Code_OK)
	want(t, ack(t, c, handles["M5"]).GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
	again := pull(t, c, simple("g", "t", 32))
	if len(again.msgs) != 1 || again.msgs[0].GetSystemProperties().GetDeliveryAttempt() != 2 {
		t.Fatalf("after the negative acknowledgement: %v", again)
	}
	handle := again.msgs[0].GetSystemProperties().GetReceiptHandle()
	want(t, dead(t, c, handle), pb.Code_OK)
	want(t, dead(t, c, handle), pb.Code_OK)
	letters := pull(t, c, simple("g", "%DLQ%g", 32))
	if len(letters.msgs) != 1 {
		t.Fatalf("dead letters: %v (%v), want exactly one", letters.msgs, letters.status)
	}
	sp := letters.msgs[0].GetSystemProperties()
	if sp.GetDeadLetterQueue().GetTopic() != "t" || sp.GetDeadLetterQueue().GetMessageId() != "M5" || string(letters.msgs[0].GetBody()) != "body of M5" {
		t.Errorf("dead letter %v", letters.msgs[0])
	}
	want(t, pull(t, c, simple("g", "t", 32)).status, pb.Code_MESSAGE_NOT_FOUND)
}

func withTag(r *pb.ReceiveMessageRequest, tag string) *pb.ReceiveMessageRequest {
	r.FilterExpression = &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: tag}
	return r
}
