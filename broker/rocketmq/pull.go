package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// A consumer that pulls addresses one queue of one broker: the ids that QueryRoute
// lists, and QueryAssignment for clients of that type. The id -1, which stands for
// all queues of a broker, has no offsets. Node's rule that everything goes to queue 0
// does not hold here: that is one queue among others.

// pullable judges who asks for a queue, and which one; group is nil when the call is
// for nobody in particular.
func (s *Server) pullable(ctx context.Context, group *pb.Resource, mq *pb.MessageQueue) (g zone.ConsumerGroup, sub subject, st *pb.Status) {
	t, z, sub, st := s.seek(ctx, mq.GetTopic())
	if st != nil {
		return "", sub, st
	}
	if group != nil {
		if g, st = groupName(ctx, group); st != nil {
			return "", sub, st
		}
		if st = consumable(t, z, sub, g); st != nil {
			s.tellDenied(ctx, group, mq.GetTopic(), st)
			return "", sub, st
		}
	} else if !sub.readable {
		return "", sub, refuse(pb.Code_FORBIDDEN, "the topic "+string(sub.name)+" does not land in the zone "+string(z.Name))
	}
	if id := mq.GetId(); id < 0 {
		return "", sub, refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the queue id %d stands for all queues and has no offsets: name one of the route's", id))
	}
	return g, sub, nil
}

// clipName keeps a client's text short in an answer.
func clipName(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxGroupName)], "?") }

// queueOf names a queue that pullable let pass.
func queueOf(t *zone.Topology, sub subject, mq *pb.MessageQueue) broker.QueueName {
	return broker.QueueName{Broker: groupOf(t, clipName(mq.GetBroker().GetName())), Topic: sub.name, Queue: int(mq.GetId())}
}

// offsetOf judges an offset.
func offsetOf(v int64) (uint64, *pb.Status) {
	if v < 0 {
		return 0, refuse(pb.Code_ILLEGAL_OFFSET, fmt.Sprintf("the offset %d is negative", v))
	}
	return uint64(v), nil
}

// PullMessage reads messages of a queue from an offset on, and waits for the first.
// The stream has the status first, then the messages, and the offset to go on from
// last, always: after an ILLEGAL_OFFSET it is the nearest that is held.
func (s *Server) PullMessage(req *pb.PullMessageRequest, stream grpc.ServerStreamingServer[pb.PullMessageResponse]) error {
	start := time.Now()
	ctx := stream.Context()
	r, st := s.pullRequest(ctx, req, start)
	got := broker.Pulled{Next: uint64(max(req.GetOffset(), 0))}
	answer := s.answers.begin(ctx)
	defer answer.end()
	r.Room = answer
	if st == nil {
		got, st = s.pull(ctx, r)
	}
	answer.hurry(s, ctx)
	key := setKey{operation: opPull, topic: string(r.Topic), group: string(r.Group), code: st.GetCode()}
	defer func() { s.metrics.took(ctx, key, start) }()
	if err := stream.Send(&pb.PullMessageResponse{Content: &pb.PullMessageResponse_Status{Status: st}}); err != nil {
		return err
	}
	if err := s.sendPulled(ctx, req, r, got.Messages, stream, answer); err != nil {
		return err
	}
	if len(got.Messages) > 0 {
		s.metrics.delivered.Add(ctx, int64(len(got.Messages)), s.metrics.set(key).add...)
	}
	return stream.Send(&pb.PullMessageResponse{Content: &pb.PullMessageResponse_NextOffset{NextOffset: int64(got.Next)}})
}

