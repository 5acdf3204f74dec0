package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// twoGroups is a zone of two broker groups whose topic "once" is idempotent.
func twoGroups() plan {
	p := oneZoneEach()
	p.cities[0].zones[0].groups = 2
	p.topics = append(p.topics, "{name: once, idempotent: 10m, route: {explicit: {property: to}}}")
	p.groups = append(p.groups, "{name: once-read, topics: [once]}")
	return p
}

// TestIdempotentSendsThroughTheZone: real nodes, whose calls go over TLS between
// them. A copy at either broker is the first message, also when the home was killed
// between them; a home that is away makes the send be refused for a moment, and no
// longer than it is away.
func TestIdempotentSendsThroughTheZone(t *testing.T) {
	bubble(t, 20, twoGroups(), func(t *testing.T, w *world) {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(w.ctx, "x-mq-client-id", "once"), 10*time.Minute)
		defer cancel()
		time.Sleep(settleIn)
		z := w.top.FindZone("rz1")
		brokers := []pb.MessagingServiceClient{w.stubOf(z.Groups[0].Nodes[0]), w.stubOf(z.Groups[1].Nodes[0])}
		send := func(at, i int, to string) (pb.Code, string) {
			t.Helper()
			o := oddMessage{name: fmt.Sprint("m", i), change: func(m *pb.Message) {
				m.Topic, m.UserProperties["to"] = &pb.Resource{Name: "once"}, to
			}}
			one, done := context.WithTimeout(ctx, 3*time.Second)
			defer done()
			resp, err := brokers[at].SendMessage(one, &pb.SendMessageRequest{Messages: []*pb.Message{o.message("rz1")}})
			if err != nil {
				t.Fatalf("message %d at broker %d: %v", i, at, err)
			}
			if len(resp.GetEntries()) == 0 {
				return resp.GetStatus().GetCode(), resp.GetStatus().GetMessage()
			}
			return resp.GetStatus().GetCode(), fmt.Sprint(resp.GetEntries()[0].GetStatus().GetMessage(), " ", resp.GetEntries()[0].GetOffset())
		}
		places := map[int]string{}
		for i := range 40 {
			to := []string{"rz1", "rz2"}[i%2]
			code, first := send(i/2%2, i, to)
			again, second := send(1-i/2%2, i, to)
			if code != pb.Code_OK || again != pb.Code_OK || first != second {
				t.Fatalf("message %d: %s %q, then %s %q", i, code, first, again, second)
			}
			places[i] = first
		}
		second := w.nodes[z.Groups[1].Nodes[0].Name]
		second.crash(w.rng("crash"), true)
		codes := map[pb.Code]int{}
		for i := range 40 {
			code, text := send(0, i, []string{"rz1", "rz2"}[i%2])
			codes[code]++
			if code == pb.Code_OK && text != places[i] {
				t.Errorf("message %d went to %q, and its copy to %q", i, places[i], text)
			}
		}
		if codes[pb.Code_OK] < 5 || codes[pb.Code_TOO_MANY_REQUESTS] < 5 || len(codes) != 2 {
			t.Errorf("with one of two brokers away: %v", codes)
		}
		second.start()
		second.serves()
		time.Sleep(settleIn)
		for i := range 40 {
			if code, text := send(0, i, []string{"rz1", "rz2"}[i%2]); code != pb.Code_OK || text != places[i] {
				t.Errorf("message %d after the restart: %s %q, was %q", i, code, text, places[i])
			}
		}
	})
}
