//go:build !faults

package cli

import (
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/node"
)

// disturb leaves a node what it was given: only binaries for the fault suite break it.
func disturb(config.Node, *node.Options) {}
