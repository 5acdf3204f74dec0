package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/broker/commitlog"
)

// How the log is checked in the background.
const (
	// DefaultScrubRate is what a check of the log reads, in bytes a second: some
	// hundredths of what a disk gives, and 700 GB in a day.
	DefaultScrubRate = 8 << 20
	scrubChunk       = 256 << 10 // bytes of one read
	scrubFirst       = 10 * time.Minute
)

// scrubLoop reads the sealed segments of the log again and again, slowly, and says which
// are damaged. It holds no lock and takes no part in anything else.
func (b *Broker) scrubLoop() {
	began, total := time.Now(), int64(0)
	b.loop(b.limits.ScrubFirst, nil, func() time.Duration {
		n, fresh, done, err := b.scrub.Step(b.ctx, scrubChunk)
		total += int64(n)
		b.metrics.scrubbed.Add(context.Background(), int64(n))
		if fresh != nil {
			b.logger.Error("commit log is damaged", "group", string(b.self), "segment", fresh.Segment, "position", uint64(fresh.Position),
				"err", fresh, "do", b.scrubAdvice())
		}
		if err != nil && b.ctx.Err() == nil && !errors.Is(err, commitlog.ErrClosed) {
			b.logger.Warn("commit log cannot be checked", "group", string(b.self), "err", err)
		}
		if !done {
			return max(time.Duration(float64(n)/float64(b.limits.ScrubRate)*float64(time.Second)), time.Millisecond)
		}
		wait := max(b.limits.ScrubEvery-time.Since(began), b.limits.ScrubFirst)
		b.logger.Info("commit log checked", "group", string(b.self), "bytes", total, "damaged", len(b.scrub.Found()))
		began, total = time.Now().Add(wait), 0
		return wait
	})
}

// scrubAdvice is what an operator does about a damaged segment.
func (b *Broker) scrubAdvice() string {
	switch {
	case b.member == nil:
		return "read what is left before it goes; the group has no other copy: restore the segment file from a backup, or let retention pass"
	case b.serves():
		return "they are fetched from another node of the group; if its log says that this fails and none can be brought back that has them, switch to another node (mqrouter brokergroup switch), then stop this one, empty its data folder and start it"
	}
	return "they are fetched from another node of the group; if its log says that this fails, stop this node, empty its data folder and start it: it becomes a copy of the master"
}

// Damaged returns what is known to be damaged of the sealed part of the log, for people;
// empty = nothing is.
func (b *Broker) Damaged() string {
	found := b.scrub.Found()
	if len(found) == 0 {
		return ""
	}
	what := "a segment of the commit log is damaged:"
	if len(found) > 1 {
		what = fmt.Sprintf("%d segments of the commit log are damaged, the first is", len(found))
	}
	return fmt.Sprintf("%s %s at position %d (%s): %s", what, found[0].Segment, found[0].Position, found[0].What, b.scrubAdvice())
}

// damagedGauge registers how many segments are known to be damaged.
func damagedGauge(m metric.Meter, b *Broker) (metric.Registration, error) {
	g, err := m.Int64ObservableGauge("mqrouter.log.damaged", metric.WithUnit("{segment}"),
		metric.WithDescription("sealed segments of the commit log that a check in the background found damaged, and that are still there"))
	if err != nil {
		return nil, err
	}
	return m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(g, int64(len(b.scrub.Found())))
		return nil
	}, g)
}
