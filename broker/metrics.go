package broker

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/broker/consumer"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// metrics are the broker's instruments. Names end in the unit's word where
// there is one; counters count since the process began.
type metrics struct {
	publishes, publishFailures                 metric.Int64Counter
	deliveries, acks, dead, trimmed, damaged   metric.Int64Counter
	broughtBack                                metric.Int64Counter
	healed, refusedBudget                      metric.Int64Counter
	landings, outcomes, progressFailures       metric.Int64Counter
	knownLandings                              metric.Int64Counter
	snapshots, snapshotFailures, overBudgetCtr metric.Int64Counter
	passedCtr                                  metric.Int64Counter
	tailOffers                                 metric.Int64Counter
	onwardOverBudget                           metric.Int64Counter
	timers                                     timerMetrics
	repeated, conflicts, passes                metric.Int64Counter
	publishTime, snapshotHold                  metric.Float64Histogram
	tx                                         *txMetrics
	lite                                       liteMetrics
	registration                               metric.Registration
	member                                     metric.Registration // nil when the broker is alone
	scrubbed, mended                           metric.Int64Counter
	damagedLog                                 metric.Registration
}

func newMetrics(m metric.Meter, b *Broker) (*metrics, error) {
	var errs []error
	counter := func(name, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithDescription(what))
		if errs = append(errs, err); err == nil {
			c.Add(context.Background(), 0) // the first event is an increase, not a new series
		}
		return c
	}
	seconds := func(name, what string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithDescription(what), metric.WithUnit("s"),
			metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5))
		errs = append(errs, err)
		return h
	}
	x := &metrics{
		publishes:        counter("mqrouter.broker.publishes", "messages stored for publishers"),
		publishFailures:  counter("mqrouter.broker.publish.failures", "messages whose append failed"),
		publishTime:      seconds("mqrouter.broker.publish.duration", "from append to commit and fold"),
		deliveries:       counter("mqrouter.broker.deliveries", "messages handed to consumers"),
		acks:             counter("mqrouter.broker.acks", "acknowledgements taken"),
		dead:             counter("mqrouter.broker.dead_letters", "messages moved to a dead-letter topic for a consumer group"),
		broughtBack:      counter("mqrouter.broker.dead_letters.replayed", "dead letters brought back"),
		trimmed:          counter("mqrouter.broker.trimmed_unread", "messages that were trimmed before an undeclared group had read them"),
		damaged:          counter("mqrouter.broker.unreadable", "tries to read a message that failed; each damaged message is tried every second while a group wants it"),
		healed:           counter("mqrouter.broker.indexes.rebuilt", "lost or damaged indexes that were made anew from the log at the start"),
		refusedBudget:    counter("mqrouter.broker.publish.over_budget", "publishes refused since a destination holds back as much as the topic allows"),
		landings:         counter("mqrouter.broker.landings", "records landed or parked for other groups"),
		knownLandings:    counter("mqrouter.broker.landings.known", "messages that their group had lost and sent again, and that had landed here before"),
		outcomes:         counter("mqrouter.broker.outcomes", "numbers that destinations settled without landing them"),
		progressFailures: counter("mqrouter.broker.progress.failures", "progress records that could not be appended and are tried again"),
		snapshots:        counter("mqrouter.broker.snapshots", "snapshots written"),
		snapshotFailures: counter("mqrouter.broker.snapshot.failures", "snapshots that failed"),
		snapshotHold:     seconds("mqrouter.broker.snapshot.hold", "how long the fold stood still for a snapshot"),
		overBudgetCtr:    counter("mqrouter.broker.cache.over_budget", "times the log was trimmed past a cache subscription that held back more than it may"),
		passedCtr:        counter("mqrouter.broker.group.passed", "messages that went before a declared consumer group had read them, since it held back more than it may"),
		onwardOverBudget: counter("mqrouter.broker.onward.over_budget", "times a zone that is served from landings was left out of retention"),
		repeated:         counter("mqrouter.broker.publish.repeated", "sends answered like their first copy, since the topic is idempotent"),
		conflicts:        counter("mqrouter.broker.publish.conflicts", "sends refused since another message of an idempotent topic had their id"),
		passes:           counter("mqrouter.broker.publish.passed_on", "messages passed on to the group of the zone that is their home"),
	}
	x.tailOffers = counter("mqrouter.broker.tails.offered", "records of tails that were offered here, by what became of them")
	x.scrubbed = counter("mqrouter.log.scrubbed", "bytes of the sealed commit log that were checked in the background")
	x.mended = counter("mqrouter.log.mended", "damaged segments of the commit log that were made anew from another node's")
	var err, terr error
	x.timers, terr = newTimerMetrics(m, counter)
	x.tx, err = newTxMetrics(m)
	x.lite = newLiteMetrics(counter)
	errs = append(errs, err, terr, x.observe(m, b))
	x.damagedLog, err = damagedGauge(m, b)
	errs = append(errs, err)
	if b.member != nil {
		x.member, err = memberGauges(m, b)
		errs = append(errs, err)
	}
	return x, errors.Join(errs...)
}

