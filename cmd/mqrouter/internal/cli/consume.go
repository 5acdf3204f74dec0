package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// longPoll is how long a receive waits for a message at most.
const longPoll = 5 * time.Second

// pollStep is how long a receive waits after one that brought messages, and how much
// longer each one after that. A receive asks one broker of the zone: the first ones look
// at each broker before the wait at one of them is long.
const pollStep = 100 * time.Millisecond

// receiver is the part of the consumer that the loop needs. Both calls block until they
// are answered or ctx ends.
type receiver interface {
	ReceiveWait(ctx context.Context, limit int, invisible, await time.Duration) ([]*rocketmqclient.Received, error)
	Ack(ctx context.Context, ms ...*rocketmqclient.Received) error
}

// received is what consume prints for each message.
type received struct {
	MessageID  string            `json:"message_id"`
	Topic      string            `json:"topic"`
	Broker     string            `json:"broker"`
	Queue      int32             `json:"queue"`
	Offset     int64             `json:"offset"`
	Attempt    int32             `json:"attempt"`
	Tag        string            `json:"tag,omitempty"`
	Keys       []string          `json:"keys,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
	Body       string            `json:"body"`
}

type consumeFlags struct {
	at        endpointFlags
	topic     string
	group     string
	tags      string
	sql       string
	lite      []string
	count     int
	wait      time.Duration
	invisible time.Duration
	noAck     bool
}

func newConsume(e *env) *cobra.Command {
	var p consumeFlags
	c := &cobra.Command{
		Use:   "consume [flags]",
		Short: "Receive messages with the RocketMQ 5 protocol and print them",
		Long: `Receive messages of a topic for a consumer group, print each and acknowledge
it. With --count it ends after so many messages and fails when they do not come
within --wait, in which a broker that is down may come back or another of its
group become master; without, it goes on until interrupted, and fails when no
broker has answered for --wait.

A message that was printed but could not be acknowledged, as when its broker dies
in between, does not count and comes again: each is printed at least once.`,
		Example: `  mqrouter consume --zone rz04 --topic transfer --group transfer-credit --count 1
  mqrouter consume --zone rz04 --topic transfer --group transfer-credit --filter-sql "TAGS = 'vip' AND amount >= 100"`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.run(c.Context(), e) },
	}
	p.at.declare(c)
	e.fleetFlags(c)
	c.Flags().StringVar(&p.topic, "topic", "", "topic (required)")
	c.Flags().StringVar(&p.group, "group", "", "consumer group (required)")
	c.Flags().StringVar(&p.tags, "tags", "*", "tags to receive, separated by ||")
	c.Flags().StringVar(&p.sql, "filter-sql", "", "receive messages for which this SQL92 expression over user properties and TAGS is true")
	c.MarkFlagsMutuallyExclusive("tags", "filter-sql")
	c.Flags().StringArrayVar(&p.lite, "lite-topic", nil, "lite topic to receive, of a topic of kind lite; may be repeated")
	c.Flags().IntVar(&p.count, "count", 0, "end after this many messages; 0: go on until interrupted")
	c.Flags().DurationVar(&p.wait, "wait", 30*time.Second, "with --count: how long the messages may take; without: how long no broker may answer")
	c.Flags().DurationVar(&p.invisible, "invisible", 30*time.Second, "how long a received message is hidden from others of the group, 10s to 12h")
	c.Flags().BoolVar(&p.noAck, "no-ack", false, "do not acknowledge: the messages come back")
	return c
}

func (p *consumeFlags) run(ctx context.Context, e *env) error {
	if p.topic == "" || p.group == "" {
		return usageError{fmt.Errorf("--topic and --group are needed")}
	}
	if p.count < 0 {
		return usageError{fmt.Errorf("--count %d: write 1 or more, or 0 to go on until interrupted", p.count)}
	}
	addrs, err := p.at.addresses(ctx, e)
	if err != nil {
		return err
	}
	secure, err := e.fleet.tls()
	if err != nil {
		return err
	}
	if p.count > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.wait)
		defer cancel()
	}
	consumer, err := p.connect(ctx, e, addrs, secure)
	if err != nil {
		return err
	}
	defer consumer.Close()
	return p.loop(ctx, e, consumer)
}

// ackTries is how many brokers are asked to acknowledge a message: who delivered it, and
// when that one does not answer, others of its group.
const ackTries = 3

// connectAgain is the pause between attempts to reach a broker that is down.
const connectAgain = 500 * time.Millisecond

// connect opens the consumer. With --count, brokers that do not answer are
// tried until --wait is over: they may be starting.
func (p *consumeFlags) connect(ctx context.Context, e *env, addrs []string, secure *tls.Config) (*rocketmqclient.SimpleConsumer, error) {
	for told := false; ; told = true {
		consumer, _, err := firstOf(ctx, e.fleet.timeout, addrs, func(ctx context.Context, addr string) (*rocketmqclient.SimpleConsumer, error) {
			return rocketmqclient.NewSimpleConsumer(ctx, p.at.signs(rocketmqclient.Config{Endpoint: addr, TLS: secure}), p.group, longPoll,
				rocketmqclient.Subscription{Topic: p.topic, Tags: p.tags, SQL: p.sql, Lite: p.lite})
		})
		if err == nil || p.count == 0 || ctx.Err() != nil || final(err) {
			return consumer, err
		}
		if !told {
			fmt.Fprintf(e.errOut, "no answer from %s yet, trying for %v: %v\n", strings.Join(addrs, ", "), p.wait, err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(connectAgain):
		}
	}
}

func (p *consumeFlags) loop(ctx context.Context, e *env, consumer receiver) error {
	answered, empty := time.Now(), 0
	for got := 0; p.count == 0 || got < p.count; {
		limit := 16
		if p.count > 0 {
			limit = min(limit, p.count-got)
		}
		messages, err := consumer.ReceiveWait(ctx, limit, p.invisible, p.poll(ctx, empty))
		if ctx.Err() != nil {
			switch {
			case p.count == 0:
				return nil
			case errors.Is(ctx.Err(), context.DeadlineExceeded):
				return fmt.Errorf("received %d of %d messages within %s", got, p.count, zone.FormatDuration(p.wait))
			}
			return fmt.Errorf("interrupted: received %d of %d messages", got, p.count)
		}
		if errors.Is(err, rocketmqclient.ErrNoQueue) {
			return fmt.Errorf("no consumer can receive %s here: the topic or the consumer group's zones do not have this zone, or the group is read by mqrouter cachesync; mqrouter topology show says which", p.topic)
		}
		if err == nil {
			answered = time.Now()
		} else if !final(err) && (p.count > 0 || time.Since(answered) < p.wait) { // the next receive asks another broker of the route
			select {
			case <-ctx.Done():
			case <-time.After(connectAgain):
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("receive from %s: %w", p.topic, err)
		}
		if empty++; len(messages) > 0 {
			empty = 0
		}
		for _, m := range messages {
			done, err := p.one(ctx, e, consumer, m)
			if err != nil {
				return err
			}
			if done {
				got++
			}
		}
	}
	return nil
}

// poll is how long one receive waits, after so many in a row that brought nothing: servers
// refuse to wait when the end of the call is nearer than that.
func (p *consumeFlags) poll(ctx context.Context, empty int) time.Duration {
	await := longPoll
	if empty < int(longPoll/pollStep) {
		await = time.Duration(empty+1) * pollStep
	}
	if end, ok := ctx.Deadline(); ok {
		return max(0, min(await, time.Until(end)/2))
	}
	return await
}

// one prints a message and acknowledges it. It reports false when the message comes again.
func (p *consumeFlags) one(ctx context.Context, e *env, consumer receiver, m *rocketmqclient.Received) (done bool, err error) {
	r := received{MessageID: m.MessageID, Topic: m.Topic, Broker: m.Broker, Queue: m.QueueID, Offset: m.Offset,
		Attempt: m.Attempt, Tag: m.Tag, Keys: m.Keys, Properties: m.Properties, Body: string(m.Body)}
	if err := e.line(r, fmt.Sprintf("%s  %s[%d]@%d on %s  %s", r.MessageID, r.Topic, r.Queue, r.Offset, r.Broker, r.Body)); err != nil {
		return false, err
	}
	if p.noAck {
		return true, nil
	}
	for range ackTries {
		if err = consumer.Ack(ctx, m); err == nil {
			return true, nil
		}
		if final(err) {
			break
		}
	}
	var refused *rocketmqclient.StatusError
	if errors.As(err, &refused) && final(err) && refused.Code != pb.Code_INVALID_RECEIPT_HANDLE { // which a new master says
		return false, fmt.Errorf("acknowledge %s: %w", m.MessageID, err)
	}
	fmt.Fprintf(e.errOut, "%s is not acknowledged and comes again: %v\n", m.MessageID, err)
	return false, nil
}
