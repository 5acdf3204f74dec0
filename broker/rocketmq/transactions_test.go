package rocketmq

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// halfMsg makes a half message of the topic tx.
func halfMsg(id string) *pb.Message {
	return msg("tx", id, func(m *pb.Message) { m.SystemProperties.MessageType = pb.MessageType_TRANSACTION })
}

// sendHalf sends a half message that is left alone for longer than any test, and
// returns its transaction id.
func sendHalf(t *testing.T, c pb.MessagingServiceClient, id string) string {
	t.Helper()
	m := halfMsg(id)
	m.SystemProperties.OrphanedTransactionRecoveryDuration = durationpb.New(time.Hour)
	resp := send(t, c, m)
	want(t, resp.GetStatus(), pb.Code_OK)
	e := resp.GetEntries()[0]
	if e.GetTransactionId() == "" || e.GetMessageId() != id || e.GetStatus().GetMessage() != "level=half zone=c1" {
		t.Fatalf("entry %v", e)
	}
	return e.GetTransactionId()
}

func endTx(t *testing.T, c pb.MessagingServiceClient, topic, id string, r pb.TransactionResolution) *pb.Status {
	t.Helper()
	resp, err := c.EndTransaction(as(t, "producer"), &pb.EndTransactionRequest{Topic: res(topic), TransactionId: id, Resolution: r})
	if err != nil {
		t.Fatalf("end transaction: gRPC error %v", err)
	}
	return resp.GetStatus()
}

const (
	unknownTx  = pb.TransactionResolution_TRANSACTION_RESOLUTION_UNSPECIFIED
	commitTx   = pb.TransactionResolution_COMMIT
	rollbackTx = pb.TransactionResolution_ROLLBACK
)

// ids receives everything that is there now.
func ids(t *testing.T, c pb.MessagingServiceClient, topic string) []string {
	t.Helper()
	var list []string
	for _, m := range pull(t, c, simple("g", topic, 32)).msgs {
		list = append(list, m.GetSystemProperties().GetMessageId())
	}
	return list
}

func TestTransactionsByTheProtocol(t *testing.T) {
	c := startReal(t).dial(t, nil)
	kept, gone := sendHalf(t, c, "KEPT"), sendHalf(t, c, "GONE")
	if got := ids(t, c, "tx"); len(got) != 0 {
		t.Fatalf("half messages were delivered: %v", got)
	}
	want(t, endTx(t, c, "tx", kept, unknownTx), pb.Code_OK)
	if got := ids(t, c, "tx"); len(got) != 0 {
		t.Fatalf("an undecided message was delivered: %v", got)
	}
	for range 2 {
		want(t, endTx(t, c, "tx", kept, commitTx), pb.Code_OK)
		want(t, endTx(t, c, "tx", gone, rollbackTx), pb.Code_OK)
	}
	want(t, endTx(t, c, "tx", kept, rollbackTx), pb.Code_PRECONDITION_FAILED)
	want(t, endTx(t, c, "tx", gone, commitTx), pb.Code_PRECONDITION_FAILED)
	want(t, endTx(t, c, "tx", kept, unknownTx), pb.Code_OK)
	got := pull(t, c, simple("g", "tx", 32))
	if len(got.msgs) != 1 || got.msgs[0].GetSystemProperties().GetMessageId() != "KEPT" || string(got.msgs[0].GetBody()) != "body of KEPT" ||
		got.msgs[0].GetSystemProperties().GetMessageType() != pb.MessageType_TRANSACTION || got.msgs[0].GetSystemProperties().GetDeliveryAttempt() != 1 {
		t.Errorf("committed: %v", got.msgs)
	}
}

