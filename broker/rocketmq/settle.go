package rocketmq

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// AckMessage settles deliveries. A handle that is not, or no longer, good is
// answered as such in its entry and harms no other.
func (s *Server) AckMessage(ctx context.Context, req *pb.AckMessageRequest) (*pb.AckMessageResponse, error) {
	start := time.Now()
	g, t, st := s.settling(ctx, req.GetGroup(), req.GetTopic())
	if n := len(req.GetEntries()); st == nil && (n == 0 || n > maxAckEntries) {
		st = refuse(pb.Code_BAD_REQUEST, "the request has "+strconv.Itoa(n)+" entries, the limits are 1 and "+strconv.Itoa(maxAckEntries))
	}
	if st != nil {
		return &pb.AckMessageResponse{Status: st}, nil
	}
	entries := make([]*pb.AckMessageResultEntry, len(req.GetEntries()))
	for i, e := range req.GetEntries() {
		st := s.settle(e.GetReceiptHandle(), func(handle string) error { return s.store.Ack(ctx, g, t, handle) })
		entries[i] = &pb.AckMessageResultEntry{MessageId: e.GetMessageId(), ReceiptHandle: e.GetReceiptHandle(), Status: st}
		s.count(ctx, opAck, g, t, st)
	}
	outer := merge(len(entries), func(i int) *pb.Status { return entries[i].GetStatus() })
	s.metrics.took(ctx, setKey{operation: opAck, code: outer.GetCode()}, start)
	return &pb.AckMessageResponse{Status: outer, Entries: entries}, nil
}

// settling judges the common part of the calls with a receipt handle. Names that
// cannot exist make every handle under them void.
func (s *Server) settling(ctx context.Context, group, topic *pb.Resource) (zone.ConsumerGroup, zone.Topic, *pb.Status) {
	id, st := clientID(ctx)
	if st != nil {
		return "", "", st
	}
	g, st := groupName(ctx, group)
	if st != nil {
		return "", "", refuse(pb.Code_INVALID_RECEIPT_HANDLE, st.GetMessage())
	}
	t, st := topicName(ctx, topic)
	if st != nil {
		return "", "", refuse(pb.Code_INVALID_RECEIPT_HANDLE, st.GetMessage())
	}
	s.clients.see(ctx, id, pb.ClientType_CLIENT_TYPE_UNSPECIFIED)
	return g, t, nil
}

// settle judges a handle's form and calls the store.
func (s *Server) settle(handle string, call func(handle string) error) *pb.Status {
	if handle == "" || len(handle) > maxHandle {
		return refuse(pb.Code_INVALID_RECEIPT_HANDLE, fmt.Sprintf("the receipt handle has %d bytes, it must have 1 to %d", len(handle), maxHandle))
	}
	if err := call(handle); err != nil {
		return settleStatus(err)
	}
	return statusOK
}

// count counts one settlement; names that the store does not know are no labels.
func (s *Server) count(ctx context.Context, op string, g zone.ConsumerGroup, t zone.Topic, st *pb.Status) {
	key := setKey{operation: op, code: st.GetCode()}
	if st.GetCode() == pb.Code_OK {
		key.group, key.topic = string(g), string(t)
	}
	s.metrics.settled.Add(ctx, 1, s.metrics.set(key).add...)
}

// ChangeInvisibleDuration reschedules a delivery; with suspend it does not count as
// an attempt. The answer has the handle to use
// from now on; in a failure it is the old one, as some clients take it before they
// look at the status.
func (s *Server) ChangeInvisibleDuration(ctx context.Context, req *pb.ChangeInvisibleDurationRequest) (*pb.ChangeInvisibleDurationResponse, error) {
	handle := req.GetReceiptHandle()
	g, t, st := s.settling(ctx, req.GetGroup(), req.GetTopic())
	if st == nil {
		change := s.store.ChangeInvisible
		if req.GetSuspend() {
			change = s.store.Suspend
		}
		st = s.changeInvisible(ctx, g, t, req.GetInvisibleDuration(), &handle, change)
		s.count(ctx, opNack, g, t, st)
	}
	return &pb.ChangeInvisibleDurationResponse{Status: st, ReceiptHandle: handle}, nil
}

func (s *Server) changeInvisible(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, asked *durationpb.Duration, handle *string,
	change func(context.Context, zone.ConsumerGroup, zone.Topic, string, time.Duration) (string, error)) *pb.Status {
	d := asked.AsDuration()
	if asked != nil && (asked.CheckValid() != nil || d < 0 || d > maxInvisible) {
		return refuse(pb.Code_ILLEGAL_INVISIBLE_TIME, fmt.Sprintf("the invisible time is %v, it must be from 0 to %s", d, zone.FormatDuration(maxInvisible)))
	}
	d = max(d, s.floor(ctx, g))
	return s.settle(*handle, func(old string) error {
		renewed, err := change(ctx, g, t, old, d)
		if err == nil {
			*handle = renewed
		}
		return err
	})
}

// floor is the shortest wait after a push consumer's negative acknowledgement: the
// first one of the group's policy. Node reads the policy's seconds as milliseconds,
// and would otherwise use up all attempts within a second.
func (s *Server) floor(ctx context.Context, g zone.ConsumerGroup) time.Duration {
	id, st := clientID(ctx)
	if k := s.clients.kind(id); st != nil || k != pb.ClientType_PUSH_CONSUMER && k != pb.ClientType_LITE_PUSH_CONSUMER {
		return 0
	}
	group := s.store.Topology().FindConsumerGroup(g)
	if group == nil {
		group = &unknownGroup
	}
	return wait(group.Backoff, 1)
}

// ForwardMessageToDeadLetterQueue moves a message to the group's dead letters. A
// client repeats the call every second until it hears OK, so a delivery that is not
// there any more is OK: the message is a dead letter, settled, or comes back.
func (s *Server) ForwardMessageToDeadLetterQueue(ctx context.Context, req *pb.ForwardMessageToDeadLetterQueueRequest) (*pb.ForwardMessageToDeadLetterQueueResponse, error) {
	g, t, st := s.settling(ctx, req.GetGroup(), req.GetTopic())
	if st == nil {
		st = s.settle(req.GetReceiptHandle(), func(handle string) error { return s.store.DeadLetter(ctx, g, t, handle) })
		s.count(ctx, opDead, g, t, st)
	}
	if st.GetCode() == pb.Code_INVALID_RECEIPT_HANDLE {
		st = refuse(pb.Code_OK, "nothing to forward: "+st.GetMessage())
	}
	return &pb.ForwardMessageToDeadLetterQueueResponse{Status: st}, nil
}
