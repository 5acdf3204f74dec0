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
		b      benchFlags
		prefix string
		topics int
	)
	c := &cobra.Command{
		Use:   "topics",
		Short: "Publish one message to each of many topics",
		Long: `Publish to the topics PREFIX1, PREFIX2 and so on, which the topology has to
declare, one message each: for a look at what topics cost a broker. What nobody
answers is sent again for at most 30 seconds.`,
		Example: `  mqrouter bench topics --zone rz02 --prefix bench- --topics 10000`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if topics < 1 || b.size < 1 {
				return usageError{errors.New("topics and size must be above zero")}
			}
			begin := time.Now()
			for first := 1; first <= topics; first += topicsOfProducer {
				if err := b.publishToEach(c.Context(), e, prefix, first, min(first+topicsOfProducer-1, topics)); err != nil {
					return err
				}
			}
			r := topicsResult{Topics: topics, Took: time.Since(begin)}
			return e.show(r, func(w io.Writer) {
				fmt.Fprintf(w, "%s to as many topics in %v\n", count(r.Topics, "message", "messages"), r.Took.Round(time.Millisecond))
			})
		},
	}
	b.at.declare(c)
	e.fleetFlags(c)
	c.Flags().StringVar(&prefix, "prefix", "bench-", "what the names of the topics begin with")
	c.Flags().IntVar(&topics, "topics", 10_000, "number of topics")
	c.Flags().IntVar(&b.size, "size", 1024, "bytes of a body")
	return c
}

// publishToEach publishes to the topics of these numbers.
func (b *benchFlags) publishToEach(ctx context.Context, e *env, prefix string, first, last int) error {
	p, err := b.producer(ctx, e, rocketmqclient.Config{})
	if err != nil {
		return err
	}
	defer p.close()
	body := newBodies(load{Size: b.size}, uint64(first)).next(nil)
	for i := first; i <= last; i++ {
		m := &rocketmqclient.Message{Topic: fmt.Sprint(prefix, i), Body: body}
		_, err := p.do(ctx, func(ctx context.Context, p *rocketmqclient.Producer) error {
			_, err := p.Send(ctx, m)
			return err
		})
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	return nil
}
