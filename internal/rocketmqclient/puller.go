package rocketmqclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// Queue is a queue of a topic at one broker.
type Queue struct {
	Topic  string
	Broker string
	ID     int32

	mq *pb.MessageQueue
	ep *endpoint
}

// PullConsumer reads queues from offsets of its choice and says where its group goes
// on. It is safe for concurrent use.
type PullConsumer struct {
	core  *core
	group *pb.Resource
}

// NewPullConsumer connects a consumer of the group to the brokers of the topics.
func NewPullConsumer(ctx context.Context, cfg Config, group string, topics ...string) (*PullConsumer, error) {
	if len(topics) == 0 {
		return nil, fmt.Errorf("%w: a consumer needs a topic", ErrBound)
	}
	kind, resource := pb.ClientType_PULL_CONSUMER, &pb.Resource{Name: group}
	core, err := newCore(cfg, &pb.Settings{
		ClientType:     &kind,
		RequestTimeout: durationpb.New(max(cfg.RequestTimeout, 3*time.Second)),
		PubSub:         &pb.Settings_Subscription{Subscription: &pb.Subscription{Group: resource}},
		UserAgent:      &pb.UA{Language: pb.Language_GOLANG, Version: "mqrouter"},
	}, resource)
	if err != nil {
		return nil, err
	}
	if err := core.start(ctx, topics); err != nil {
		core.close()
		return nil, err
	}
	return &PullConsumer{core: core, group: resource}, nil
}

// Close is like Producer.Close.
func (c *PullConsumer) Close() error {
	c.core.close()
	return nil
}

// Queues returns the queues of a topic that can be read, in the route's order.
func (c *PullConsumer) Queues(ctx context.Context, topic string) ([]Queue, error) {
	r, err := c.core.route(ctx, topic)
	if err != nil {
		return nil, err
	}
	list := make([]Queue, 0, len(r.queues))
	for _, q := range r.queues {
		list = append(list, Queue{Topic: topic, Broker: q.mq.GetBroker().GetName(), ID: q.mq.GetId(), mq: q.mq, ep: q.ep})
	}
	return list, nil
}

// Pulled is what a pull found.
type Pulled struct {
	Messages []*Received // they need no acknowledgement, and can have none
	Next     int64       // offset to go on from; set beside a *StatusError, too
}

// Pull reads at most limit messages of a queue from an offset on that the tags select
// ("a || b"; empty means all), and waits for the first. It returns none without an
// error when there were none. An offset that the queue does not hold is a *StatusError
// with ILLEGAL_OFFSET, and Next the nearest that it holds.
func (c *PullConsumer) Pull(ctx context.Context, q Queue, offset int64, limit int, tags string, wait time.Duration) (Pulled, error) {
	ctx, cancel := c.core.outgoing(ctx, wait+c.core.cfg.RequestTimeout)
	defer cancel()
	stream, err := q.ep.stub().PullMessage(ctx, &pb.PullMessageRequest{
		Group: c.group, MessageQueue: q.mq, Offset: offset, BatchSize: int32(min(max(limit, 1), maxBatch)),
		FilterExpression: Subscription{Tags: tags}.filter(), LongPollingTimeout: durationpb.New(wait),
	})
	if err != nil {
		return Pulled{}, &OpError{Op: "PullMessage", Endpoint: q.ep.addr, Err: err}
	}
	out, status := Pulled{Next: offset}, (*pb.Status)(nil)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Pulled{}, &OpError{Op: "PullMessage", Endpoint: q.ep.addr, Err: err}
		}
		switch x := resp.GetContent().(type) {
		case *pb.PullMessageResponse_Status:
			status = x.Status
		case *pb.PullMessageResponse_Message:
			if len(out.Messages) == maxBatch {
				return Pulled{}, &OpError{Op: "PullMessage", Endpoint: q.ep.addr, Err: ErrProtocol}
			}
			out.Messages = append(out.Messages, decode(x.Message, queue{mq: q.mq, ep: q.ep}))
		case *pb.PullMessageResponse_NextOffset:
			out.Next = x.NextOffset
		}
	}
	if status.GetCode() == pb.Code_MESSAGE_NOT_FOUND {
		return out, nil
	}
	return out, check("PullMessage", q.ep.addr, status)
}

// Offset returns where the group goes on in the queue.
func (c *PullConsumer) Offset(ctx context.Context, q Queue) (int64, error) {
	ctx, cancel := c.core.outgoing(ctx, c.core.cfg.RequestTimeout)
	defer cancel()
	resp, err := q.ep.stub().GetOffset(ctx, &pb.GetOffsetRequest{Group: c.group, MessageQueue: q.mq})
	if err != nil {
		return 0, &OpError{Op: "GetOffset", Endpoint: q.ep.addr, Err: err}
	}
	return resp.GetOffset(), check("GetOffset", q.ep.addr, resp.GetStatus())
}

// SetOffset says where the group goes on in the queue. It is durable at nil.
func (c *PullConsumer) SetOffset(ctx context.Context, q Queue, offset int64) error {
	ctx, cancel := c.core.outgoing(ctx, c.core.cfg.RequestTimeout)
	defer cancel()
	resp, err := q.ep.stub().UpdateOffset(ctx, &pb.UpdateOffsetRequest{Group: c.group, MessageQueue: q.mq, Offset: offset})
	if err != nil {
		return &OpError{Op: "UpdateOffset", Endpoint: q.ep.addr, Err: err}
	}
	return check("UpdateOffset", q.ep.addr, resp.GetStatus())
}

// FindOffset returns the first offset of the queue, the next one, or that of the first
// message that was stored at or after a time, by the policy.
func (c *PullConsumer) FindOffset(ctx context.Context, q Queue, policy pb.QueryOffsetPolicy, at time.Time) (int64, error) {
	ctx, cancel := c.core.outgoing(ctx, c.core.cfg.RequestTimeout)
	defer cancel()
	req := &pb.QueryOffsetRequest{MessageQueue: q.mq, QueryOffsetPolicy: policy}
	if policy == pb.QueryOffsetPolicy_TIMESTAMP {
		req.Timestamp = timestamppb.New(at)
	}
	resp, err := q.ep.stub().QueryOffset(ctx, req)
	if err != nil {
		return 0, &OpError{Op: "QueryOffset", Endpoint: q.ep.addr, Err: err}
	}
	return resp.GetOffset(), check("QueryOffset", q.ep.addr, resp.GetStatus())
}