// sendPulled sends the messages, each under its span when it is traced.
func (s *Server) sendPulled(ctx context.Context, req *pb.PullMessageRequest, r broker.PullRequest, got []broker.Delivery, stream grpc.ServerStream, answer *answer) error {
	var traced deliveries
	if s.tracer.On() {
		id, _ := clientID(ctx) // judged before
		traced = s.traceReceive(&broker.ReceiveRequest{Group: r.Group, Topic: r.Topic, ClientID: id}, got)
	}
	for i := range got {
		m := s.message(req.GetMessageQueue().GetTopic(), &got[i])
		m.SystemProperties.ReceiptHandle, m.SystemProperties.InvisibleDuration = nil, nil
		span := traced.begin(s, i, m)
		err := answer.send(stream, &pb.PullMessageResponse{Content: &pb.PullMessageResponse_Message{Message: m}})
		if span != nil {
			endReceive(span, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pull asks the store, bounded in number with the receives, and ends when the server
// stops. The status is never nil.
func (s *Server) pull(ctx context.Context, r broker.PullRequest) (broker.Pulled, *pb.Status) {
	none := broker.Pulled{Next: r.Offset}
	wait, end, st := s.beginPoll(ctx)
	if st != nil {
		return none, st
	}
	defer end()
	got, err := s.store.Pull(wait, r)
	var outside *broker.OffsetError
	switch {
	case errors.As(err, &outside):
		return broker.Pulled{Next: outside.Nearest()}, statusOf(err)
	case err != nil:
		return none, s.unanswered(wait, err)
	case len(got.Messages) == 0:
		return got, refuse(pb.Code_MESSAGE_NOT_FOUND, "no new message")
	}
	return got, statusOK
}

// pullRequest judges the request and translates it.
func (s *Server) pullRequest(ctx context.Context, req *pb.PullMessageRequest, now time.Time) (broker.PullRequest, *pb.Status) {
	var r broker.PullRequest
	group, sub, st := s.pullable(ctx, orEmpty(req.GetGroup()), req.GetMessageQueue())
	if st != nil {
		return r, st
	}
	if name := req.GetMessageQueue().GetBroker().GetName(); name != "" && s.opts.Group != "" && groupOf(s.store.Topology(), name) != s.opts.Group {
		return r, refuse(pb.Code_BAD_REQUEST, "the queue is of the broker "+clipName(name)+", and this is "+string(s.opts.Group)+": pull from the address that the route gives for it")
	}
	r.Topic, r.Group, r.Queue = sub.name, group, int(req.GetMessageQueue().GetId())
	if r.Offset, st = offsetOf(req.GetOffset()); st != nil {
		return r, st
	}
	if r.Filter, st = s.filters.parse(req.GetFilterExpression()); st != nil {
		return r, st
	}
	id, _ := clientID(ctx) // judged before
	info, _ := s.clients.see(ctx, id, pb.ClientType_PULL_CONSUMER)
	if r.Wait, st = s.pollTime(ctx, req, info, now); st != nil {
		return r, st
	}
	r.Max = min(max(int(req.GetBatchSize()), 1), maxReceiveBatch)
	r.MaxBytes = maxReceiveBytes
	return r, nil
}

// orEmpty makes a group that was not sent an empty one, which is judged as such.
func orEmpty(r *pb.Resource) *pb.Resource {
	if r == nil {
		return &pb.Resource{}
	}
	return r
}

// GetOffset returns where the group goes on in a queue: everything below is settled
// for it. OFFSET_NOT_FOUND for a group that was never there.
func (s *Server) GetOffset(ctx context.Context, req *pb.GetOffsetRequest) (*pb.GetOffsetResponse, error) {
	g, sub, st := s.pullable(ctx, orEmpty(req.GetGroup()), req.GetMessageQueue())
	if st != nil {
		return &pb.GetOffsetResponse{Status: st}, nil
	}
	offset, err := s.store.Offset(ctx, g, queueOf(s.store.Topology(), sub, req.GetMessageQueue()))
	return &pb.GetOffsetResponse{Status: statusOf(err), Offset: int64(offset)}, nil
}

// UpdateOffset sets where the group goes on in a queue. It is durable when it is
// answered with OK.
func (s *Server) UpdateOffset(ctx context.Context, req *pb.UpdateOffsetRequest) (*pb.UpdateOffsetResponse, error) {
	g, sub, st := s.pullable(ctx, orEmpty(req.GetGroup()), req.GetMessageQueue())
	var offset uint64
	if st == nil {
		offset, st = offsetOf(req.GetOffset())
	}
	if st == nil {
		st = statusOf(s.store.SetOffset(ctx, g, queueOf(s.store.Topology(), sub, req.GetMessageQueue()), offset))
		s.count(ctx, opSeek, g, sub.name, st)
	}
	return &pb.UpdateOffsetResponse{Status: st}, nil
}

// QueryOffset returns the first and the next offset of a queue, or that of the first
// message that was stored here at or after a time.
func (s *Server) QueryOffset(ctx context.Context, req *pb.QueryOffsetRequest) (*pb.QueryOffsetResponse, error) {
	_, sub, st := s.pullable(ctx, nil, req.GetMessageQueue())
	if st != nil {
		return &pb.QueryOffsetResponse{Status: st}, nil
	}
	where, at := broker.WhereEarliest, time.Time{}
	switch p := req.GetQueryOffsetPolicy(); p {
	case pb.QueryOffsetPolicy_BEGINNING:
	case pb.QueryOffsetPolicy_END:
		where = broker.WhereLatest
	case pb.QueryOffsetPolicy_TIMESTAMP:
		if req.GetTimestamp() == nil || req.GetTimestamp().CheckValid() != nil {
			return &pb.QueryOffsetResponse{Status: refuse(pb.Code_BAD_REQUEST, "the timestamp is missing or out of range")}, nil
		}
		where, at = broker.WhereTime, req.GetTimestamp().AsTime()
	default:
		return &pb.QueryOffsetResponse{Status: refuse(pb.Code_BAD_REQUEST, "the offset policy "+p.String()+" is not known")}, nil
	}
	offset, err := s.store.FindOffset(ctx, queueOf(s.store.Topology(), sub, req.GetMessageQueue()), where, at)
	return &pb.QueryOffsetResponse{Status: statusOf(err), Offset: int64(offset)}, nil
}
