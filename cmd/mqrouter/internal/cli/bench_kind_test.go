package cli

import (
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

func TestKindShapesMessages(t *testing.T) {
	for kind, want := range map[string]pb.MessageType{
		"normal": pb.MessageType_MESSAGE_TYPE_UNSPECIFIED, "fifo": pb.MessageType_FIFO,
		"delay": pb.MessageType_MESSAGE_TYPE_UNSPECIFIED, "transaction": pb.MessageType_TRANSACTION,
	} {
		k := kindFlags{kind: kind, groups: 3, delay: time.Hour}
		if err := k.check(); err != nil {
			t.Fatal(err)
		}
		groups := map[string]int{}
		for turn := range uint64(9) {
			var m rocketmqclient.Message
			k.shape(&m, turn)
			groups[m.MessageGroup]++
			if ahead := time.Until(m.DeliverAt); m.Type != want || (kind == "delay") != (ahead > 59*time.Minute && ahead <= time.Hour) {
				t.Fatalf("%s: %+v", kind, m)
			}
		}
		if kind == "fifo" != (len(groups) == 3 && groups["g0"] == 3) {
			t.Errorf("%s: messages of groups %v", kind, groups)
		}
	}
	for _, k := range []kindFlags{{kind: "lite", groups: 1, delay: 1}, {kind: "fifo", delay: 1}, {kind: "delay", groups: 1}} {
		if k.check() == nil {
			t.Errorf("%+v passes", k)
		}
	}
}
