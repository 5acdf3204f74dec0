package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// published is what publish prints for each message.
type published struct {
	MessageID string `json:"message_id"`
	Offset    int64  `json:"offset"`
	Reached   string `json:"reached"`                 // the server's words
	Recall    string `json:"recall_handle,omitempty"` // of a delayed message: what recall takes
	Sent      int    `json:"sent,omitempty"`          // how often, when more than once
	Error     string `json:"error,omitempty"`
}

type publishFlags struct {
	at         endpointFlags
	topic, tag string
	keys       []string
	properties []string
	group      string
	lite       string
	priority   int32
	count      int
	delay      time.Duration
}

func newPublish(e *env) *cobra.Command {
	var p publishFlags
	c := &cobra.Command{
		Use:   "publish [flags] BODY",
		Short: "Publish a message with the RocketMQ 5 protocol",
		Long: `Publish a message to a broker with the RocketMQ 5 protocol and print what
the acknowledgement promises: stored at home, or durable at the origin and on
its way to another zone or city.

A message that is not answered for, as when its broker dies or another of the
group becomes master, is sent again with the same id for at most --timeout, by
way of the brokers that live. A topic that says idempotent stores it once. On any
other one it may be stored once for each time that it was sent, since the answer
may be what was lost; the output says when that was more than once. When the
time is over without an answer, nobody knows whether the message was stored.`,
		Example: `  mqrouter publish --zone rz01 --topic transfer --property userId=1065 "pay 10"
  mqrouter publish --endpoint 127.0.0.1:8081 --topic orders --key o-1 "first order"
  mqrouter publish --zone rz01 --topic reminders --property memberId=1065 --delay 30m "pay now"`,
		Args: exactArgs(1, "the body of the message"),
		RunE: func(c *cobra.Command, args []string) error { return p.run(c.Context(), e, args[0]) },
	}
	p.at.declare(c)
	e.fleetFlags(c)
	c.Flags().StringVar(&p.topic, "topic", "", "topic (required)")
	c.Flags().StringVar(&p.tag, "tag", "", "tag")
	c.Flags().StringArrayVar(&p.keys, "key", nil, "key; may be repeated")
	c.Flags().StringArrayVar(&p.properties, "property", nil, "user property NAME=VALUE; may be repeated")
	c.Flags().StringVar(&p.group, "message-group", "", "message group, for topics of kind fifo")
	c.Flags().StringVar(&p.lite, "lite-topic", "", "lite topic, for topics of kind lite")
	c.Flags().Int32Var(&p.priority, "priority", 0, "priority, for topics of kind priority: the higher, the sooner")
	c.Flags().DurationVar(&p.delay, "delay", 0, "deliver after this time (topics of kind delay); the recall handle is printed")
	c.Flags().IntVar(&p.count, "count", 1, "publish the message this many times")
	return c
}

func (p *publishFlags) run(ctx context.Context, e *env, body string) error {
	props, err := parseProperties(p.properties)
	if err != nil {
		return usageError{err}
	}
	if p.topic == "" {
		return usageError{fmt.Errorf("--topic is missing")}
	}
	if p.count < 1 {
		return usageError{fmt.Errorf("--count %d: write 1 or more", p.count)}
	}
	addrs, err := p.at.addresses(ctx, e)
	if err != nil {
		return err
	}
	secure, err := e.fleet.tls()
	if err != nil {
		return err
	}
	ids, err := rocketmqclient.NewIDs(rand.Reader)
	if err != nil {
		return err
	}
	producer := p.at.producer(addrs, rocketmqclient.Config{TLS: secure}, e.fleet.timeout, e.errOut, p.topic)
	defer producer.close()
	for range p.count {
		m := &rocketmqclient.Message{Topic: p.topic, ID: ids.Next(), Body: []byte(body), Tag: p.tag, Keys: p.keys, Properties: props, MessageGroup: p.group, LiteTopic: p.lite, Priority: p.priority, Born: time.Now()}
		if p.delay > 0 {
			m.DeliverAt = m.Born.Add(p.delay)
		}
		var r rocketmqclient.SendResult
		sent, err := producer.do(ctx, func(ctx context.Context, producer *rocketmqclient.Producer) (err error) {
			r, err = producer.Send(ctx, m)
			return err
		})
		if err != nil {
			return fmt.Errorf("publish %s to %s: %w", m.ID, p.topic, err)
		}
		out := published{MessageID: r.MessageID, Offset: r.Offset, Reached: r.Text, Recall: r.Recall}
		text := fmt.Sprintf("%s  %s  %s", out.MessageID, out.Reached, out.Recall)
		if sent > 1 {
			out.Sent = sent
			text = fmt.Sprintf("%s  sent %d times", strings.TrimSpace(text), sent)
		}
		if err := e.line(out, strings.TrimSpace(text)); err != nil {
			return err
		}
	}
	return nil
}

func parseProperties(list []string) (map[string]string, error) {
	props := make(map[string]string, len(list))
	for _, item := range list {
		name, value, ok := strings.Cut(item, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--property %q: write NAME=VALUE", item)
		}
		props[name] = value
	}
	return props, nil
}
