package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// topicsResult is how long one message to each of many topics takes.
type topicsResult struct {
	Topics int           `json:"topics"`
	Took   time.Duration `json:"took"`
}

// topicsOfProducer is how many topics a producer is used for: it keeps a route of each.
const topicsOfProducer = 1000

func newBenchTopics(e *env) *cobra.Command {
	var (
		at            endpointFlags
		prefix        string
		topics, bytes int
	)
	c := &cobra.Command{
		Use:   "topics",
		Short: "Publish one message to each of many topics",
		Long: `Publish to the topics PREFIX1, PREFIX2 and so on, which the topology has to
declare, one message each: for a look at what topics cost a broker.`,
		Example: `  mqrouter bench topics --zone rz02 --prefix bench- --topics 10000`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if topics < 1 || bytes < 1 {
				return usageError{errors.New("topics and size must be above zero")}
			}
			endpoint, err := at.resolve(c.Context(), e)
			if err != nil {
				return err
			}
			begin := time.Now()
			for first := 1; first <= topics; first += topicsOfProducer {
				if err := publishToEach(c.Context(), at.signs(rocketmqclient.Config{Endpoint: endpoint}), prefix, first, min(first+topicsOfProducer-1, topics), bytes); err != nil {
					return err
				}
			}
			r := topicsResult{Topics: topics, Took: time.Since(begin)}
			return e.show(r, func(w io.Writer) {
				fmt.Fprintf(w, "%s to as many topics in %v\n", count(r.Topics, "message", "messages"), r.Took.Round(time.Millisecond))
			})
		},
	}
	at.declare(c)
	e.fleetFlags(c)
	c.Flags().StringVar(&prefix, "prefix", "bench-", "what the names of the topics begin with")
	c.Flags().IntVar(&topics, "topics", 10_000, "number of topics")
	c.Flags().IntVar(&bytes, "size", 1024, "bytes of a body")
	return c
}

func publishToEach(ctx context.Context, cfg rocketmqclient.Config, prefix string, first, last, bytes int) error {
	p, err := rocketmqclient.NewProducer(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", cfg.Endpoint, err)
	}
	defer p.Close()
	body := newBodies(load{Size: bytes}, uint64(first)).next(nil)
	for i := first; i <= last; i++ {
		if _, err := p.Send(ctx, &rocketmqclient.Message{Topic: fmt.Sprint(prefix, i), Body: body}); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	return nil
}
