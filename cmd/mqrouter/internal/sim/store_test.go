package sim

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/cache"
	"github.com/mqrouter/mqrouter/zone"
)

// store is a cache outside of its reader, as a Redis is: it survives the reader,
// can be away, be emptied, and fall back to an older state of itself, as after a
// fail-over to a replica that lagged.
type store struct {
	mu      sync.Mutex
	mem     *cache.Memory
	done    []step // what made mem, in order. Guarded by mu
	away    bool   // guarded by mu
	flushed time.Time
	moved   time.Time // when it fell back last; guarded by mu
}

// step is an Apply, or a Flush when batch is nil.
type step struct {
	batch   *broadcast.Batch
	horizon time.Duration
}

var errAway = errors.New("sim: the cache is away")

func newStore() *store { return &store{mem: cache.NewMemory(cache.MemoryOptions{})} }

// Load implements broadcast.Applier.
func (s *store) Load(ctx context.Context, t zone.Topic) (broadcast.Progress, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return broadcast.Progress{}, errAway
	}
	return s.mem.Load(ctx, t)
}

// Apply implements broadcast.Applier.
func (s *store) Apply(ctx context.Context, b *broadcast.Batch) (broadcast.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return broadcast.Result{}, errAway
	}
	r, err := s.mem.Apply(ctx, b)
	if err == nil {
		kept := *b
		kept.Changes, kept.Marks, kept.Drop = slices.Clone(b.Changes), slices.Clone(b.Marks), slices.Clone(b.Drop)
		for i := range kept.Changes {
			kept.Changes[i].Value = slices.Clone(kept.Changes[i].Value)
		}
		s.done = append(s.done, step{batch: &kept})
	}
	return r, err
}

// Flush implements broadcast.Applier.
func (s *store) Flush(ctx context.Context, horizon time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errAway
	}
	s.flushed = time.Now()
	s.done = append(s.done, step{horizon: horizon})
	return s.mem.Flush(ctx, horizon)
}

// Get implements broadcast.Applier. Readers of the cache use it, too.
func (s *store) Get(ctx context.Context, key string) (broadcast.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return broadcast.Entry{}, errAway
	}
	return s.mem.Get(ctx, key)
}

// fallBack loses the newest steps: all, when keep is 0.
func (s *store) fallBack(keep int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = s.done[:min(keep, len(s.done))]
	s.mem = cache.NewMemory(cache.MemoryOptions{})
	s.moved = time.Now()
	for _, d := range s.done {
		if d.batch == nil {
			if err := s.mem.Flush(context.Background(), d.horizon); err != nil {
				return err
			}
			continue
		}
		if _, err := s.mem.Apply(context.Background(), d.batch); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// steps returns how many steps made the cache.
func (s *store) steps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.done)
}

// told returns when all values were dropped last, or the cache fell back.
func (s *store) told() (flushed, moved time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flushed, s.moved
}

var _ broadcast.Applier = (*store)(nil)
