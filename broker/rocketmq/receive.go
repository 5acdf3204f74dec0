package rocketmq

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// renewInvisible hides what a push consumer received; the broker renews it for
	// as long as the client lives and its connection stands, so it only says how soon
	// the messages of a dead client, or those of an answer that was lost, can come back.
	renewInvisible = 30 * time.Second
	// pollMargin is left of a call's deadline when its poll ends, so that the
	// answer still arrives: clients add 3 s to their poll time.
	pollMargin = time.Second
	// shortPoll is the least time for which a receive with a near deadline waits.
	shortPoll = 10 * time.Millisecond
	// returnTime bounds giving back what could not be sent.
	returnTime = time.Second
)

// ReceiveMessage pops messages from all queues of this broker, whichever queue was
// named, and waits for the first. The stream has the status first, then the
// messages, and the delivery time last, always.
func (s *Server) ReceiveMessage(req *pb.ReceiveMessageRequest, stream grpc.ServerStreamingServer[pb.ReceiveMessageResponse]) error {
	start := time.Now()
	ctx := stream.Context()
	r, st := s.receiveRequest(ctx, req, start)
	answer := s.answers.begin(ctx)
	defer answer.end()
	r.Room = answer
	var got []broker.Delivery
	if st == nil {
		got, st = s.poll(ctx, r)
	}
	s.tellDenied(ctx, req.GetGroup(), req.GetMessageQueue().GetTopic(), st)
	key := setKey{operation: opReceive, topic: string(r.Topic), group: string(r.Group), code: st.GetCode()}
	defer func() { s.metrics.took(ctx, key, start) }()
	answer.hurry(s, ctx)
	sent, err := s.sendReceived(req, &r, got, st, stream, answer)
	if err != nil {
		s.giveBack(&r, got, sent)
		return err
	}
	if len(got) > 0 {
		s.metrics.delivered.Add(ctx, int64(len(got)), s.metrics.set(key).add...)
	}
	return nil
}

// sendReceived sends the whole answer and says how many messages gRPC took before an
// error.
func (s *Server) sendReceived(req *pb.ReceiveMessageRequest, r *broker.ReceiveRequest, got []broker.Delivery, st *pb.Status, stream grpc.ServerStream, answer *answer) (sent int, err error) {
	if err := stream.SendMsg(&pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Status{Status: st}}); err != nil {
		return 0, err
	}
	resource := req.GetMessageQueue().GetTopic()
	var traced deliveries
	if s.tracer.On() {
		traced = s.traceReceive(r, got)
	}
	for i := range got {
		m := s.message(resource, &got[i])
		span := traced.begin(s, i, m)
		err := answer.send(stream, &pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_Message{Message: m}})
		if span != nil {
			endReceive(span, err)
		}
		if err != nil {
			return i, err
		}
	}
	return len(got), stream.SendMsg(&pb.ReceiveMessageResponse{Content: &pb.ReceiveMessageResponse_DeliveryTimestamp{DeliveryTimestamp: timestamppb.Now()}})
}

// poll asks the store, bounded in number, and ends when the server stops. The status
// is never nil.
func (s *Server) poll(ctx context.Context, r broker.ReceiveRequest) ([]broker.Delivery, *pb.Status) {
	wait, end, st := s.beginPoll(ctx)
	if st != nil {
		return nil, st
	}
	defer end()
	got, err := s.store.Receive(wait, r)
	switch {
	case err != nil:
		return nil, s.unanswered(wait, err)
	case len(got) == 0:
		return nil, refuse(pb.Code_MESSAGE_NOT_FOUND, "no new message")
	}
	return got, statusOK
}

// giveBack gives up the messages of an answer that broke off: clients take the whole
// answer or nothing of it. Those that were not sent are visible again at once and count
// as no attempt. Those that were do: a client may have failed at them. They are renewed
// no more, and until their time is over a repeated attempt id brings them. The call is
// over, so it has a time of its own.
func (s *Server) giveBack(r *broker.ReceiveRequest, got []broker.Delivery, sent int) {
	ctx, cancel := context.WithTimeout(context.Background(), returnTime)
	defer cancel()
	for i := range got {
		var err error
		switch {
		case i >= sent:
			_, err = s.store.Suspend(ctx, r.Group, r.Topic, got[i].Handle, 0)
		case r.Renew:
			err = s.store.EndRenewal(ctx, r.Group, r.Topic, got[i].Handle)
		}
		if err != nil {
			s.opts.Logger.Debug("undelivered message waits for its invisible time", "group", r.Group, "topic", r.Topic, "err", err)
		}
	}
}

