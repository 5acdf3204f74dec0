package rocketmq

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// Retry policy of producers: RocketMQ's own values. Go, C++ and Python take it
// over, Java and Node keep their own number of attempts.
const (
	producerAttempts = 3
	producerInitial  = 10 * time.Millisecond
	producerMax      = time.Second
)

// Retry policy of a consumer group that the topology does not declare; the
// topology's own defaults.
var unknownGroup = zone.ConsumerGroupInfo{MaxAttempts: 16, Backoff: zone.Backoff{Initial: time.Second, Max: 10 * time.Minute, Multiplier: 2}}

// settingsError says why Settings cannot be answered.
type settingsError struct {
	code pb.Code
	text string
}

// Error puts the protocol's code before the text: a gRPC error has no field for it.
func (e *settingsError) Error() string { return e.code.String() + ": " + e.text }

// answer makes the reply to a client's Settings: its own, with what the server has
// the last word on. info is what to remember of the client.
func (s *Server) answer(ctx context.Context, in *pb.Settings) (reply *pb.Settings, info clientInfo, err error) {
	if n := proto.Size(in); n > maxSettingsBytes {
		return nil, info, &settingsError{pb.Code_BAD_REQUEST, fmt.Sprintf("settings have %d bytes, the limit is %d", n, maxSettingsBytes)}
	}
	if text := checkClientProperties(in.GetClientProperties()); text != "" {
		return nil, info, &settingsError{pb.Code_INVALID_CLIENT_PROPERTIES, text}
	}
	info.kind = knownKind(in)
	info.language = in.GetUserAgent().GetLanguage()
	reply = proto.CloneOf(in)
	reply.Metric = &pb.Metric{}
	switch reply.PubSub.(type) {
	case *pb.Settings_Publishing:
		if info.kind != pb.ClientType_PRODUCER {
			return nil, info, unrecognised(info.kind)
		}
		info.topics = s.answerProducer(ctx, reply)
	case *pb.Settings_Subscription:
		if info.kind != pb.ClientType_PUSH_CONSUMER && info.kind != pb.ClientType_SIMPLE_CONSUMER && info.kind != pb.ClientType_PULL_CONSUMER && !isLite(info.kind) {
			return nil, info, unrecognised(info.kind)
		}
		if err := s.checkSubscriptions(ctx, info.kind, in.GetSubscription()); err != nil {
			return nil, info, err
		}
		info.poll = s.answerConsumer(ctx, info.kind, reply)
	default:
		return nil, info, &settingsError{pb.Code_BAD_REQUEST, "settings have neither publishing nor subscription"}
	}
	return reply, info, nil
}

// knownKind returns the client's type. A newer one, of which nothing is known but
// which half of the settings it fills, is what that half makes of it.
func knownKind(in *pb.Settings) pb.ClientType {
	kind := in.GetClientType()
	if _, known := pb.ClientType_name[int32(kind)]; known {
		return kind
	}
	switch in.PubSub.(type) {
	case *pb.Settings_Publishing:
		return pb.ClientType_PRODUCER
	case *pb.Settings_Subscription:
		return pb.ClientType_SIMPLE_CONSUMER
	}
	return kind
}

func unrecognised(k pb.ClientType) error {
	return &settingsError{pb.Code_UNRECOGNIZED_CLIENT_TYPE, fmt.Sprintf("clients of type %s are not supported with these settings", k)}
}

// answerProducer fills the producer's half and returns the topics about whose half
// messages it may be asked. The largest body is that of the topics named; the topic
// itself is judged at each send.
func (s *Server) answerProducer(ctx context.Context, reply *pb.Settings) declared {
	p := reply.GetPublishing()
	t, _ := s.topology()
	largest := 0
	topics := declared{}
	for _, r := range p.GetTopics() {
		if info := t.FindTopic(zone.Topic(fullName(ctx, r))); info != nil {
			largest = max(largest, bodyLimit(info))
			if info.Kind == zone.KindTransaction {
				topics[info.Name] = r
			}
		}
	}
	if largest == 0 { // it names its topics when it sends
		for _, info := range t.Topics {
			largest = max(largest, bodyLimit(info))
		}
	}
	if largest == 0 {
		largest = maxBody
	}
	p.MaxBodySize = int32(largest)
	p.ValidateMessageType = true
	reply.BackoffPolicy = exponential(producerAttempts, producerInitial, producerMax, 2)
	return topics
}

