package broker

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/broker/transaction"
	"github.com/mqrouter/mqrouter/zone"
)

// txMetrics are the instruments of transactions. What is pending is read with the
// broker's other gauges.
type txMetrics struct {
	decisions, orders, checks, alone, refusals metric.Int64Counter
	pending                                    metric.Int64ObservableGauge
	oldest                                     metric.Float64ObservableGauge
}

func newTxMetrics(m metric.Meter) (*txMetrics, error) {
	var errs []error
	counter := func(name, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithDescription(what))
		if errs = append(errs, err); err == nil {
			c.Add(context.Background(), 0)
		}
		return c
	}
	x := &txMetrics{
		decisions: counter("mqrouter.transaction.decisions", "half messages that were decided, by outcome: committed, rolled back, parked"),
		orders:    counter("mqrouter.transaction.orders", "half messages that were decided by order of an operator, by outcome; decisions counts them too"),
		checks:    counter("mqrouter.transaction.checks", "times a producer was asked about a half message"),
		alone:     counter("mqrouter.transaction.unasked", "checks that found no producer of the topic connected; they count for nothing"),
		refusals:  counter("mqrouter.transaction.refused", "half messages refused since too many wait for decisions"),
	}
	var err1, err2 error
	x.pending, err1 = m.Int64ObservableGauge("mqrouter.transaction.pending", metric.WithDescription("half messages that wait for a decision"))
	x.oldest, err2 = m.Float64ObservableGauge("mqrouter.transaction.oldest", metric.WithUnit("s"), metric.WithDescription("age of the oldest half message that waits for a decision"))
	return x, errors.Join(append(errs, err1, err2)...)
}

func topicAttribute(t zone.Topic) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("topic", string(t)))
}

func (x *txMetrics) decided(o transaction.Outcome, t zone.Topic) {
	x.decisions.Add(context.Background(), 1, outcomeAttributes(o, t))
}

func (x *txMetrics) ordered(o transaction.Outcome, t zone.Topic) {
	x.orders.Add(context.Background(), 1, outcomeAttributes(o, t))
}

func outcomeAttributes(o transaction.Outcome, t zone.Topic) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("outcome", o.String()), attribute.String("topic", string(t)))
}

func (x *txMetrics) checked(t zone.Topic) { x.checks.Add(context.Background(), 1, topicAttribute(t)) }
func (x *txMetrics) unasked(t zone.Topic) { x.alone.Add(context.Background(), 1, topicAttribute(t)) }
func (x *txMetrics) refused(t zone.Topic) { x.refusals.Add(context.Background(), 1, topicAttribute(t)) }

// observe tells what is pending.
func (x *txMetrics) observe(o metric.Observer, list []TransactionStatus) {
	for _, t := range list {
		o.ObserveInt64(x.pending, int64(t.Pending), topicAttribute(t.Topic))
		o.ObserveFloat64(x.oldest, t.Oldest.Seconds(), topicAttribute(t.Topic))
	}
}
