package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// cacheWatch reads the same keys of the Redis of every city all the time: a
// version may never be followed by an older one (I6). Values are "v" and the
// version.
type cacheWatch struct {
	t      *testing.T
	client *redis.Client
	cities []string
	keys   []string
	wg     sync.WaitGroup

	mu    sync.Mutex
	last  map[string]uint64 // guarded by mu: city:key -> newest version seen
	back  []string          // guarded by mu
	reads int               // guarded by mu
}

func watchCaches(t *testing.T, addr string, cities, keys []string) *cacheWatch {
	t.Helper()
	w := &cacheWatch{t: t, cities: cities, keys: keys, last: map[string]uint64{},
		client: redis.NewClient(&redis.Options{Addr: addr})}
	ctx, cancel := context.WithCancel(t.Context())
	w.wg.Go(func() {
		for ctx.Err() == nil {
			w.look(ctx)
			hold(20 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		w.wg.Wait()
		w.client.Close()
	})
	return w
}

func (w *cacheWatch) look(ctx context.Context) {
	var names []string
	for _, city := range w.cities {
		for _, key := range w.keys {
			names = append(names, city+":"+key)
		}
	}
	values, err := w.client.MGet(ctx, names...).Result()
	if err != nil {
		if ctx.Err() == nil {
			w.t.Errorf("read the cache: %v", err)
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	for i, v := range values {
		text, ok := v.(string)
		if !ok {
			continue // deleted, or not there yet
		}
		version, err := strconv.ParseUint(strings.TrimPrefix(text, "v"), 10, 64)
		if err != nil {
			w.back = append(w.back, fmt.Sprintf("%s = %q", names[i], text))
			continue
		}
		if version < w.last[names[i]] {
			w.back = append(w.back, fmt.Sprintf("%s went from version %d to %d", names[i], w.last[names[i]], version))
		}
		w.last[names[i]] = version
	}
}

// has is nil when every city but those named has shown at least these versions.
func (w *cacheWatch) has(newest map[string]uint64, but ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, city := range w.cities {
		for key, v := range newest {
			if got := w.last[city+":"+key]; got < v && !slices.Contains(but, city) {
				return fmt.Errorf("%s has version %d of %s, %d is acknowledged", city, got, key, v)
			}
		}
	}
	return nil
}

// verdict is every step back that was seen.
func (w *cacheWatch) verdict() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.back) > 0 {
		return fmt.Errorf("I6: %s", strings.Join(w.back[:min(len(w.back), 10)], "; "))
	}
	if w.reads == 0 {
		return fmt.Errorf("the caches were never read")
	}
	return nil
}
