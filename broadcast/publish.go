package broadcast

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// PublisherOptions say where changes are published.
type PublisherOptions struct {
	Endpoint string      // broker of the own zone, host:port; required
	Topic    string      // topic with a broadcast route; required
	TLS      *tls.Config // nil: plaintext
	// AccessKey and SecretKey sign what is sent; both empty: nothing is signed.
	AccessKey, SecretKey string
	Timeout              time.Duration // of one attempt; 0 = 3 s
	Attempts             int           // attempts of one change; 0 = 3. The version fence makes repeats harmless.
	Logger               *slog.Logger  // nil: none
}

// Publisher publishes changes with the RocketMQ 5 protocol. It is safe for
// concurrent use.
type Publisher struct {
	topic    string
	attempts int
	producer *rocketmqclient.Producer
	ids      *rocketmqclient.IDs
}

// Receipt says how far a published change got.
type Receipt struct {
	MessageID string
	Reached   string // the broker's words: what the acknowledgement promises
}

// retryPause bounds the full jitter between two attempts.
const retryPause = 200 * time.Millisecond

// NewPublisher connects and asks for the topic's route, within ctx.
func NewPublisher(ctx context.Context, o PublisherOptions) (*Publisher, error) {
	if o.Topic == "" {
		return nil, errors.New("broadcast: publisher: the topic is missing")
	}
	if o.Attempts <= 0 {
		o.Attempts = 3
	}
	ids, err := rocketmqclient.NewIDs(crand.Reader)
	if err != nil {
		return nil, err
	}
	p, err := rocketmqclient.NewProducer(ctx, rocketmqclient.Config{Endpoint: o.Endpoint, TLS: o.TLS, AccessKey: o.AccessKey, SecretKey: o.SecretKey, RequestTimeout: o.Timeout, Logger: o.Logger}, o.Topic)
	if err != nil {
		return nil, fmt.Errorf("broadcast: publisher of %s at %s: %w", o.Topic, o.Endpoint, err)
	}
	return &Publisher{topic: o.Topic, attempts: o.Attempts, producer: p, ids: ids}, nil
}

// Set publishes that the key has the value as of the version.
func (p *Publisher) Set(ctx context.Context, key string, version uint64, value []byte) (Receipt, error) {
	return p.Publish(ctx, Change{Op: OpSet, Key: key, Version: version, Value: value})
}

// Delete publishes that the key has no value as of the version.
func (p *Publisher) Delete(ctx context.Context, key string, version uint64) (Receipt, error) {
	return p.Publish(ctx, Change{Op: OpDelete, Key: key, Version: version})
}

// FlushPrefix publishes that no key that begins with the prefix and has at most
// the version has a value.
func (p *Publisher) FlushPrefix(ctx context.Context, prefix string, version uint64) (Receipt, error) {
	return p.Publish(ctx, Change{Op: OpFlushPrefix, Key: prefix, Version: version})
}

// Publish publishes a change and waits for the broker's answer. At nil the
// change is as durable as its topic promises, and will reach every city.
// Errors: *ChangeError; the broker's refusal; after any other error nobody
// knows whether the change was published, and publishing it again is harmless.
func (p *Publisher) Publish(ctx context.Context, c Change) (Receipt, error) {
	m, err := c.Format()
	if err != nil {
		return Receipt{}, err
	}
	msg := &rocketmqclient.Message{Topic: p.topic, Body: m.Body, Keys: []string{m.Key}, Properties: m.Properties, Born: time.Now()}
	msg.ID = p.ids.Next()
	for attempt := 1; ; attempt++ {
		r, err := p.producer.Send(ctx, msg)
		if err == nil {
			return Receipt{MessageID: r.MessageID, Reached: r.Text}, nil
		}
		if attempt == p.attempts || !retryable(err) || !pause(ctx, rand.N(retryPause)) {
			if ctx.Err() != nil {
				err = errors.Join(ctx.Err(), err) // gRPC has its own words for it
			}
			return Receipt{MessageID: msg.ID}, fmt.Errorf("broadcast: publish %s %q: %w", c.Op, c.Key, err)
		}
	}
}

// retryable reports whether the same send may succeed later.
func retryable(err error) bool {
	var status *rocketmqclient.StatusError
	if errors.As(err, &status) {
		return status.Temporary()
	}
	var op *rocketmqclient.OpError
	return errors.As(err, &op)
}

// Close ends the connection and waits for the goroutines. A second Close
// returns nil.
func (p *Publisher) Close() error { return p.producer.Close() }

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
