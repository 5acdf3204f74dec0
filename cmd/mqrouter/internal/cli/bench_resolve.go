package cli

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/zone"
)

// resolveResult is what resolving one message costs.
type resolveResult struct {
	Zones  int           `json:"zones"`
	Shards uint32        `json:"shards"`
	Each   time.Duration `json:"each"`
	Allocs float64       `json:"allocations_each"`
}

func newBenchResolve(e *env) *cobra.Command {
	var (
		topic string
		count int
	)
	c := &cobra.Command{
		Use:   "resolve [FILE]",
		Short: "Measure resolving messages of a topic routed by shard",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := e.anyTopology(c, args)
			if err != nil {
				return err
			}
			info := t.FindTopic(zone.Topic(topic))
			if info == nil || info.Route.Kind != zone.RouteShard || count < 1 {
				return usageError{fmt.Errorf("--topic %q must be a topic routed by shard, --count above zero", topic)}
			}
			r, err := measureResolve(t, info, count)
			if err != nil {
				return err
			}
			return e.show(r, func(w io.Writer) {
				fmt.Fprintf(w, "%d zones, %d shards: %v a message, %.2f allocations\n", r.Zones, r.Shards, r.Each, r.Allocs)
			})
		},
	}
	e.fleetFlags(c)
	c.Flags().StringVar(&topic, "topic", "transfer", "topic")
	c.Flags().IntVar(&count, "count", 5_000_000, "messages")
	return c
}

func measureResolve(t *zone.Topology, topic *zone.TopicInfo, count int) (resolveResult, error) {
	users := make([]string, 4096)
	for i := range users {
		users[i] = fmt.Sprint(100_000 + i*7919)
	}
	q := zone.Query{Topic: topic, From: t.Zones()[0], MessageID: "01"}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for i := range count {
		q.User = users[i%len(users)]
		if _, err := t.Resolve(q); err != nil {
			return resolveResult{}, err
		}
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	return resolveResult{Zones: len(t.Zones()), Shards: t.ShardCount, Each: took / time.Duration(count),
		Allocs: float64(after.Mallocs-before.Mallocs) / float64(count)}, nil
}
