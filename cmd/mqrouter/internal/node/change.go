package node

import (
	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/replication/record"
)

var _ broker.ChangeOf = changeOf

// changeOf tells a broker what a record changes in caches, by the rules that the
// caches follow. What a cache would reject is no change.
func changeOf(v record.View) (broker.Change, bool) {
	c, err := broadcast.ParseRecord(v)
	if err != nil || v.Verify() != nil {
		return broker.Change{}, false
	}
	if c.Op == broadcast.OpFlushPrefix {
		return broker.Change{Key: c.Key, Flush: true, Rank: broadcast.Padded(c.Version)}, true
	}
	return broker.Change{Key: c.Key, Rank: string(c.Rank())}, true
}
