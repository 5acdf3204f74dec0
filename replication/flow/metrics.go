package flow

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// counters makes counters and remembers the first failure.
type counters struct {
	meter metric.Meter
	err   error
}

func newCounters(m metric.Meter) *counters {
	if m == nil {
		m = noop.Meter{}
	}
	return &counters{meter: m}
}

func (c *counters) new(name, unit, about string) metric.Int64Counter {
	x, err := c.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
	c.err = errors.Join(c.err, err)
	return x
}

// outboxMetrics are the counters of an origin. Attributes: city and class of
// the destination; the number of series does not grow with groups or lanes.
type outboxMetrics struct {
	records, bytes, sentBytes, batches, sessions, failures metric.Int64Counter
	divergedN, rewoundN, orphansN, gapN, parkedN, strayN   metric.Int64Counter
	dictionariesN, dictionaryBytes, trainedN               metric.Int64Counter
}

func newOutboxMetrics(m metric.Meter) (*outboxMetrics, error) {
	c := newCounters(m)
	o := &outboxMetrics{
		records:   c.new("mqrouter.flow.sent.records", "{record}", "Records sent, repeats included."),
		bytes:     c.new("mqrouter.flow.sent.raw", "By", "Record bytes sent, before compression."),
		sentBytes: c.new("mqrouter.flow.sent.wire", "By", "Payload bytes of the batches sent."),
		batches:   c.new("mqrouter.flow.sent.batches", "{batch}", "Batches sent."),
		sessions:  c.new("mqrouter.flow.sessions", "{session}", "Sessions accepted by a destination."),
		failures:  c.new("mqrouter.flow.session.ends", "{session}", "Sessions and attempts that ended, by code."),
		divergedN: c.new("mqrouter.flow.diverged", "{session}", "Sessions refused since origin and destination disagree. Must stay 0."),
		rewoundN:  c.new("mqrouter.flow.rewound", "{number}", "Numbers behind the cursor that a destination lost."),
		orphansN:  c.new("mqrouter.flow.orphans", "{number}", "Numbers at a destination that the origin lost."),
		gapN:      c.new("mqrouter.flow.gap", "{number}", "Numbers declared lost since they are trimmed."),
		parkedN:   c.new("mqrouter.flow.parked", "{number}", "Numbers that a destination parked."),
		strayN:    c.new("mqrouter.flow.stray", "{frame}", "Frames of other sessions that were ignored."),

		dictionariesN:   c.new("mqrouter.flow.sent.dictionaries", "{dictionary}", "Dictionaries for small batches that were sent to destinations, one a session and topic."),
		dictionaryBytes: c.new("mqrouter.flow.sent.dictionary", "By", "Bytes of these dictionaries."),
		trainedN:        c.new("mqrouter.flow.dictionaries.trained", "{dictionary}", "Dictionaries that were made for topics, by whether they pay."),
	}
	return o, c.err
}

// legMetrics are the counters with the attributes of a leg.
type legMetrics struct {
	m    *outboxMetrics
	opt  metric.AddOption
	city attribute.KeyValue
}

func (m *outboxMetrics) leg(leg Leg) legMetrics {
	city := attribute.String("city", string(leg.City))
	set := attribute.NewSet(city, attribute.String("class", leg.Flow.Class.String()))
	l := legMetrics{m: m, opt: metric.WithAttributeSet(set), city: city}
	for _, c := range []metric.Int64Counter{m.divergedN, m.rewoundN, m.orphansN, m.gapN, m.parkedN} {
		c.Add(context.Background(), 0, l.opt) // the first fault is an increase, not a new series
	}
	return l
}

func (l *legMetrics) sent(count, raw, size int) {
	ctx := context.Background()
	l.m.records.Add(ctx, int64(count), l.opt)
	l.m.bytes.Add(ctx, int64(raw), l.opt)
	l.m.sentBytes.Add(ctx, int64(size), l.opt)
	l.m.batches.Add(ctx, 1, l.opt)
}

func (l *legMetrics) dictionary(size int) {
	ctx := context.Background()
	l.m.dictionariesN.Add(ctx, 1, l.opt)
	l.m.dictionaryBytes.Add(ctx, int64(size), l.opt)
}

func (m *outboxMetrics) trained(pays bool) {
	m.trainedN.Add(context.Background(), 1, metric.WithAttributes(attribute.Bool("pays", pays)))
}

