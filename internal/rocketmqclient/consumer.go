package rocketmqclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// Subscription is one topic of a consumer.
type Subscription struct {
	Topic string
	Tags  string // "a || b"; empty or "*" means all
	SQL   string // an SQL92 expression; wins over Tags, empty means none
	// Lite names the lite topics that it wants of a topic of kind lite; nil: it wants
	// none by name.
	Lite []string
}

// Received is one delivery. Its fields are the caller's.
type Received struct {
	Topic        string
	MessageID    string
	Body         []byte
	Encoding     pb.Encoding
	Tag          string
	Keys         []string
	Properties   map[string]string
	MessageGroup string
	LiteTopic    string
	Priority     int32
	TraceContext string
	QueueID      int32
	Offset       int64
	Attempt      int32 // from 1
	Born         time.Time
	Stored       time.Time
	DeliverAt    time.Time // of a delayed message; else zero
	Broker       string    // name of the broker that delivered it
	// DeadTopic and DeadID name the original of a dead letter; empty otherwise.
	DeadTopic, DeadID string

	handle string // replaced by ChangeInvisible
	ep     *endpoint
}

// SimpleConsumer receives messages one call at a time. It is safe for concurrent
// use; a single Received is not.
type SimpleConsumer struct {
	core  *core
	group *pb.Resource
	subs  []Subscription
	await time.Duration
	lite  *lite // nil: no subscription has lite topics
	next  atomic.Uint32
}

// NewSimpleConsumer connects a consumer of the group. await is how long a receive
// waits when there is no message; 0 means 10 s.
func NewSimpleConsumer(ctx context.Context, cfg Config, group string, await time.Duration, subs ...Subscription) (*SimpleConsumer, error) {
	if len(subs) == 0 {
		return nil, fmt.Errorf("%w: a consumer needs a subscription", ErrBound)
	}
	if await <= 0 {
		await = 10 * time.Second
	}
	kind := pb.ClientType_SIMPLE_CONSUMER
	if slices.ContainsFunc(subs, func(s Subscription) bool { return s.Lite != nil }) {
		kind = pb.ClientType_LITE_SIMPLE_CONSUMER
	}
	resource := &pb.Resource{Name: group}
	subscription := &pb.Subscription{Group: resource, LongPollingTimeout: durationpb.New(await)}
	topics := make([]string, 0, len(subs))
	for _, s := range subs {
		subscription.Subscriptions = append(subscription.Subscriptions,
			&pb.SubscriptionEntry{Topic: &pb.Resource{Name: s.Topic}, Expression: s.filter()})
		topics = append(topics, s.Topic)
	}
	core, err := newCore(cfg, &pb.Settings{
		ClientType:     &kind,
		RequestTimeout: durationpb.New(max(cfg.RequestTimeout, 3*time.Second)),
		PubSub:         &pb.Settings_Subscription{Subscription: subscription},
		UserAgent:      &pb.UA{Language: pb.Language_GOLANG, Version: "mqrouter"},
	}, resource)
	if err != nil {
		return nil, err
	}
	if err := core.start(ctx, topics); err != nil {
		core.close()
		return nil, err
	}
	c := &SimpleConsumer{core: core, group: resource, subs: slices.Clone(subs), await: await}
	if err := c.startLite(ctx); err != nil {
		core.close()
		return nil, err
	}
	return c, nil
}

func (s Subscription) filter() *pb.FilterExpression {
	if s.SQL != "" {
		return &pb.FilterExpression{Type: pb.FilterType_SQL, Expression: s.SQL}
	}
	expr := s.Tags
	if expr == "" {
		expr = "*"
	}
	return &pb.FilterExpression{Type: pb.FilterType_TAG, Expression: expr}
}

// Close is like Producer.Close. Messages received and not acknowledged come back
// to the group when their invisible time ends.
func (c *SimpleConsumer) Close() error {
	c.core.close()
	return nil
}

