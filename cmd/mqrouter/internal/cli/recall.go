package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// recalled is what recall prints.
type recalled struct {
	MessageID string `json:"message_id"`
}

func newRecall(e *env) *cobra.Command {
	var at endpointFlags
	var topic string
	c := &cobra.Command{
		Use:   "recall [flags] HANDLE",
		Short: "Take a delayed message back before it is due",
		Long: `Take a delayed message back with the handle that its publish returned. Any
broker of the zone may be asked. When the command succeeds the message is not
delivered, whatever fails; it fails when the message has fallen due.`,
		Example: `  mqrouter recall --zone rz01 --topic reminders AQZyejAxLWE...`,
		Args:    exactArgs(1, "the recall handle"),
		RunE: func(c *cobra.Command, args []string) error {
			if topic == "" {
				return usageError{fmt.Errorf("--topic is missing")}
			}
			return runRecall(c.Context(), e, &at, topic, args[0])
		},
	}
	at.declare(c)
	e.fleetFlags(c)
	c.Flags().StringVar(&topic, "topic", "", "topic (required)")
	return c
}

func runRecall(ctx context.Context, e *env, at *endpointFlags, topic, handle string) error {
	addrs, err := at.addresses(ctx, e)
	if err != nil {
		return err
	}
	secure, err := e.fleet.tls()
	if err != nil {
		return err
	}
	producer, _, err := firstOf(ctx, e.fleet.timeout, addrs, func(ctx context.Context, addr string) (*rocketmqclient.Producer, error) {
		return rocketmqclient.NewProducer(ctx, at.signs(rocketmqclient.Config{Endpoint: addr, TLS: secure}), topic)
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	id, err := producer.Recall(ctx, topic, handle)
	if err != nil {
		return fmt.Errorf("recall of %s: %w", topic, err)
	}
	return e.line(recalled{id}, id+"  recalled")
}
