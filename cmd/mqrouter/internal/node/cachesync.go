package node

import (
	"context"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
)

// CacheSync placeholder while the room is being built.
func CacheSync(ctx context.Context, cfg config.Node, o Options) error {
	if o.Ready != nil {
		o.Ready()
	}
	<-ctx.Done()
	return nil
}
