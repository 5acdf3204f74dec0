package rocketmq

import (
	"context"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/zone"
)

// Store is the broker behind the front end; *broker.Broker is one. Its methods are
// safe for concurrent use and return *broker.Error for everything that a client
// can cause, or the context's error.
type Store interface {
	// Publish stores the messages in one append and returns when all are as
	// durable as their topic asks. out has one element a message. Neither slice
	// nor a body is kept after the return.
	Publish(ctx context.Context, msgs []broker.Message, out []broker.PublishResult) error
	// Receive blocks until there is a message, r.Wait is over (none, no error) or
	// ctx ends. The records of the deliveries point into memory that nobody
	// changes.
	Receive(ctx context.Context, r broker.ReceiveRequest) ([]broker.Delivery, error)
	// Ack settles a delivery. It is idempotent and does not wait for the disk.
	Ack(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error
	// ChangeInvisible makes the message visible after d and returns the handle
	// that replaces the given one.
	ChangeInvisible(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration) (string, error)
	// Suspend is ChangeInvisible without counting the delivery as an attempt.
	Suspend(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration) (string, error)
	// EndRenewal renews a delivery no more, which may not have arrived.
	EndRenewal(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error
	// ClientsGone asks whether these clients still live (Server.Alive): what one that
	// does not was given under Renew comes back.
	ClientsGone(clientIDs []string)
	// DeadLetter moves the message to the group's dead-letter topic. At nil the
	// move is durable as a whole. It is idempotent.
	DeadLetter(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error
	Puller
	Chooser
	// EndTransaction decides the half message with the transaction id. At nil the
	// decision is durable; the same one again is nil, too.
	EndTransaction(ctx context.Context, t zone.Topic, id string, r broker.Resolution) error
	// Recall takes a delayed message back before it is due and returns its id. At
	// nil that is durable. The message may wait at any broker of the zone.
	Recall(ctx context.Context, t zone.Topic, handle string) (string, error)
	// Topology returns the topology in force. It does not block.
	Topology() *zone.Topology
}

// Puller serves consumers that pull. A queue that a topic does not have is
// broker.KindInvalid. Offsets of queues at other brokers of the zone are asked there.
type Puller interface {
	// Pull blocks until there is a message at or behind the offset, r.Wait is over
	// (none, no error) or ctx ends. broker.KindOffset with a *broker.OffsetError when
	// the queue does not hold the offset.
	Pull(ctx context.Context, r broker.PullRequest) (broker.Pulled, error)
	// Offset returns where the group goes on, or broker.KindNoOffset.
	Offset(ctx context.Context, g zone.ConsumerGroup, q broker.QueueName) (uint64, error)
	// SetOffset makes the group go on at the offset. It is durable at nil.
	SetOffset(ctx context.Context, g zone.ConsumerGroup, q broker.QueueName, offset uint64) error
	// FindOffset returns the offset of a place; at is for broker.WhereTime.
	FindOffset(ctx context.Context, q broker.QueueName, w broker.Where, at time.Time) (uint64, error)
}

// Chooser serves consumers that choose lite topics.
type Chooser interface {
	// SyncLite takes over which lite topics a client wants, here and at the other
	// brokers of the zone.
	SyncLite(ctx context.Context, r broker.LiteRequest) error
	// LeaveLite forgets what a client wants here. It does not block.
	LeaveLite(clientID string)
}

var _ Store = (*broker.Broker)(nil)