func TestTransactionRefusals(t *testing.T) {
	c := startReal(t).dial(t, nil)
	id := sendHalf(t, c, "M")
	flipped := []byte(id)
	flipped[len(flipped)/3] ^= 1
	for name, text := range map[string]string{"empty": "", "junk": "junk", "cut": id[:20], "longer": id + "AAAA", "flipped": string(flipped), "huge": string(make([]byte, 1<<16))} {
		for _, r := range []pb.TransactionResolution{unknownTx, commitTx, rollbackTx} {
			if st := endTx(t, c, "tx", text, r); st.GetCode() != pb.Code_INVALID_TRANSACTION_ID {
				t.Errorf("%s, %v: %v", name, r, st)
			}
		}
	}
	want(t, endTx(t, c, "t", id, commitTx), pb.Code_INVALID_TRANSACTION_ID)
	want(t, endTx(t, c, "", id, commitTx), pb.Code_ILLEGAL_TOPIC)
	want(t, endTx(t, c, "tx", id, 7), pb.Code_BAD_REQUEST)
	want(t, send(t, c, msg("tx", "N", nil)).GetStatus(), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
	want(t, send(t, c, msg("t", "N", func(m *pb.Message) { m.SystemProperties.MessageType = pb.MessageType_TRANSACTION })).GetStatus(), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
	grouped := halfMsg("N")
	grouped.SystemProperties.MessageGroup = str("u")
	want(t, send(t, c, grouped).GetStatus(), pb.Code_MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
	resp, err := c.EndTransaction(context.WithoutCancel(t.Context()), &pb.EndTransactionRequest{Topic: res("tx"), TransactionId: id})
	if err != nil {
		t.Fatal(err)
	}
	want(t, resp.GetStatus(), pb.Code_CLIENT_ID_REQUIRED)
	want(t, endTx(t, c, "tx", id, commitTx), pb.Code_OK)
	if got := ids(t, c, "tx"); len(got) != 1 {
		t.Errorf("delivered %v, want the one that was committed", got)
	}
}

// recv reads the next question about a half message; Settings are passed over.
func recv(t *testing.T, st pb.MessagingService_TelemetryClient) *pb.RecoverOrphanedTransactionCommand {
	t.Helper()
	for {
		cmd, err := st.Recv()
		if err != nil {
			t.Fatalf("no check came: %v", err)
		}
		if c := cmd.GetRecoverOrphanedTransactionCommand(); c != nil {
			return c
		}
	}
}

// A producer left its half message undecided and is gone. Another one of the topic
// is shown the whole message, with the digest that Node needs, and commits it.
func TestCheckBackReachesAnotherProducer(t *testing.T) {
	c := startReal(t).dial(t, nil)
	bystander := stream(t, c, "bystander", producerSettings("t"))
	reply(t, bystander)
	m := halfMsg("M")
	m.UserProperties = map[string]string{"k": "v"}
	m.SystemProperties.Tag = str("x")
	want(t, send(t, c, m).GetStatus(), pb.Code_OK)
	other := stream(t, c, "other", producerSettings("t", "tx"))
	reply(t, other)
	got := recv(t, other)
	sp := got.GetMessage().GetSystemProperties()
	if string(got.GetMessage().GetBody()) != "body of M" || sp.GetMessageId() != "M" || sp.GetBodyDigest().GetChecksum() == "" || sp.GetTag() != "x" ||
		got.GetMessage().GetUserProperties()["k"] != "v" || got.GetMessage().GetTopic().GetName() != "tx" || sp.GetMessageType() != pb.MessageType_TRANSACTION ||
		sp.GetBodyEncoding() == 0 || sp.GetBornTimestamp() == nil || sp.ReceiptHandle != nil {
		t.Errorf("command %v", got)
	}
	want(t, endTx(t, c, "tx", got.GetTransactionId(), commitTx), pb.Code_OK)
	if list := ids(t, c, "tx"); len(list) != 1 || list[0] != "M" {
		t.Errorf("delivered %v", list)
	}
}

// A client that named no topics in its Settings is asked about those of which it
// sent half messages.
func TestCheckBackReachesWhoSentTheHalfMessage(t *testing.T) {
	c := startReal(t).dial(t, nil)
	st := stream(t, c, "producer", producerSettings())
	reply(t, st)
	want(t, send(t, c, halfMsg("M")).GetStatus(), pb.Code_OK)
	got := recv(t, st)
	want(t, endTx(t, c, "tx", got.GetTransactionId(), rollbackTx), pb.Code_OK)
}

// Producers of a topic are asked in turn, each over its newest stream, and one that
// said goodbye no more.
func TestCheckBackGoesRound(t *testing.T) {
	c := startReal(t).dial(t, nil)
	streams := map[string]pb.MessagingService_TelemetryClient{}
	for _, id := range []string{"p1", "p2", "p3"} {
		streams[id] = stream(t, c, id, producerSettings("tx"))
		reply(t, streams[id])
	}
	if _, err := c.NotifyClientTermination(as(t, "p3"), &pb.NotifyClientTerminationRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"A", "B", "C", "D"} {
		want(t, send(t, c, halfMsg(id)).GetStatus(), pb.Code_OK)
	}
	asked := map[string]bool{}
	for _, id := range []string{"p1", "p2", "p1", "p2"} {
		got := recv(t, streams[id])
		asked[got.GetMessage().GetSystemProperties().GetMessageId()] = true
		want(t, endTx(t, c, "tx", got.GetTransactionId(), rollbackTx), pb.Code_OK)
	}
	if len(asked) != 4 {
		t.Errorf("asked about %v, want each message once", asked)
	}
}

// TestChecksThatReachAClosingProducerDoNotCount: producers that are asked end before
// they can have read the question, in each of the ways in which a stream ends. The one
// that stays is asked as often as the topic says.
func TestChecksThatReachAClosingProducerDoNotCount(t *testing.T) {
	c := startReal(t).dial(t, nil)
	want(t, send(t, c, halfMsg("M")).GetStatus(), pb.Code_OK)
	for i, end := range []func(st pb.MessagingService_TelemetryClient, leave func(), id string){
		func(_ pb.MessagingService_TelemetryClient, leave func(), _ string) { leave() },
		func(st pb.MessagingService_TelemetryClient, _ func(), _ string) {
			if err := st.CloseSend(); err != nil {
				t.Error(err)
			}
		},
		func(st pb.MessagingService_TelemetryClient, leave func(), id string) {
			if _, err := c.NotifyClientTermination(as(t, id), &pb.NotifyClientTerminationRequest{}); err != nil {
				t.Error(err)
			}
			leave()
		},
	} {
		id := fmt.Sprint("closing", i)
		ctx, leave := context.WithCancel(as(t, id))
		defer leave()
		st, err := c.Telemetry(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(command(producerSettings("tx"))); err != nil {
			t.Fatal(err)
		}
		recv(t, st)
		end(st, leave, id)
		for err == nil { // until it has ended
			_, err = st.Recv()
		}
	}
	stays := stream(t, c, "stays", producerSettings("tx"))
	for range 3 { // the topic's checks
		recv(t, stays)
	}
}

// TestQueuedChecksGoToTheNextStream: a client opens a new stream, or says goodbye,
// while questions wait for the old one.
func TestQueuedChecksGoToTheNextStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t)
		h.core.SetProducers(h.CheckBack)
		info := h.core.Topology().FindTopic("tx")
		msgs := []broker.Message{{Topic: info, ID: "H", Born: time.Now(), Queue: broker.AnyQueue, Kind: zone.KindTransaction}}
		if err := h.core.Publish(t.Context(), msgs, make([]broker.PublishResult, 1)); err != nil {
			t.Fatal(err)
		}
		topics := declared{"tx": res("tx")}
		open := func(id string) *session {
			s := newSession()
			h.clients.attach(id, s)
			h.clients.settings(id, s, clientInfo{kind: pb.ClientType_PRODUCER, topics: topics})
			return s
		}
		old := open("p")
		waiting := func(s *session, n int) {
			t.Helper()
			for range 40 {
				if len(s.checks) == n {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			t.Fatalf("%d questions wait, want %d", len(s.checks), n)
		}
		waiting(old, 1)
		young := open("p")
		waiting(old, 0)
		waiting(young, 1)
		h.clients.drop("p")
		waiting(young, 0)
		other := open("q")
		waiting(other, 1)
	})
}
