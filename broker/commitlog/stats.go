package commitlog

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Stats is a view of the log for status pages.
type Stats struct {
	Begin, Committed record.Position
	End, Synced      record.Position // of what is written and durable here, committed or not
	Epoch            uint64
	Segments         int
	Damaged          int   // older segments that Open found damaged
	WaitingBatches   int   // given to Append, not yet taken by the writer
	WaitingBytes     int64 //
	TailBytes        int64 // kept in memory for readers
	Writable         error // as of Log.Writable
}

// Stats returns the present state. It does not block on the disk.
func (l *Log) Stats() Stats {
	s := Stats{
		Begin:     l.Begin(),
		Committed: l.Committed(),
		End:       l.End(),
		Synced:    l.Synced(),
		Epoch:     l.Epoch(),
		TailBytes: l.tail.size(),
		Writable:  l.Writable(),
	}
	s.WaitingBatches, s.WaitingBytes = l.queue.waiting()
	for _, seg := range *l.segments.Load() {
		s.Segments++
		if seg.damage != nil {
			s.Damaged++
		}
	}
	return s
}

// metrics is what the log measures.
type metrics struct {
	syncs        metric.Float64Histogram
	entries      metric.Int64Counter
	bytes        metric.Int64Counter
	refused      metric.Int64Counter
	registration metric.Registration
}

func newMetrics(l *Log) (*metrics, error) {
	meter, m := l.options.Meter, new(metrics)
	var errs [6]error
	m.syncs, errs[0] = meter.Float64Histogram("mqrouter.log.sync.duration", metric.WithUnit("s"),
		metric.WithDescription("time of one fdatasync of the commit log"),
		metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5))
	m.entries, errs[1] = meter.Int64Counter("mqrouter.log.entries",
		metric.WithDescription("entries committed"))
	m.bytes, errs[2] = meter.Int64Counter("mqrouter.log.bytes", metric.WithUnit("By"),
		metric.WithDescription("bytes of committed entries, frames included"))
	m.refused, errs[3] = meter.Int64Counter("mqrouter.log.refused",
		metric.WithDescription("batches refused or failed, by reason"))
	if errs[3] == nil { // the first refusal is an increase, not a new series
		m.refused.Add(context.Background(), 0, refusedFull)
		m.refused.Add(context.Background(), 0, refusedStopped)
	}
	waiting, err := meter.Int64ObservableGauge("mqrouter.log.waiting", metric.WithUnit("By"),
		metric.WithDescription("bytes that wait for the writer of the commit log"))
	errs[4] = err
	if waiting != nil {
		m.registration, errs[5] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
			_, bytes := l.queue.waiting()
			o.ObserveInt64(waiting, bytes)
			return nil
		}, waiting)
	}
	return m, errors.Join(errs[:]...)
}

// The attribute sets are made once: the counters are on a hot path.
var (
	refusedFull    = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "full")))
	refusedStopped = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "stopped")))
	refusedOther   = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", "other")))
)

func (m *metrics) refuse(err error) {
	reason := refusedOther
	switch {
	case errors.Is(err, ErrFull):
		reason = refusedFull
	case errors.Is(err, ErrStopped):
		reason = refusedStopped
	}
	m.refused.Add(context.Background(), 1, reason)
}

func (m *metrics) synced(d time.Duration, groups []*group) {
	entries, bytes := 0, 0
	for _, g := range groups {
		entries += len(g.entries)
		bytes += len(g.buf)
	}
	ctx := context.Background()
	m.syncs.Record(ctx, d.Seconds())
	m.entries.Add(ctx, int64(entries))
	m.bytes.Add(ctx, int64(bytes))
}

func (m *metrics) close() {
	if m.registration != nil {
		// It cannot fail for a registration of this meter.
		_ = m.registration.Unregister()
	}
}
