package rocketmq

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// maxLiteNames bounds the lite topics of one request: what the topology allows a
// client.
const maxLiteNames = 10_000

// lostLite is a lite topic that a client has no longer, for its stream to say.
type lostLite struct{ name string }

// isLite reports whether clients of the type choose lite topics.
func isLite(k pb.ClientType) bool {
	return k == pb.ClientType_LITE_PUSH_CONSUMER || k == pb.ClientType_LITE_SIMPLE_CONSUMER
}

var liteActions = map[pb.LiteSubscriptionAction]broker.LiteAction{
	pb.LiteSubscriptionAction_PARTIAL_ADD:     broker.LiteAdd,
	pb.LiteSubscriptionAction_PARTIAL_REMOVE:  broker.LiteRemove,
	pb.LiteSubscriptionAction_COMPLETE_ADD:    broker.LiteReplace,
	pb.LiteSubscriptionAction_COMPLETE_REMOVE: broker.LiteLeave,
}

// SyncLiteSubscription takes over which lite topics a client wants.
func (s *Server) SyncLiteSubscription(ctx context.Context, req *pb.SyncLiteSubscriptionRequest) (*pb.SyncLiteSubscriptionResponse, error) {
	return &pb.SyncLiteSubscriptionResponse{Status: s.syncLite(ctx, req)}, nil
}

func (s *Server) syncLite(ctx context.Context, req *pb.SyncLiteSubscriptionRequest) *pb.Status {
	r, st := s.liteRequest(ctx, req)
	if st != nil {
		return st
	}
	if _, ok := s.clients.see(ctx, r.ClientID, pb.ClientType_CLIENT_TYPE_UNSPECIFIED); !ok {
		return refuse(pb.Code_TOO_MANY_REQUESTS, "too many clients")
	}
	return statusOf(s.store.SyncLite(ctx, r))
}

// liteRequest judges the request and translates it.
func (s *Server) liteRequest(ctx context.Context, req *pb.SyncLiteSubscriptionRequest) (r broker.LiteRequest, st *pb.Status) {
	t, z, sub, st := s.seek(ctx, req.GetTopic())
	if st != nil {
		return r, st
	}
	group, st := groupName(ctx, req.GetGroup())
	if st != nil {
		return r, st
	}
	if st := consumable(t, z, sub, group); st != nil {
		return r, st
	}
	action, known := liteActions[req.GetAction()]
	switch {
	case sub.info == nil || sub.info.Kind != zone.KindLite:
		return r, refuse(pb.Code_UNSUPPORTED, "the topic "+string(sub.name)+" is not of kind lite, and has no lite topics")
	case !known:
		return r, refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the action %d of lite subscriptions is not known to this version", req.GetAction()))
	case len(req.GetLiteTopicSet()) > maxLiteNames:
		return r, refuse(pb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED, fmt.Sprintf("the request has %d lite topics, the limit is %d", len(req.GetLiteTopicSet()), maxLiteNames))
	}
	id, _ := clientID(ctx) // judged before
	r = broker.LiteRequest{Group: group, Topic: sub.name, ClientID: id, Action: action, Names: liteNames(ctx, req)}
	slices.Sort(r.Names)
	r.Names = slices.Compact(r.Names)
	r.From, r.N, st = liteFrom(req.GetOffsetOption())
	return r, st
}

// liteNames are the lite topics of a request. The client for Python (5.1.2) adds one
// lite topic as many, a letter each, in their order: it is put together again.
func liteNames(ctx context.Context, req *pb.SyncLiteSubscriptionRequest) []string {
	names := req.GetLiteTopicSet()
	letters := len(names) > 1 && req.GetAction() == pb.LiteSubscriptionAction_PARTIAL_ADD &&
		!slices.ContainsFunc(names, func(name string) bool { return len(name) != 1 })
	if v := metadata.ValueFromIncomingContext(ctx, "x-mq-language"); letters && len(v) > 0 && v[0] == "PYTHON" {
		return []string{strings.Join(names, "")}
	}
	return slices.Clone(names)
}