// receiveRequest judges the request and translates it.
func (s *Server) receiveRequest(ctx context.Context, req *pb.ReceiveMessageRequest, now time.Time) (broker.ReceiveRequest, *pb.Status) {
	var r broker.ReceiveRequest
	id, st := clientID(ctx)
	if st != nil {
		return r, st
	}
	topic, st := topicName(ctx, req.GetMessageQueue().GetTopic())
	if st != nil {
		return r, st
	}
	group, st := groupName(ctx, req.GetGroup())
	if st != nil {
		return r, st
	}
	t, z := s.topology()
	sub, st := find(t, z, topic)
	if st != nil {
		return r, st
	}
	if st := consumable(t, z, sub, group); st != nil {
		return r, st
	}
	r.Topic, r.Group = topic, group // known names from here on: they label metrics
	if r.Filter, st = s.filters.parse(req.GetFilterExpression()); st != nil {
		return r, st
	}
	if r.Invisible, st = s.invisible(req); st != nil {
		return r, st
	}
	kind := pb.ClientType_SIMPLE_CONSUMER
	if req.GetAutoRenew() {
		kind = pb.ClientType_PUSH_CONSUMER
	}
	// A full registry still serves, but cannot renew for a client that it does not know.
	info, known := s.clients.see(ctx, id, kind)
	if r.Wait, st = s.pollTime(ctx, req, info, now); st != nil {
		return r, st
	}
	r.Max = min(max(int(req.GetBatchSize()), 1), maxReceiveBatch)
	if req.GetAutoRenew() && oneByOne(t, group, sub.info) {
		r.Max = orderedBatch
	}
	r.MaxBytes = maxReceiveBytes
	r.Renew = req.GetAutoRenew() && known
	r.ClientID = id
	if r.Renew {
		r.Link = s.answers.linkOf(ctx).number
	}
	if a := req.GetAttemptId(); len(a) <= maxMessageID {
		r.AttemptID = a
	}
	return r, nil
}

// invisible returns how long the messages are to be hidden.
func (s *Server) invisible(req *pb.ReceiveMessageRequest) (time.Duration, *pb.Status) {
	if req.GetAutoRenew() {
		return renewInvisible, nil
	}
	d := req.GetInvisibleDuration()
	if got := d.AsDuration(); d.CheckValid() == nil && got >= s.opts.MinInvisible && got <= maxInvisible {
		return got, nil
	}
	return 0, refuse(pb.Code_ILLEGAL_INVISIBLE_TIME, fmt.Sprintf("the invisible time is %v, it must be from %s to %s", d.AsDuration(), zone.FormatDuration(s.opts.MinInvisible), zone.FormatDuration(maxInvisible)))
}

// polling is a request that may wait.
type polling interface{ GetLongPollingTimeout() *durationpb.Duration }

// pollTime returns how long to wait: what the request asks for, else the client's
// settings, bounded by the server's limit and by the call's deadline.
func (s *Server) pollTime(ctx context.Context, req polling, info clientInfo, now time.Time) (time.Duration, *pb.Status) {
	wait := s.opts.MaxPoll
	switch d := req.GetLongPollingTimeout(); {
	case d != nil && (d.CheckValid() != nil || d.AsDuration() < 0):
		return 0, refuse(pb.Code_ILLEGAL_POLLING_TIME, "the long polling time is negative or out of range")
	case d != nil:
		wait = min(wait, d.AsDuration())
	case info.poll > 0:
		wait = min(wait, info.poll)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return wait, nil
	}
	left := deadline.Sub(now)
	margin := min(pollMargin, left/4)
	if left-margin < shortPoll && wait >= shortPoll {
		return 0, refuse(pb.Code_ILLEGAL_POLLING_TIME, fmt.Sprintf("the call's deadline is in %v, too near to wait for messages", left))
	}
	return min(wait, left-margin), nil
}

// message builds what the consumer receives. The body is not copied.
func (s *Server) message(resource *pb.Resource, d *broker.Delivery) *pb.Message {
	v := &d.Record
	digestKind, digest := v.Digest()
	sp := &pb.SystemProperties{
		MessageId:         string(v.MessageID()),
		BodyDigest:        digestOf(digestKind, digest, v.Body()),
		BodyEncoding:      encodingOf(v.Encoding()),
		MessageType:       messageType(v.Kind()),
		BornTimestamp:     timestamppb.New(v.Born()),
		BornHost:          string(v.BornHost()),
		StoreTimestamp:    timestamppb.New(d.Stored),
		StoreHost:         string(s.opts.Zone),
		ReceiptHandle:     &d.Handle,
		QueueId:           int32(d.Queue),
		QueueOffset:       &d.Offset,
		InvisibleDuration: durationpb.New(d.Invisible),
		DeliveryAttempt:   proto.Int32(int32(max(d.Attempt, 1))), // Java throws on 0
	}
	v.Keys(func(k []byte) bool {
		sp.Keys = append(sp.Keys, string(k))
		return true
	})
	if at := v.DeliverAt(); !at.IsZero() {
		sp.DeliveryTimestamp = timestamppb.New(at)
	}
	sp.Tag = optional(v.Tag())
	if v.Kind() == zone.KindPriority {
		sp.Priority = proto.Int32(v.Priority())
	}
	if sp.MessageGroup = optional(v.MessageGroup()); v.Kind() == zone.KindLite {
		sp.MessageGroup, sp.LiteTopic = nil, sp.MessageGroup
	}
	sp.TraceContext = optional(v.TraceContext())
	if v.Type() == record.TypeDeadLetter {
		sp.DeadLetterQueue = &pb.DeadLetterQueue{Topic: string(v.Topic()), MessageId: sp.MessageId}
		if c, err := broker.ParseCause(v.Cause()); err == nil { // a newer broker's cause may not be readable
			sp.DeadLetterQueue.Topic = string(c.Topic)
		}
	}
	m := &pb.Message{Topic: resource, SystemProperties: sp, Body: v.Body()}
	v.Properties(func(k, val []byte) bool {
		if m.UserProperties == nil {
			m.UserProperties = map[string]string{}
		}
		m.UserProperties[string(k)] = string(val)
		return true
	})
	return m
}

// optional returns nil for an empty field: it was not sent, or sent empty.
func optional(b []byte) *string {
	if len(b) == 0 {
		return nil
	}
	return proto.String(string(b))
}