// Receive asks one broker for one subscribed topic, both in rotation, and blocks
// until a message, the end of the await time, or ctx. It returns at most 32
// messages, none without an error when there were none. The messages are hidden
// from the group for invisible; then they come back unless acknowledged.
func (c *SimpleConsumer) Receive(ctx context.Context, limit int, invisible time.Duration) ([]*Received, error) {
	return c.ReceiveWait(ctx, limit, invisible, c.await)
}

// ReceiveWait is Receive with an await time of its own.
func (c *SimpleConsumer) ReceiveWait(ctx context.Context, limit int, invisible, await time.Duration) ([]*Received, error) {
	sub := c.subs[int(c.next.Add(1)%uint32(len(c.subs)))]
	if err := c.repeatLite(ctx, sub.Topic); err != nil {
		return nil, err
	}
	r, err := c.core.route(ctx, sub.Topic)
	if err != nil {
		return nil, err
	}
	q, err := r.pick(r.readable)
	if err != nil {
		return nil, fmt.Errorf("topic %s: %w", sub.Topic, err)
	}
	ctx, cancel := c.core.outgoing(ctx, await+c.core.cfg.RequestTimeout)
	defer cancel()
	stream, err := q.ep.stub().ReceiveMessage(ctx, &pb.ReceiveMessageRequest{
		Group:              c.group,
		MessageQueue:       q.mq,
		FilterExpression:   sub.filter(),
		BatchSize:          int32(min(max(limit, 1), maxBatch)),
		InvisibleDuration:  durationpb.New(invisible),
		LongPollingTimeout: durationpb.New(await),
	})
	if err != nil {
		q.ep.heard(err)
		return nil, &OpError{Op: "ReceiveMessage", Endpoint: q.ep.addr, Err: err}
	}
	return collect(q, stream)
}

// receiver is the part of the stream that collect needs.
type receiver interface {
	Recv() (*pb.ReceiveMessageResponse, error)
}

// collect reads the stream to its end: status, messages and delivery time come in
// any order.
func collect(q queue, stream receiver) ([]*Received, error) {
	var (
		out    []*Received
		status *pb.Status
	)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			q.ep.heard(err)
			return nil, &OpError{Op: "ReceiveMessage", Endpoint: q.ep.addr, Err: err}
		}
		if s := resp.GetStatus(); s != nil {
			status = s
		}
		if m := resp.GetMessage(); m != nil {
			if len(out) == maxBatch {
				return nil, &OpError{Op: "ReceiveMessage", Endpoint: q.ep.addr, Err: ErrProtocol}
			}
			out = append(out, decode(m, q))
		}
	}
	q.ep.heard(nil)
	if status.GetCode() == pb.Code_MESSAGE_NOT_FOUND {
		return nil, nil
	}
	if err := check("ReceiveMessage", q.ep.addr, status); err != nil {
		return nil, err
	}
	return out, nil
}

func decode(m *pb.Message, q queue) *Received {
	sp := m.GetSystemProperties()
	var deliverAt time.Time
	if t := sp.GetDeliveryTimestamp(); t != nil {
		deliverAt = t.AsTime()
	}
	return &Received{
		DeliverAt:    deliverAt,
		Topic:        m.GetTopic().GetName(),
		MessageID:    sp.GetMessageId(),
		Body:         m.GetBody(),
		Encoding:     sp.GetBodyEncoding(),
		Tag:          sp.GetTag(),
		Keys:         sp.GetKeys(),
		Properties:   m.GetUserProperties(),
		MessageGroup: sp.GetMessageGroup(),
		LiteTopic:    sp.GetLiteTopic(),
		Priority:     sp.GetPriority(),
		TraceContext: sp.GetTraceContext(),
		QueueID:      sp.GetQueueId(),
		Offset:       sp.GetQueueOffset(),
		Attempt:      sp.GetDeliveryAttempt(),
		Born:         sp.GetBornTimestamp().AsTime(),
		Stored:       sp.GetStoreTimestamp().AsTime(),
		Broker:       q.mq.GetBroker().GetName(),
		DeadTopic:    sp.GetDeadLetterQueue().GetTopic(),
		DeadID:       sp.GetDeadLetterQueue().GetMessageId(),
		handle:       sp.GetReceiptHandle(),
		ep:           q.ep,
	}
}

