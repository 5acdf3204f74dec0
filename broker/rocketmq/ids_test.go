package rocketmq

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// spoilt are texts near one that was given out: cut, longer, changed, with line breaks.
func spoilt(s string) []string {
	other := byte('A')
	if s[len(s)/2] == other {
		other = 'B'
	}
	return []string{"", s[:len(s)-1], s[1:], s + "A", s + "\n", s + "=", s[:len(s)/2] + string(other) + s[len(s)/2+1:], s + s, "\xff" + s[1:]}
}

// TestHandlesOfOthersSettleNothing: a receipt handle under another group or topic, or
// spoilt, is INVALID_RECEIPT_HANDLE in every call that takes one but the one that its
// clients repeat until it is OK, and the message stays whose it is.
func TestHandlesOfOthersSettleNothing(t *testing.T) {
	c := startReal(t).dial(t, nil)
	mustSend(t, c, msg("t", "A", nil))
	got := pull(t, c, simple("g", "t", 1))
	if len(got.msgs) != 1 {
		t.Fatalf("%v with %d messages", got.status, len(got.msgs))
	}
	handle := got.msgs[0].GetSystemProperties().GetReceiptHandle()
	try := func(group, topic, h string) {
		t.Helper()
		a, err := c.AckMessage(as(t, "thief"), &pb.AckMessageRequest{Group: res(group), Topic: res(topic), Entries: []*pb.AckMessageEntry{{MessageId: "A", ReceiptHandle: h}}})
		if err != nil {
			t.Fatal(err)
		}
		want(t, a.GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
		for _, suspend := range []bool{false, true} {
			ch, err := c.ChangeInvisibleDuration(as(t, "thief"), &pb.ChangeInvisibleDurationRequest{Group: res(group), Topic: res(topic), ReceiptHandle: h, InvisibleDuration: durationpb.New(0), Suspend: proto.Bool(suspend)})
			if err != nil {
				t.Fatal(err)
			}
			want(t, ch.GetStatus(), pb.Code_INVALID_RECEIPT_HANDLE)
		}
		// A client repeats this one until it hears OK; the dead letter must not be there.
		f, err := c.ForwardMessageToDeadLetterQueue(as(t, "thief"), &pb.ForwardMessageToDeadLetterQueueRequest{Group: res(group), Topic: res(topic), ReceiptHandle: h})
		if err != nil {
			t.Fatal(err)
		}
		want(t, f.GetStatus(), pb.Code_OK)
	}
	try("steps", "t", handle)
	try("g", "small", handle)
	try("nobody", "nothing", handle)
	for _, bad := range spoilt(handle) {
		if bad != "\xff"+handle[1:] { // no string of the protocol
			try("g", "t", bad)
		}
	}
	want(t, acked(t, c, "g", "t", got.msgs[0]), pb.Code_OK)
	want(t, acked(t, c, "g", "t", got.msgs[0]), pb.Code_OK) // the answer may have been lost
	try("steps", "t", handle)
}

// TestIDsOfOthersDecideNothing: transaction ids and recall handles under another topic,
// spoilt, or each in the place of the other.
func TestIDsOfOthersDecideNothing(t *testing.T) {
	c := startReal(t).dial(t, nil)
	tx := sendHalf(t, c, "half")
	sent := send(t, c, late("R", time.Now().Add(30*time.Minute)))
	want(t, sent.GetStatus(), pb.Code_OK)
	handle := sent.GetEntries()[0].GetRecallHandle()
	for _, bad := range append(spoilt(tx), handle) {
		if bad != "\xff"+tx[1:] {
			want(t, endTx(t, c, "tx", bad, rollbackTx), pb.Code_INVALID_TRANSACTION_ID)
		}
	}
	if st := endTx(t, c, "t", tx, rollbackTx); st.GetCode() == pb.Code_OK {
		t.Error("it was rolled back under another topic")
	}
	for _, bad := range append(spoilt(handle), tx) {
		if bad == "\xff"+handle[1:] {
			continue
		}
		if st, _ := recall(t, c, "later", bad); st.GetCode() == pb.Code_OK {
			t.Errorf("recalled by %q", bad)
		}
	}
	if st, _ := recall(t, c, "t", handle); st.GetCode() == pb.Code_OK {
		t.Error("recalled under another topic")
	}
	want(t, endTx(t, c, "tx", tx, commitTx), pb.Code_OK)
	if st, id := recall(t, c, "later", handle); st.GetCode() != pb.Code_OK || id != "R" {
		t.Errorf("recall: %v, %q", st, id)
	}
}