// observe registers the gauges, which are read when somebody asks.
func (x *metrics) observe(m metric.Meter, b *Broker) error {
	backlog, err1 := m.Int64ObservableGauge("mqrouter.flow.backlog", metric.WithUnit("By"), metric.WithDescription("bytes that a destination has not settled"))
	unsettled, err2 := m.Int64ObservableGauge("mqrouter.flow.unsettled", metric.WithDescription("numbers that a destination has not settled"))
	held, err5 := m.Int64ObservableGauge("mqrouter.group.held", metric.WithUnit("By"), metric.WithDescription("log bytes that messages which a declared consumer group has not settled hold back"))
	lag, err3 := m.Int64ObservableGauge("mqrouter.group.lag", metric.WithDescription("messages that a consumer group has not settled"))
	orphans, err4 := m.Int64ObservableGauge("mqrouter.flow.orphans", metric.WithDescription("numbers landed in a lineage that their origin gave up"))
	given, err8 := m.Int64ObservableCounter("mqrouter.broker.receipts", metric.WithDescription("messages that a receipt was written for, since the store was made"))
	none, err7 := m.Int64ObservableCounter("mqrouter.broker.receipts.none", metric.WithDescription("messages of topics with receipts that can have none, since the store was made"))
	waiting, err10 := m.Int64ObservableGauge("mqrouter.broker.receipts.waiting", metric.WithDescription("settled messages whose receipts wait for room in the backlog of their destination"))
	timers, gauges, err6 := timerGauges(m)
	lite, liteGauges, err9 := liteGauges(m)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9, err10); err != nil {
		return err
	}
	var err error
	x.registration, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		st := b.Status()
		for _, f := range joined(st.Outgoing) {
			at := metric.WithAttributes(attribute.String("flow", f.Flow.Target), attribute.String("city", string(f.City)), attribute.String("group", string(f.Group)),
				attribute.String("class", f.Flow.Class.String()), attribute.Int("lane", int(f.Flow.Lane)), attribute.Bool("onward", f.Onward))
			o.ObserveInt64(backlog, f.BacklogBytes, at)
			o.ObserveInt64(unsettled, int64(f.Head-f.Cursor), at)
		}
		for _, g := range st.Groups {
			o.ObserveInt64(lag, int64(g.Lag), metric.WithAttributes(
				attribute.String("group", string(g.Group)), attribute.String("topic", string(g.Topic)), attribute.Bool("cache", g.Cache)))
			if g.Held >= 0 {
				o.ObserveInt64(held, g.Held, metric.WithAttributes(attribute.String("group", string(g.Group)), attribute.String("topic", string(g.Topic))))
			}
		}
		o.ObserveInt64(orphans, int64(st.Counts.Orphans))
		o.ObserveInt64(given, int64(st.Counts.Receipts))
		o.ObserveInt64(none, int64(st.Counts.NoReceipts))
		for _, r := range st.Receipts {
			o.ObserveInt64(waiting, int64(r.Messages), metric.WithAttributes(attribute.String("group", r.Target), attribute.String("topic", string(r.Topic))))
		}
		timers.observe(o, &st.Timers)
		x.tx.observe(o, st.Transactions)
		lite.observe(o, &st)
		return nil
	}, append(append(gauges, liteGauges...), backlog, unsettled, lag, held, orphans, given, none, waiting, x.tx.pending, x.tx.oldest)...)
	return err
}

