package broker

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/zone"
)

// timerMetrics are the instruments of delayed messages.
type timerMetrics struct {
	fired, recalled, late, refused, past, carried, dropped, stranded metric.Int64Counter
	lateness                                                         metric.Float64Histogram
}

func newTimerMetrics(m metric.Meter, counter func(name, what string) metric.Int64Counter) (timerMetrics, error) {
	t := timerMetrics{
		fired:    counter("mqrouter.broker.timers.fired", "delayed messages delivered to their queue or flow"),
		recalled: counter("mqrouter.broker.timers.recalled", "delayed messages taken back before they were due"),
		late:     counter("mqrouter.broker.timers.recalled_late", "recalls of messages that had fallen due"),
		dropped:  counter("mqrouter.broker.timers.dropped", "delayed messages dropped by order of an operator"),
		stranded: counter("mqrouter.broker.timers.stranded", "delayed messages that became dead letters, since their topic was gone when they were due"),
		refused:  counter("mqrouter.broker.timers.refused", "publishes refused since as many delayed messages wait as may"),
		past:     counter("mqrouter.broker.timers.past", "messages whose delivery time was past when they were published: the clocks of clients may be behind"),
		carried:  counter("mqrouter.broker.timers.carried", "delayed messages appended to the log again so that the log behind them could go"),
	}
	var err error
	t.lateness, err = m.Float64Histogram("mqrouter.broker.timers.lateness", metric.WithUnit("s"),
		metric.WithDescription("from the delivery time of a delayed message to its copy in a queue or flow"),
		metric.WithExplicitBucketBoundaries(.005, .01, .02, .05, .1, .2, .5, 1, 5, 30, 300, 3600))
	return t, err
}

// timersObserved are the gauges of delayed messages.
type timersObserved struct {
	pending, blocked, held metric.Int64ObservableGauge
	overdue, step          metric.Float64ObservableGauge
}

func timerGauges(m metric.Meter) (timersObserved, []metric.Observable, error) {
	var t timersObserved
	var errs [5]error
	t.pending, errs[0] = m.Int64ObservableGauge("mqrouter.timers.pending", metric.WithDescription("delayed messages that wait"))
	t.blocked, errs[1] = m.Int64ObservableGauge("mqrouter.timers.blocked", metric.WithDescription("delayed messages that are due and cannot be delivered now"))
	t.held, errs[2] = m.Int64ObservableGauge("mqrouter.timers.held", metric.WithUnit("By"), metric.WithDescription("log bytes that delayed messages hold back"))
	t.overdue, errs[3] = m.Float64ObservableGauge("mqrouter.timers.overdue", metric.WithUnit("s"), metric.WithDescription("how late the next delayed message is that nothing blocks"))
	t.step, errs[4] = m.Float64ObservableGauge("mqrouter.timers.clock_step", metric.WithUnit("s"), metric.WithDescription("step of the wall clock that is not believed yet"))
	return t, []metric.Observable{t.pending, t.blocked, t.held, t.overdue, t.step}, errors.Join(errs[:]...)
}

func (t *timersObserved) observe(o metric.Observer, st *TimerStatus) {
	blocked := 0
	for _, l := range st.Blocked {
		blocked += l.Count
	}
	o.ObserveInt64(t.pending, int64(st.Pending))
	o.ObserveInt64(t.blocked, int64(blocked))
	if st.Held >= 0 {
		o.ObserveInt64(t.held, st.Held)
	}
	o.ObserveFloat64(t.overdue, st.Overdue.Seconds())
	o.ObserveFloat64(t.step, st.ClockStep.Seconds())
}

// fired counts a message that fell due so many milliseconds ago.
func (x *metrics) fired(late int64) {
	x.timers.fired.Add(context.Background(), 1)
	x.timers.lateness.Record(context.Background(), float64(late)/1000)
}

func (x *metrics) recalled()      { x.timers.recalled.Add(context.Background(), 1) }
func (x *metrics) timerStranded() { x.timers.stranded.Add(context.Background(), 1) }
func (x *metrics) timerDropped(t zone.Topic) {
	x.timers.dropped.Add(context.Background(), 1, topicAttribute(t))
}
func (x *metrics) recallLate()         { x.timers.late.Add(context.Background(), 1) }
func (x *metrics) timerRefused()       { x.timers.refused.Add(context.Background(), 1) }
func (x *metrics) publishedPast()      { x.timers.past.Add(context.Background(), 1) }
func (x *metrics) timersCarried(n int) { x.timers.carried.Add(context.Background(), int64(n)) }
