//go:build faults

package cli

import (
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/config"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/faults"
	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/node"
	"github.com/mqrouter/mqrouter/internal/disk"
)

// faultySegment is the size of a log segment in bytes: a run of minutes has old ones.
const faultySegment = 1 << 20

// disturb puts a node's disk and clock at the orders of a test.
func disturb(cfg config.Node, o *node.Options) {
	if cfg.DataDir == "" {
		return
	}
	l := faults.New(cfg.DataDir)
	o.FS, o.Wall, o.Limits.SegmentBytes = l.FS(disk.OS{}), l.Wall, faultySegment
}
