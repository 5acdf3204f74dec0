package rocketmq

import (
	"context"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/zone"
)

// right is what a call needs to be allowed.
type right uint8

const (
	rightNone    right = iota // nothing but a user
	rightPublish              // to the topic
	rightRoute                // to know the topic's queues: publish or read
	rightRead                 // the topic
	rightAct                  // for the consumer group
	rightConsume              // the topic for the consumer group
	rightNever                // a request that is not known here
)

// need is one thing that a call needs.
type need struct {
	right right
	topic zone.Topic
	group zone.ConsumerGroup
}

// met reports whether the user may do it.
func (n need) met(u *policy.User) bool {
	switch n.right {
	case rightNone:
		return true
	case rightPublish:
		return u.MayPublish(n.topic)
	case rightRoute:
		return u.MayPublish(n.topic) || u.MayRead(n.topic)
	case rightRead:
		return u.MayRead(n.topic)
	case rightAct:
		return u.MayAct(n.group)
	case rightConsume:
		return u.MayConsume(n.group, n.topic)
	}
	return false
}

// String says what was needed, for the text of a refusal. Names were not judged
// before.
func (n need) String() string {
	n.topic, n.group = zone.Topic(cut(string(n.topic))), zone.ConsumerGroup(cut(string(n.group)))
	switch n.right {
	case rightPublish:
		return "publish to the topic " + string(n.topic)
	case rightRoute:
		return "use the topic " + string(n.topic)
	case rightRead:
		return "read the topic " + string(n.topic)
	case rightAct:
		return "act for the consumer group " + string(n.group)
	case rightConsume:
		return "receive the topic " + string(n.topic) + " for the consumer group " + string(n.group)
	}
	return "make this call"
}

// needsOf says what a request needs. A request of a kind that is not listed is
// refused, so that no new call is open by accident.
func needsOf(ctx context.Context, req any) []need {
	topic := func(r *pb.Resource) zone.Topic { return zone.Topic(fullName(ctx, r)) }
	group := func(r *pb.Resource) zone.ConsumerGroup { return zone.ConsumerGroup(fullName(ctx, r)) }
	consume := func(g, t *pb.Resource) []need { return []need{{rightConsume, topic(t), group(g)}} }
	switch r := req.(type) {
	case *pb.QueryRouteRequest:
		return []need{{right: rightRoute, topic: topic(r.GetTopic())}}
	case *pb.HeartbeatRequest:
		if name := group(r.GetGroup()); name != "" && r.GetClientType() != pb.ClientType_PRODUCER {
			return []need{{right: rightAct, group: name}}
		}
		return nil
	case *pb.SendMessageRequest:
		var list []need
		for _, m := range r.GetMessages() {
			if name := topic(m.GetTopic()); len(list) == 0 || list[len(list)-1].topic != name {
				list = append(list, need{right: rightPublish, topic: name})
			}
		}
		return list
	case *pb.EndTransactionRequest:
		return []need{{right: rightPublish, topic: topic(r.GetTopic())}}
	case *pb.RecallMessageRequest:
		return []need{{right: rightPublish, topic: topic(r.GetTopic())}}
	case *pb.QueryAssignmentRequest:
		return consume(r.GetGroup(), r.GetTopic())
	case *pb.ReceiveMessageRequest:
		return consume(r.GetGroup(), r.GetMessageQueue().GetTopic())
	case *pb.AckMessageRequest:
		return consume(r.GetGroup(), r.GetTopic())
	case *pb.ChangeInvisibleDurationRequest:
		return consume(r.GetGroup(), r.GetTopic())
	case *pb.ForwardMessageToDeadLetterQueueRequest:
		return consume(r.GetGroup(), r.GetTopic())
	case *pb.PullMessageRequest:
		return consume(r.GetGroup(), r.GetMessageQueue().GetTopic())
	case *pb.UpdateOffsetRequest:
		return consume(r.GetGroup(), r.GetMessageQueue().GetTopic())
	case *pb.GetOffsetRequest:
		return consume(r.GetGroup(), r.GetMessageQueue().GetTopic())
	case *pb.SyncLiteSubscriptionRequest:
		return consume(r.GetGroup(), r.GetTopic())
	case *pb.QueryOffsetRequest:
		return []need{{right: rightRead, topic: topic(r.GetMessageQueue().GetTopic())}}
	case *pb.NotifyClientTerminationRequest:
		return nil
	case *pb.TelemetryCommand:
		return settingsNeeds(r.GetSettings(), topic, group)
	}
	return []need{{right: rightNever}}
}

// settingsNeeds is what a client says that it will do. Names that are empty say
// nothing.
func settingsNeeds(s *pb.Settings, topic func(*pb.Resource) zone.Topic, group func(*pb.Resource) zone.ConsumerGroup) []need {
	var list []need
	for _, r := range s.GetPublishing().GetTopics() {
		if name := topic(r); name != "" {
			list = append(list, need{right: rightPublish, topic: name})
		}
	}
	sub := s.GetSubscription()
	if name := group(sub.GetGroup()); name != "" {
		list = append(list, need{right: rightAct, group: name})
	}
	for _, e := range sub.GetSubscriptions() {
		if name := topic(e.GetTopic()); name != "" {
			list = append(list, need{right: rightRead, topic: name})
		}
	}
	return list
}

// refusalOf is the answer to a unary request that is refused. Calls with a receipt
// handle are told INVALID_RECEIPT_HANDLE where the permission is missing: push
// consumers repeat them every second for ever on anything else, and the message
// comes back to the group by itself. nil means a request that is not known.
func refusalOf(req any, st *pb.Status) any {
	handle := st
	if st.GetCode() == pb.Code_FORBIDDEN {
		handle = refuse(pb.Code_INVALID_RECEIPT_HANDLE, st.GetMessage())
	}
	switch r := req.(type) {
	case *pb.QueryRouteRequest:
		return &pb.QueryRouteResponse{Status: st}
	case *pb.HeartbeatRequest:
		return &pb.HeartbeatResponse{Status: st}
	case *pb.EndTransactionRequest:
		return &pb.EndTransactionResponse{Status: st}
	case *pb.RecallMessageRequest:
		return &pb.RecallMessageResponse{Status: st}
	case *pb.QueryAssignmentRequest:
		return &pb.QueryAssignmentResponse{Status: st}
	case *pb.AckMessageRequest:
		return &pb.AckMessageResponse{Status: handle}
	case *pb.ChangeInvisibleDurationRequest:
		return &pb.ChangeInvisibleDurationResponse{Status: handle, ReceiptHandle: r.GetReceiptHandle()}
	case *pb.ForwardMessageToDeadLetterQueueRequest:
		return &pb.ForwardMessageToDeadLetterQueueResponse{Status: st}
	case *pb.UpdateOffsetRequest:
		return &pb.UpdateOffsetResponse{Status: st}
	case *pb.GetOffsetRequest:
		return &pb.GetOffsetResponse{Status: st}
	case *pb.QueryOffsetRequest:
		return &pb.QueryOffsetResponse{Status: st}
	case *pb.SyncLiteSubscriptionRequest:
		return &pb.SyncLiteSubscriptionResponse{Status: st}
	case *pb.NotifyClientTerminationRequest:
		return &pb.NotifyClientTerminationResponse{Status: st}
	}
	return nil
}