func (l *legMetrics) settled(s *Settlement) {
	var parked uint64
	for _, o := range s.Outcomes {
		if o.Outcome == record.OutcomeParked {
			parked += o.Through - o.First + 1
		}
	}
	if parked > 0 {
		l.m.parkedN.Add(context.Background(), int64(parked), l.opt)
	}
}

func (l *legMetrics) failed(code wire.Code) {
	l.m.failures.Add(context.Background(), 1, metric.WithAttributes(l.city, codeLabel(code)))
}

// codeLabel names a code; all that this version does not know are one, since a
// peer may send any.
func codeLabel(code wire.Code) attribute.KeyValue {
	if !code.Known() {
		return attribute.String("code", "unknown")
	}
	return attribute.String("code", code.String())
}

func (l *legMetrics) opened()          { l.m.sessions.Add(context.Background(), 1, l.opt) }
func (l *legMetrics) diverged()        { l.m.divergedN.Add(context.Background(), 1, l.opt) }
func (l *legMetrics) stray()           { l.m.strayN.Add(context.Background(), 1, l.opt) }
func (l *legMetrics) rewound(n uint64) { l.m.rewoundN.Add(context.Background(), int64(n), l.opt) }
func (l *legMetrics) gap(n uint64)     { l.m.gapN.Add(context.Background(), int64(n), l.opt) }
func (l *legMetrics) orphans(r wire.Range) {
	l.m.orphansN.Add(context.Background(), int64(r.Through-r.First+1), l.opt)
}

// inboxMetrics are the counters of a destination.
type inboxMetrics struct {
	records, settledN, duplicatesN, sessions, divergedN, supersededN, strayN metric.Int64Counter
	pulledN, pullFailuresN                                                   metric.Int64Counter
}

func newInboxMetrics(m metric.Meter) (*inboxMetrics, error) {
	c := newCounters(m)
	i := &inboxMetrics{
		records:     c.new("mqrouter.flow.landed.records", "{record}", "Records handed to the store and committed; it may have parked some."),
		settledN:    c.new("mqrouter.flow.landed.ranges", "{number}", "Numbers settled without a record: skipped, gap, parked."),
		duplicatesN: c.new("mqrouter.flow.duplicates", "{number}", "Numbers that came again and were dropped."),
		sessions:    c.new("mqrouter.flow.received.ends", "{session}", "Sessions from origins that ended, by code."),
		divergedN:   c.new("mqrouter.flow.received.diverged", "{session}", "Sessions refused since origin and destination disagree. Must stay 0."),
		supersededN: c.new("mqrouter.flow.superseded", "{session}", "Sessions ended by a newer one of their flow."),
		strayN:      c.new("mqrouter.flow.received.stray", "{frame}", "Frames of other sessions that were ignored."),
		pulledN:     c.new("mqrouter.flow.pulled.records", "{number}", "Of what settled, numbers that came from another city that had landed them."),

		pullFailuresN: c.new("mqrouter.flow.pull.failures", "{session}", "Times that a city that has landed a flow could not serve it any more."),
	}
	if c.err == nil {
		i.divergedN.Add(context.Background(), 0) // the first fault is an increase, not a new series
	}
	return i, c.err
}

func (m *inboxMetrics) landed(l *Landing, pulled bool) {
	n := int64(l.Through - l.First + 1)
	if pulled {
		m.pulledN.Add(context.Background(), n)
	}
	if l.Records != nil {
		m.records.Add(context.Background(), n)
	} else {
		m.settledN.Add(context.Background(), n)
	}
}

func (m *inboxMetrics) duplicates(n uint64) { m.duplicatesN.Add(context.Background(), int64(n)) }
func (m *inboxMetrics) ended(code wire.Code) {
	m.sessions.Add(context.Background(), 1, metric.WithAttributes(codeLabel(code)))
}
func (m *inboxMetrics) diverged()   { m.divergedN.Add(context.Background(), 1) }
func (m *inboxMetrics) pullFailed() { m.pullFailuresN.Add(context.Background(), 1) }
func (m *inboxMetrics) superseded() { m.supersededN.Add(context.Background(), 1) }
func (m *inboxMetrics) stray()      { m.strayN.Add(context.Background(), 1) }
