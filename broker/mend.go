package broker

import (
	"context"

	"github.com/mqrouter/mqrouter/broker/commitlog"
)

// Wounds returns the sealed parts of the log of a member that a check in the background
// has found damaged, oldest first; a broker that is alone has nobody to mend them from.
func (b *Broker) Wounds() []commitlog.Wound {
	if b.member == nil {
		return nil
	}
	return b.scrub.Wounds()
}

// Mend makes a damaged part of the log anew from that of another member, while everything
// else goes on; see commitlog.Log.Mend. It blocks until the part is durable.
//
// Errors: those of commitlog.Log.Mend; the damaged part is as it was then.
func (b *Broker) Mend(ctx context.Context, w commitlog.Wound, from commitlog.Source) error {
	if err := b.shared.Mend(ctx, w.From, from); err != nil {
		return err
	}
	b.scrub.Mended(w)
	b.metrics.mended.Add(ctx, 1)
	return nil
}