// joined adds up the flows that go onward, of which there is one for each origin: a
// series for each would be too many.
func joined(list []OutgoingStatus) []OutgoingStatus {
	type key struct {
		target string
		city   zone.City
		group  zone.Group
		class  zone.Class
		lane   uint8
	}
	at := map[key]int{}
	out := make([]OutgoingStatus, 0, len(list))
	for _, f := range list {
		if !f.Onward {
			out = append(out, f)
			continue
		}
		k := key{f.Flow.Target, f.City, f.Group, f.Flow.Class, f.Flow.Lane}
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out = append(out, f)
			continue
		}
		out[i].BacklogBytes += f.BacklogBytes
		out[i].Head += f.Head - f.Cursor
	}
	return out
}

func (x *metrics) onwardLeftOut() { x.onwardOverBudget.Add(context.Background(), 1) }

func (x *metrics) close() {
	if x != nil && x.registration != nil {
		_ = x.registration.Unregister() // only the noop and foreign meters fail
	}
	if x != nil && x.damagedLog != nil {
		_ = x.damagedLog.Unregister() // likewise
	}
	if x != nil && x.member != nil {
		_ = x.member.Unregister() // likewise
	}
}

func (x *metrics) published(ctx context.Context, n int, took consumer.Instant) {
	x.publishes.Add(ctx, int64(n))
	x.publishTime.Record(ctx, time.Duration(took).Seconds())
}

func (x *metrics) publishFailed(ctx context.Context, n int) {
	x.publishFailures.Add(ctx, int64(n))
}

func (x *metrics) landedKnown() { x.knownLandings.Add(context.Background(), 1) }

// offered counts what became of records of tails.
func (x *metrics) offered(list []OfferResult) {
	var n [len(offerWords)]int64
	for _, r := range list {
		n[r.Outcome]++
	}
	for o, count := range n {
		if count > 0 {
			x.tailOffers.Add(context.Background(), count, metric.WithAttributes(attribute.String("outcome", OfferOutcome(o).String())))
		}
	}
}

func (x *metrics) budgetRefused(t zone.Topic) {
	x.refusedBudget.Add(context.Background(), 1, metric.WithAttributes(attribute.String("topic", string(t))))
}

func (x *metrics) answeredAgain(t zone.Topic) {
	x.repeated.Add(context.Background(), 1, metric.WithAttributes(attribute.String("topic", string(t))))
}

func (x *metrics) conflicted(t zone.Topic) {
	x.conflicts.Add(context.Background(), 1, metric.WithAttributes(attribute.String("topic", string(t))))
}

func (x *metrics) passedOn(ctx context.Context, n int) { x.passes.Add(ctx, int64(n)) }

func (x *metrics) received(n int) {
	if n > 0 {
		x.deliveries.Add(context.Background(), int64(n))
	}
}

func (x *metrics) acked()              { x.acks.Add(context.Background(), 1) }
func (x *metrics) deadLettered()       { x.dead.Add(context.Background(), 1) }
func (x *metrics) replayed(n int)      { x.broughtBack.Add(context.Background(), int64(n)) }
func (x *metrics) trimmedUnread()      { x.trimmed.Add(context.Background(), 1) }
func (x *metrics) unreadable()         { x.damaged.Add(context.Background(), 1) }
func (x *metrics) indexesHealed(n int) { x.healed.Add(context.Background(), int64(n)) }
func (x *metrics) landed(n int)        { x.landings.Add(context.Background(), int64(n)) }
func (x *metrics) progressFailed()     { x.progressFailures.Add(context.Background(), 1) }
func (x *metrics) snapshotFailed()     { x.snapshotFailures.Add(context.Background(), 1) }

// passed counts what went before a subscription had read it.
func (x *metrics) passed(sub subNeed, n uint64) {
	if sub.cache {
		x.overBudgetCtr.Add(context.Background(), 1)
		return
	}
	x.passedCtr.Add(context.Background(), int64(n), metric.WithAttributes(
		attribute.String("group", string(sub.key.group)), attribute.String("topic", string(sub.key.topic))))
}

// outcome counts what a destination settled without landing it. Reasons that this
// version does not know are one, -1: a destination may send any.
func (x *metrics) outcome(o flow.Outcome) {
	if o.Outcome == record.OutcomeLanded {
		return
	}
	reason := int(o.Reason)
	if !o.Reason.Known() {
		reason = -1
	}
	x.outcomes.Add(context.Background(), int64(o.Through-o.First+1),
		metric.WithAttributes(attribute.Int("outcome", int(o.Outcome)), attribute.Int("reason", reason)))
}

func (x *metrics) snapshot(hold time.Duration) {
	x.snapshots.Add(context.Background(), 1)
	x.snapshotHold.Record(context.Background(), hold.Seconds())
}
