package broker

import (
	"context"
	"errors"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/record"
)

// Change is what compaction has to know of a record that changes something under
// a key. Of two changes of one key the one with the greater rank decides what
// holds in the end, in whatever order they arrive; with equal ranks the first
// that arrives does.
type Change struct {
	Key   string
	Flush bool   // it is of everything that begins with Key, and another key than Key alone
	Rank  string // compared as text
}

// ChangeOf returns the change that a record is; false when it is none, which is
// never left out then. It must not keep the record.
type ChangeOf func(record.View) (Change, bool)

// maxKeys bounds the keys that one look through a backlog keeps in mind: some
// 100 MB. Changes of further keys stay.
const maxKeys = 1 << 20

// compactor finds the changes that others make needless. It sees a backlog from
// its newest record to its oldest, so that what it keeps in mind is the newest.
type compactor struct {
	best     map[[2]uint64]keptChange // by hash of the key
	needless numberSet
	bytes    int64 // of what is needless
}

type keptChange struct {
	rank   string
	number uint64
	size   uint32
}

// see looks at a record that is older than those before.
func (c *compactor) see(n uint64, size uint32, x Change) {
	key := hashKey(x)
	best, known := c.best[key]
	this := keptChange{rank: x.Rank, number: n, size: size}
	switch {
	case !known && len(c.best) >= maxKeys:
	case !known:
		c.best[key] = this
	case best.rank > x.Rank:
		c.drop(this)
	default: // the older of two equal ones is the one that caches keep
		c.drop(best)
		c.best[key] = this
	}
}

func (c *compactor) drop(k keptChange) {
	c.needless.add(k.number)
	c.bytes += int64(k.size)
}

// hashKey returns 128 bits of a key: no two keys of a backlog share them.
func hashKey(x Change) [2]uint64 {
	seed := uint64(1)
	if x.Flush {
		seed = 2
	}
	h := xxhash.NewWithSeed(seed)
	_, _ = h.WriteString(x.Key) // never fails
	first := h.Sum64()
	h.ResetWithSeed(seed + 2)
	_, _ = h.WriteString(x.Key) // never fails
	return [2]uint64{first, h.Sum64()}
}

// compact leaves out of a backlog what its newer records make needless.
func (b *Broker) compact(ctx context.Context, x *excess) error {
	began := b.now()
	c := compactor{best: map[[2]uint64]keptChange{}}
	if err := b.look(ctx, x, &c); err != nil {
		return err
	}
	var numbers uint64
	g := &giveUp{leg: x.leg, kind: giveCompacted}
	flush := func() error {
		if len(g.ranges) == 0 {
			return nil
		}
		err := b.decide(ctx, g)
		g.ranges = g.ranges[:0]
		return err
	}
	for _, r := range c.needless.ranges() {
		numbers += r.len()
		for r.first <= r.through {
			part := numberRange{r.first, min(r.through, r.first+maxGiven-1)}
			if n := len(g.ranges); n > 0 && part.through-g.ranges[0].first >= maxGiven {
				if err := flush(); err != nil {
					return err
				}
			}
			g.ranges = append(g.ranges, part)
			r.first = part.through + 1
		}
	}
	if err := flush(); err != nil {
		return err
	}
	b.logger.Info("backlog compacted", "group", string(x.leg.Group), "city", string(x.leg.City), "flow", x.leg.Flow.Target, "topic", string(x.topic),
		"records", numbers, "bytes", c.bytes, "held", x.held, "budget", x.limit, "took", time.Duration(b.now()-began))
	return nil
}

// look shows the compactor what the leg holds back of the topic, the newest
// first.
func (b *Broker) look(ctx context.Context, x *excess, c *compactor) error {
	lowest, head := b.lowest(x), x.index.Next()
	buf := make([]queue.Entry, chunkNumbers)
	pending := make([]bool, chunkNumbers)
	for end := head; end >= lowest && end > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		first := max(lowest, end-min(end, chunkNumbers)+1, x.index.First()+1)
		if first > end {
			return nil
		}
		n, err := x.index.Read(first-1, buf[:end-first+1])
		if err != nil {
			return err
		}
		b.mu.RLock()
		l := b.state.legOf(x.leg.Flow, legKey{x.leg.City, x.leg.Group})
		for i := range n {
			pending[i] = l != nil && buf[i].Label == x.label && l.pending(first+uint64(i))
		}
		b.mu.RUnlock()
		for i := n - 1; i >= 0; i-- {
			if !pending[i] {
				continue
			}
			v, err := b.readRecord(buf[i])
			var corrupt *commitlog.CorruptError
			if errors.As(err, &corrupt) {
				continue // stays; whoever sends it meets the fault and tells it
			}
			if err != nil {
				return err
			}
			if change, ok := b.changeOf(v); ok {
				c.see(first+uint64(i), buf[i].Size, change)
			}
		}
		end = first - 1
	}
	return nil
}