// answerConsumer fills the consumer's half and returns the poll time.
func (s *Server) answerConsumer(ctx context.Context, kind pb.ClientType, reply *pb.Settings) time.Duration {
	sub := reply.GetSubscription()
	group := &unknownGroup
	t, _ := s.topology()
	name := zone.ConsumerGroup(fullName(ctx, sub.GetGroup()))
	if info := t.FindConsumerGroup(name); info != nil {
		group = info
	}
	fifo := group.FIFO
	var topics []*zone.TopicInfo
	for _, e := range sub.GetSubscriptions() {
		if info := t.FindTopic(zone.Topic(fullName(ctx, e.GetTopic()))); info != nil {
			topics = append(topics, info)
			fifo = fifo || oneByOne(t, name, info)
		}
	}
	if isLite(kind) {
		answerLite(sub, topics)
	}
	sub.Fifo = proto.Bool(fifo)
	sub.ReceiveBatchSize = proto.Int32(maxReceiveBatch)
	poll := s.opts.MaxPoll
	if d := sub.GetLongPollingTimeout().AsDuration(); d > 0 && d < poll {
		poll = d
	}
	sub.LongPollingTimeout = durationpb.New(poll)
	reply.BackoffPolicy = retryPolicy(group, reply.GetUserAgent().GetLanguage())
	return poll
}

// checkSubscriptions refuses a consumer with an SQL filter that is none, or of another
// kind than its topic needs: its start
// fails with the reason in the clients that look at it, where a refused receive is
// repeated without a word. Filters of other types are judged when they are used.
func (s *Server) checkSubscriptions(ctx context.Context, kind pb.ClientType, sub *pb.Subscription) error {
	if n := len(sub.GetSubscriptions()); n > maxSubscriptions {
		return &settingsError{pb.Code_BAD_REQUEST, fmt.Sprintf("settings have %d subscriptions, the limit is %d", n, maxSubscriptions)}
	}
	t, _ := s.topology()
	group := zone.ConsumerGroup(fullName(ctx, sub.GetGroup()))
	for _, e := range sub.GetSubscriptions() {
		if info := t.FindTopic(zone.Topic(fullName(ctx, e.GetTopic()))); info != nil {
			if err := checkLiteConsumer(kind, t, group, info); err != nil {
				return err
			}
		}
		if e.GetExpression().GetType() != pb.FilterType_SQL {
			continue
		}
		if _, st := s.filters.parse(e.GetExpression()); st != nil {
			return &settingsError{st.GetCode(), "topic " + e.GetTopic().GetName() + ": " + st.GetMessage()}
		}
	}
	return nil
}

// customized steps sent at most: the waits grow no further than the last one.
const maxSteps = 32

// retryPolicy writes a group's policy in the kind that the client's language
// knows: Python knows steps only, Node a curve only.
func retryPolicy(g *zone.ConsumerGroupInfo, language pb.Language) *pb.RetryPolicy {
	steps := len(g.Backoff.Steps) > 0
	if language == pb.Language_PYTHON || steps && language != pb.Language_NODE_JS {
		n := min(max(g.MaxAttempts-1, 1), maxSteps)
		next := make([]*durationpb.Duration, n)
		for i := range next {
			next[i] = durationpb.New(wait(g.Backoff, i+1))
		}
		return &pb.RetryPolicy{MaxAttempts: int32(g.MaxAttempts), Strategy: &pb.RetryPolicy_CustomizedBackoff{
			CustomizedBackoff: &pb.CustomizedBackoff{Next: next},
		}}
	}
	if steps {
		return exponential(g.MaxAttempts, g.Backoff.Steps[0], g.Backoff.Steps[len(g.Backoff.Steps)-1], 2)
	}
	return exponential(g.MaxAttempts, g.Backoff.Initial, g.Backoff.Max, g.Backoff.Multiplier)
}

// wait returns how long attempt n, from 1, waits.
func wait(b zone.Backoff, n int) time.Duration {
	if len(b.Steps) > 0 {
		return b.Steps[min(n, len(b.Steps))-1]
	}
	d := float64(b.Initial)
	for range n - 1 {
		if d *= b.Multiplier; d >= float64(b.Max) {
			return b.Max
		}
	}
	return time.Duration(d)
}

func exponential(attempts int, initial, longest time.Duration, multiplier float64) *pb.RetryPolicy {
	return &pb.RetryPolicy{MaxAttempts: int32(attempts), Strategy: &pb.RetryPolicy_ExponentialBackoff{
		ExponentialBackoff: &pb.ExponentialBackoff{Initial: durationpb.New(initial), Max: durationpb.New(longest), Multiplier: float32(multiplier)},
	}}
}
