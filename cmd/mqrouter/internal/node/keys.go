package node

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/mqrouter/mqrouter/internal/gossip"
)

// keysEvery is how often the file of gossip keys is read, as often as the
// certificates'.
const keysEvery = 5 * time.Second

// followKeys takes the gossip keys into use when their file changes. A file that
// cannot be used leaves the last good keys in force and is told.
func (b *base) followKeys(ctx context.Context) error {
	tick := time.NewTicker(keysEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch changed, err := b.takeKeys(); {
		case err != nil:
			text := err.Error()
			if was := b.keyFault.Swap(&text); was == nil || *was != text {
				b.log.Error("gossip keys are not in force here", "err", err)
			}
		default:
			b.keyFault.Store(nil)
			if changed {
				b.log.Info("gossip keys taken", "keys", 1+len(b.oldKeys))
			}
		}
	}
}

// takeKeys reads the file and hands new keys to every pool.
func (b *base) takeKeys() (changed bool, err error) {
	key, old, err := gossip.LoadKeys(b.keyFile)
	if err != nil {
		return false, err
	}
	if bytes.Equal(key, b.key) && slices.EqualFunc(old, b.oldKeys, bytes.Equal) {
		return false, nil
	}
	for _, p := range b.watched.pools {
		if err := p.pool.SetKeys(key, old); err != nil {
			return false, err
		}
	}
	b.key, b.oldKeys = key, old
	return true, nil
}
