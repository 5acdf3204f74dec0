package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/zone"
)

func newCache(e *env) *cobra.Command {
	c := &cobra.Command{Use: "cache", Short: "Read the caches that broadcast keeps fresh"}
	var city string
	get := &cobra.Command{
		Use:     "get --city CITY KEY",
		Short:   "Show a key in a city's cache",
		Example: `  mqrouter cache get --city shenzhen member:1001`,
		Args:    exactArgs(1, "the key"),
		RunE: func(c *cobra.Command, args []string) error {
			if city == "" {
				return usageError{fmt.Errorf("--city is missing")}
			}
			f, err := e.openFleet(c.Context())
			if err != nil {
				return err
			}
			info := f.topology.FindCity(zone.City(city))
			if info == nil {
				return fmt.Errorf("city %q is not in the topology", city)
			}
			if len(info.Caches) == 0 {
				return fmt.Errorf("city %q has no cachesync node in the topology", city)
			}
			entry, err := f.client.CacheGet(c.Context(), info.Caches[0].Admin, args[0])
			if err != nil {
				return err
			}
			if err := e.show(entry, func(w io.Writer) {
				switch {
				case entry.Deleted:
					fmt.Fprintf(w, "%s is deleted as of version %d\n", entry.Key, entry.Version)
				case entry.Found:
					fmt.Fprintf(w, "%s = %s (version %d)\n", entry.Key, entry.Value, entry.Version)
				}
			}); err != nil {
				return err
			}
			if !entry.Found && !entry.Deleted {
				return fmt.Errorf("the cache of %s has no key %q", city, args[0])
			}
			return nil
		},
	}
	e.fleetFlags(get)
	get.Flags().StringVar(&city, "city", "", "city whose cache is read (required)")
	c.AddCommand(get)
	return c
}