// Ack finishes deliveries. All must come from one topic; they may come from
// several brokers. It returns the first refusal; the others may have succeeded,
// and repeating an acknowledgement does no harm. Who delivered is asked, or, when it
// did not answer its last request, the next broker of the topic's route that did: of
// a group with several nodes each one takes it, any other has not heard of the delivery.
func (c *SimpleConsumer) Ack(ctx context.Context, ms ...*Received) error {
	byBroker := map[*endpoint][]*Received{}
	for _, m := range ms {
		if m.Topic != ms[0].Topic {
			return fmt.Errorf("%w: acknowledgements of two topics in one call", ErrBound)
		}
		ep := c.asks(m)
		byBroker[ep] = append(byBroker[ep], m)
	}
	var first error
	for ep, batch := range byBroker {
		if err := c.ack(ctx, ep, batch); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// asks returns which endpoint is to hear of the delivery.
func (c *SimpleConsumer) asks(m *Received) *endpoint {
	r := (*c.core.routes.Load())[m.Topic]
	if !m.ep.broken() || r == nil {
		return m.ep
	}
	q, err := r.pick(r.readable)
	if err != nil {
		return m.ep
	}
	return q.ep
}

func (c *SimpleConsumer) ack(ctx context.Context, ep *endpoint, ms []*Received) error {
	ctx, cancel := c.core.outgoing(ctx, c.core.cfg.RequestTimeout)
	defer cancel()
	req := &pb.AckMessageRequest{Group: c.group, Topic: &pb.Resource{Name: ms[0].Topic}}
	for _, m := range ms {
		req.Entries = append(req.Entries, &pb.AckMessageEntry{MessageId: m.MessageID, ReceiptHandle: m.handle})
	}
	resp, err := ep.stub().AckMessage(ctx, req)
	ep.heard(err)
	if err != nil {
		return &OpError{Op: "AckMessage", Endpoint: ep.addr, Err: err}
	}
	for _, e := range resp.GetEntries() {
		if err := check("AckMessage", ep.addr, e.GetStatus()); err != nil {
			return err
		}
	}
	return check("AckMessage", ep.addr, resp.GetStatus())
}

// ChangeInvisible hides the delivery for d from now on, also as a negative
// acknowledgement. The delivery's handle is replaced by the server's new one.
func (c *SimpleConsumer) ChangeInvisible(ctx context.Context, m *Received, d time.Duration) error {
	ctx, cancel := c.core.outgoing(ctx, c.core.cfg.RequestTimeout)
	defer cancel()
	resp, err := m.ep.stub().ChangeInvisibleDuration(ctx, &pb.ChangeInvisibleDurationRequest{
		Group:             c.group,
		Topic:             &pb.Resource{Name: m.Topic},
		ReceiptHandle:     m.handle,
		InvisibleDuration: durationpb.New(d),
		MessageId:         m.MessageID,
	})
	if err != nil {
		return &OpError{Op: "ChangeInvisibleDuration", Endpoint: m.ep.addr, Err: err}
	}
	if err := check("ChangeInvisibleDuration", m.ep.addr, resp.GetStatus()); err != nil {
		return err
	}
	if h := resp.GetReceiptHandle(); h != "" {
		m.handle = h
	}
	return nil
}

// Brokers returns the number of brokers from which the topic is received.
func (c *SimpleConsumer) Brokers(ctx context.Context, topic string) (int, error) {
	r, err := c.core.route(ctx, topic)
	if err != nil {
		return 0, err
	}
	return len(r.readable), nil
}
