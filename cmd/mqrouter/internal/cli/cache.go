package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/admin"
	"github.com/mqrouter/mqrouter/zone"
)

// cachePoll is how often `cache get --wait` asks again.
const cachePoll = 100 * time.Millisecond

type cacheFlags struct {
	city    string
	version uint64
	wait    time.Duration
}

func newCache(e *env) *cobra.Command {
	c := &cobra.Command{Use: "cache", Short: "Read the caches that broadcast keeps fresh"}
	var p cacheFlags
	get := &cobra.Command{
		Use:   "get --city CITY KEY",
		Short: "Show a key in a city's cache",
		Example: `  mqrouter cache get --city shenzhen member:1001
  mqrouter cache get --city shenzhen member:1001 --version 7 --wait 5s`,
		Args: exactArgs(1, "the key"),
		RunE: func(c *cobra.Command, args []string) error { return p.run(c.Context(), e, args[0]) },
	}
	e.fleetFlags(get)
	get.Flags().StringVar(&p.city, "city", "", "city whose cache is read (required)")
	get.Flags().Uint64Var(&p.version, "version", 0, "demand at least this version")
	get.Flags().DurationVar(&p.wait, "wait", 0, "how long to wait for the key, or for --version of it")
	c.AddCommand(get)
	return c
}

// errNoKey says that the cache does not have what was asked for.
var errNoKey = errors.New("not in the cache")

func (p *cacheFlags) run(ctx context.Context, e *env, key string) error {
	if p.city == "" {
		return usageError{fmt.Errorf("--city is missing")}
	}
	f, err := e.openFleet(ctx)
	if err != nil {
		return err
	}
	info := f.topology.FindCity(zone.City(p.city))
	switch {
	case info == nil:
		return fmt.Errorf("city %q is not in the topology; it has %s", p.city, strings.Join(cityNames(f.topology), ", "))
	case len(info.Caches) == 0 || info.Caches[0].Admin == "":
		return fmt.Errorf("city %q has no cache node with an admin address in the topology", p.city)
	}
	entry, err := p.get(ctx, f, info.Caches[0].Admin, key)
	if err != nil {
		return err
	}
	return e.show(entry, func(w io.Writer) {
		if entry.Deleted {
			fmt.Fprintf(w, "%s is deleted as of version %d\n", entry.Key, entry.Version)
			return
		}
		fmt.Fprintf(w, "%s = %s (version %d)\n", entry.Key, entry.Value, entry.Version)
	})
}

// get asks until the cache has the key in the version, or the wait is over.
func (p *cacheFlags) get(ctx context.Context, f *fleet, addr, key string) (admin.CacheEntry, error) {
	deadline := time.Now().Add(p.wait)
	tick := time.NewTicker(cachePoll)
	defer tick.Stop()
	for {
		entry, err := f.client.CacheGet(ctx, addr, key)
		if err != nil && !time.Now().Before(deadline) {
			return entry, fmt.Errorf("ask the cache of %s: %w", p.city, err)
		}
		if err == nil && (entry.Found || entry.Deleted) && entry.Version >= p.version {
			return entry, nil
		}
		if err == nil && !time.Now().Before(deadline) {
			if entry.Found || entry.Deleted {
				return entry, fmt.Errorf("%w: %s has version %d of %q, not %d", errNoKey, p.city, entry.Version, key, p.version)
			}
			return entry, fmt.Errorf("%w: %s has no key %q", errNoKey, p.city, key)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return entry, ctx.Err()
		}
	}
}
