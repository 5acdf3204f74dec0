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
delivered, whatever fails; it fails when the message has fallen due. What is not
answered, as when the group's master dies, is asked again for at most --timeout:
a message that was taken back already is taken back once more.`,
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
	producer := at.producer(addrs, rocketmqclient.Config{TLS: secure}, e.fleet.timeout, e.errOut, topic)
	defer producer.close()
	var id string
	if _, err := producer.do(ctx, func(ctx context.Context, producer *rocketmqclient.Producer) (err error) {
		id, err = producer.Recall(ctx, topic, handle)
		return err
	}); err != nil {
		return fmt.Errorf("recall of %s: %w", topic, err)
	}
	return e.line(recalled{id}, id+"  recalled")
}
