package broker

import (
	"context"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Broker is one broker of a zone. Its methods are safe for concurrent use.
type Broker struct {
	topo  *zone.Topology
	group *zone.GroupInfo
}

func closed(op string) error { return &Error{Op: op, Kind: KindClosed} }

// Topology returns the topology in force. It does not block.
func (b *Broker) Topology() *zone.Topology { return b.topo }

// Group returns this broker's group in the topology in force.
func (b *Broker) Group() *zone.GroupInfo { return b.group }

// Zone returns this broker's zone in the topology in force.
func (b *Broker) Zone() *zone.ZoneInfo { return b.group.Zone }

// Publish stores the messages in one append and waits until they are committed
// and folded. out has one element a message; it takes the result of each,
// including its own error. The returned error is for the call as a whole: out
// is not filled then.
func (b *Broker) Publish(ctx context.Context, msgs []Message, out []PublishResult) error {
	return closed("publish")
}

// Receive returns messages for the consumer group and hides them from others
// for the invisible time. It waits for at least one message; it returns none
// and no error when the wait is over. A message that expires unacknowledged is
// delivered again after the group's back-off, and goes to the dead-letter
// topic after the group's maximum of deliveries.
func (b *Broker) Receive(ctx context.Context, r ReceiveRequest) ([]Delivery, error) {
	return nil, closed("receive")
}

// Ack settles a delivered message. It is idempotent while the handle is the
// newest of its message. It returns before the acknowledgement is durable: a
// crash may deliver the last few again, a graceful Close does not.
func (b *Broker) Ack(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	return closed("ack")
}

// ChangeInvisible makes the message visible again after d from now and returns
// the handle that replaces the one given.
func (b *Broker) ChangeInvisible(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string, d time.Duration) (string, error) {
	return "", closed("change invisible")
}

// DeadLetter moves a delivered message to the group's dead-letter topic: copy
// and settlement are one log record, so it is in one of both places whatever
// fails. It is idempotent.
func (b *Broker) DeadLetter(ctx context.Context, g zone.ConsumerGroup, t zone.Topic, handle string) error {
	return closed("dead letter")
}

// SetLiveness sets who is asked at the expiry of a Renew delivery whether the
// client still lives. It is called once, before the first Receive. f must not
// block or call the broker.
func (b *Broker) SetLiveness(f func(clientID string) bool) {}