// liteFrom translates where to go on.
func liteFrom(o *pb.OffsetOption) (broker.LiteFrom, int64, *pb.Status) {
	var from broker.LiteFrom
	var n int64
	switch x := o.GetOffsetType().(type) {
	case nil:
	case *pb.OffsetOption_Policy_:
		switch x.Policy {
		case pb.OffsetOption_LAST:
		case pb.OffsetOption_MIN:
			from = broker.LiteFromMin
		case pb.OffsetOption_MAX:
			from = broker.LiteFromMax
		default:
			return 0, 0, refuse(pb.Code_ILLEGAL_OFFSET, fmt.Sprintf("the policy %d of an offset is not known to this version", x.Policy))
		}
	case *pb.OffsetOption_Offset:
		from, n = broker.LiteFromOffset, x.Offset
	case *pb.OffsetOption_TailN:
		from, n = broker.LiteFromTail, x.TailN
	case *pb.OffsetOption_Timestamp:
		from, n = broker.LiteFromTime, x.Timestamp
	}
	if n < 0 {
		return 0, 0, refuse(pb.Code_ILLEGAL_OFFSET, fmt.Sprintf("the offset, number or time %d is negative", n))
	}
	return from, n, nil
}

// checkLiteName judges the lite topic of a message.
func checkLiteName(name string) *pb.Status {
	if text := zone.LiteName(name); text != "" {
		return refuse(pb.Code_ILLEGAL_LITE_TOPIC, fmt.Sprintf("the lite topic %.80q is not one: %s", name, text))
	}
	return nil
}

// checkLiteConsumer refuses a lite consumer of a topic without lite topics, and a
// plain one of a topic of which its group gets lite topics by name: it would receive
// nothing without a word.
func checkLiteConsumer(kind pb.ClientType, t *zone.Topology, group zone.ConsumerGroup, topic *zone.TopicInfo) error {
	named := topic.Kind == zone.KindLite && t.LiteModeOf(group) != zone.LiteAll
	switch {
	case isLite(kind) && topic.Kind != zone.KindLite:
		return &settingsError{pb.Code_UNSUPPORTED, fmt.Sprintf("the topic %s is of kind %s, and has no lite topics", topic.Name, topic.Kind)}
	case named && !isLite(kind):
		return &settingsError{pb.Code_UNSUPPORTED, fmt.Sprintf("the topic %s is of kind lite, and the consumer group %s gets its lite topics by name: it needs a lite consumer, or lite: all in the topology", topic.Name, group)}
	}
	return nil
}

// answerLite tells a lite consumer its limits.
func answerLite(sub *pb.Subscription, topics []*zone.TopicInfo) {
	quota := zone.DefaultLite.Subscriptions
	for i, t := range topics {
		if n := t.Lite.Subscriptions; i == 0 || n < quota {
			quota = n
		}
	}
	sub.LiteSubscriptionQuota = proto.Int32(int32(quota))
	sub.MaxLiteTopicSize = proto.Int32(zone.MaxLiteName)
}

// oneByOne reports whether a client of the group is to work messages of the topic off
// one after the other. Lite topics are each in order whatever it does, since no two
// messages of one are out at once.
func oneByOne(t *zone.Topology, group zone.ConsumerGroup, topic *zone.TopicInfo) bool {
	if topic != nil && topic.Kind == zone.KindLite {
		g := t.FindConsumerGroup(group)
		return g != nil && g.FIFO
	}
	return t.InOrder(group, topic)
}

// LiteLost tells a client that it has a lite topic no longer, if it has a stream here
// that takes it. A client that does not hear it says so with its next
// SyncLiteSubscription, and is told again. The broker calls it (SetLiteNotify); it does
// not block.
func (s *Server) LiteLost(clientID string, _ zone.Topic, name string) {
	s.clients.lose(clientID, lostLite{name})
}

// lose queues the news for the newest stream of a client.
func (r *registry) lose(id string, l lostLite) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c := r.clients[id]
	if c == nil || len(c.sessions) == 0 {
		return
	}
	select {
	case c.sessions[len(c.sessions)-1].lost <- l:
	default: // it does not read
	}
}

// sendLost writes the news to its stream.
func (s *Server) sendLost(stream grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand], l lostLite) error {
	_, stop := s.hurry(stream.Context(), func() {})
	defer stop()
	return stream.Send(&pb.TelemetryCommand{Status: statusOK, Command: &pb.TelemetryCommand_NotifyUnsubscribeLiteCommand{
		NotifyUnsubscribeLiteCommand: &pb.NotifyUnsubscribeLiteCommand{LiteTopic: l.name},
	}})
}
