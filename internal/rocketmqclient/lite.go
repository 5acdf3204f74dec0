package rocketmqclient

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// liteEvery is how often a consumer repeats which lite topics it wants: a broker that
// was started anew does not know.
const liteEvery = 20 * time.Second

// lite is which lite topics a consumer wants, by topic.
type lite struct {
	mu    sync.Mutex
	names map[string][]string  // guarded by mu; sorted
	told  map[string]time.Time // guarded by mu
}

// startLite tells the lite topics of the subscriptions.
func (c *SimpleConsumer) startLite(ctx context.Context) error {
	for _, s := range c.subs {
		if s.Lite == nil {
			continue
		}
		if c.lite == nil {
			c.lite = &lite{names: map[string][]string{}, told: map[string]time.Time{}}
		}
		names := slices.Clone(s.Lite)
		slices.Sort(names)
		c.lite.names[s.Topic] = slices.Compact(names)
		if err := c.repeatLite(ctx, s.Topic); err != nil {
			return err
		}
	}
	return nil
}

// repeatLite tells the lite topics that the consumer wants of a topic, unless it did so
// lately.
func (c *SimpleConsumer) repeatLite(ctx context.Context, topic string) error {
	if c.lite == nil {
		return nil
	}
	c.lite.mu.Lock()
	defer c.lite.mu.Unlock()
	names, wanted := c.lite.names[topic]
	if !wanted || time.Since(c.lite.told[topic]) < liteEvery {
		return nil
	}
	return c.tellLite(ctx, topic, pb.LiteSubscriptionAction_COMPLETE_ADD, names, nil)
}

// SubscribeLite wants lite topics of a topic of the consumer's besides those that it
// has. from says where its group goes on in them; nil means where it is. A consumer
// without lite topics in its subscriptions cannot have any.
func (c *SimpleConsumer) SubscribeLite(ctx context.Context, topic string, from *pb.OffsetOption, names ...string) error {
	return c.changeLite(ctx, topic, pb.LiteSubscriptionAction_PARTIAL_ADD, from, names)
}

// UnsubscribeLite does not want lite topics any more.
func (c *SimpleConsumer) UnsubscribeLite(ctx context.Context, topic string, names ...string) error {
	return c.changeLite(ctx, topic, pb.LiteSubscriptionAction_PARTIAL_REMOVE, nil, names)
}

func (c *SimpleConsumer) changeLite(ctx context.Context, topic string, action pb.LiteSubscriptionAction, from *pb.OffsetOption, names []string) error {
	if c.lite == nil {
		return ErrBound
	}
	c.lite.mu.Lock()
	defer c.lite.mu.Unlock()
	if err := c.tellLite(ctx, topic, action, names, from); err != nil {
		return err
	}
	list := c.lite.names[topic]
	if action == pb.LiteSubscriptionAction_PARTIAL_REMOVE {
		list = slices.DeleteFunc(slices.Clone(list), func(name string) bool { return slices.Contains(names, name) })
	} else {
		list = slices.Concat(list, names)
		slices.Sort(list)
		list = slices.Compact(list)
	}
	c.lite.names[topic] = list
	return nil
}

// tellLite makes the call, at the access point, which passes on what others must know.
// lite.mu is held.
func (c *SimpleConsumer) tellLite(ctx context.Context, topic string, action pb.LiteSubscriptionAction, names []string, from *pb.OffsetOption) error {
	access, err := c.core.endpoint(c.core.cfg.Endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := c.core.outgoing(ctx, c.core.cfg.RequestTimeout)
	defer cancel()
	resp, err := access.stub().SyncLiteSubscription(ctx, &pb.SyncLiteSubscriptionRequest{
		Action: action, Topic: &pb.Resource{Name: topic}, Group: c.group, LiteTopicSet: names, OffsetOption: from,
	})
	if err != nil {
		return &OpError{Op: "SyncLiteSubscription", Endpoint: access.addr, Err: err}
	}
	if err := check("SyncLiteSubscription", access.addr, resp.GetStatus()); err != nil {
		return err
	}
	if action == pb.LiteSubscriptionAction_COMPLETE_ADD {
		c.lite.told[topic] = time.Now()
	}
	return nil
}
