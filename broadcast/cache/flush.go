package cache

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mqrouter/mqrouter/broadcast"
)

// sweepChunk is how many keys one step of a sweep looks at.
const sweepChunk = 512

// applyFlush raises the generation first, so that nothing older comes back
// behind the sweep, and moves the place when the sweep is through.
func (r *Redis) applyFlush(ctx context.Context, b *broadcast.Batch) (broadcast.Result, error) {
	c := &b.Changes[0]
	inc, off := placeArgs(b.From)
	answer, err := scriptGeneration.Run(ctx, r.client, []string{r.stateKey(b.Topic), r.flushKey()},
		inc, off, c.Key, broadcast.Padded(c.Version), b.Now.UnixMilli(), b.Now.Add(-b.Horizon).UnixMilli(), maxNamespaces).Slice()
	if err != nil {
		return broadcast.Result{}, fmt.Errorf("cache: %w", err)
	}
	res, err := r.result(b, answer)
	if err != nil {
		return broadcast.Result{}, err
	}
	// A repeat cannot know whether the sweep of the first time got through.
	if err := r.sweep(ctx, c.Key, broadcast.Padded(c.Version), b.Horizon); err != nil {
		return broadcast.Result{}, err
	}
	if _, err := r.applyChanges(ctx, b, nil); err != nil {
		return broadcast.Result{}, err
	}
	return res, nil
}

// Flush implements broadcast.Applier. It touches no key that has no version
// beside it: the Redis may hold others' keys.
func (r *Redis) Flush(ctx context.Context, horizon time.Duration) error {
	return r.sweep(ctx, "", "", horizon)
}

// sweep drops what has at most the version under a prefix; with an empty version
// the values of all, whose ranks stay for the horizon.
func (r *Redis) sweep(ctx context.Context, prefix, version string, horizon time.Duration) error {
	node := redis.Cmdable(r.client)
	if c, ok := r.client.(*redis.ClusterClient); ok {
		master, err := c.MasterForKey(ctx, r.flushKey())
		if err != nil {
			return fmt.Errorf("cache: %w", err)
		}
		node = master
	}
	metas := r.metaKey("")
	var cursor uint64
	for {
		found, next, err := node.Scan(ctx, cursor, escapeGlob(metas+prefix)+"*", sweepChunk).Result()
		if err != nil {
			return fmt.Errorf("cache: %w", err)
		}
		keys := make([]string, 0, 2*len(found))
		for _, meta := range found {
			keys = append(keys, meta, r.valueKey(strings.TrimPrefix(meta, metas)))
		}
		if len(keys) > 0 {
			if err := scriptSweep.Run(ctx, r.client, keys, version, max(horizon.Milliseconds(), 1)).Err(); err != nil {
				return fmt.Errorf("cache: %w", err)
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// escapeGlob makes a pattern that matches the text and nothing else.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
