package broker

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/zone"
)

// LiteStatus is what a broker tells of the lite topics of a topic.
type LiteStatus struct {
	Topics int           // that live
	Limit  int           // beyond it a message that would make another one is refused
	TTL    time.Duration // after which one without a message is forgotten
	Idle   time.Duration // of the one that was not used for longest; 0 = there is none
}

// LiteUse is what a broker tells of a consumer group's use of lite topics.
type LiteUse struct {
	Mode    zone.LiteMode
	Clients int // that have named lite topics
	Named   int // lite topics that they have named, counted for each client
	Asleep  int // lite topics with messages of which nobody has named them, or too many wait
}

// liteStatus is nil for a topic without lite topics. mu is held.
func (b *Broker) liteStatus(t *topic, now time.Time) *LiteStatus {
	if t.lite == nil {
		return nil
	}
	st := &LiteStatus{Topics: len(t.lite.byName), Limit: t.lite.limit}
	if info := b.Topology().FindTopic(t.name); info != nil {
		st.TTL = info.Lite.TTL
	}
	if t.lite.oldest != nil {
		st.Idle = t.lite.oldest.idle(now)
	}
	return st
}

// liteUse is nil for a subscription to a topic without lite topics.
func (b *Broker) liteUse(sub *subscription, asleep int) *LiteUse {
	if sub.topic.lite == nil {
		return nil
	}
	u := &LiteUse{Mode: b.Topology().LiteModeOf(sub.key.group), Asleep: asleep}
	if sub.hands != nil && sub.hands.lite != nil {
		u.Clients, u.Named = sub.hands.lite.size()
	}
	return u
}

// liteMetrics are the instruments of lite topics.
type liteMetrics struct {
	refused, unread metric.Int64Counter
}

func newLiteMetrics(counter func(name, what string) metric.Int64Counter) liteMetrics {
	return liteMetrics{
		refused: counter("mqrouter.broker.lite.refused", "publishes refused since as many lite topics live as the topic may have"),
		unread:  counter("mqrouter.broker.lite.unread", "messages that a consumer group had not consumed when their lite topic was forgotten"),
	}
}

func (x *metrics) liteRefused(t zone.Topic) {
	x.lite.refused.Add(context.Background(), 1, metric.WithAttributes(attribute.String("topic", string(t))))
}

func (x *metrics) liteUnread(key subKey, n int) {
	x.lite.unread.Add(context.Background(), int64(n), metric.WithAttributes(
		attribute.String("group", string(key.group)), attribute.String("topic", string(key.topic))))
}

// liteObserved are the gauges of lite topics.
type liteObserved struct {
	topics, named metric.Int64ObservableGauge
	forgotten     metric.Int64ObservableCounter
}

func liteGauges(m metric.Meter) (liteObserved, []metric.Observable, error) {
	var l liteObserved
	var errs [3]error
	l.topics, errs[0] = m.Int64ObservableGauge("mqrouter.lite.topics", metric.WithDescription("lite topics that live"))
	l.named, errs[1] = m.Int64ObservableGauge("mqrouter.lite.subscriptions", metric.WithDescription("lite topics that clients of a consumer group have named"))
	l.forgotten, errs[2] = m.Int64ObservableCounter("mqrouter.broker.lite.forgotten", metric.WithDescription("lite topics that were forgotten since the store was made; room: to make room for others"))
	return l, []metric.Observable{l.topics, l.named, l.forgotten}, errors.Join(errs[:]...)
}

func (l *liteObserved) observe(o metric.Observer, st *Status) {
	for i := range st.Topics {
		if t := &st.Topics[i]; t.Lite != nil {
			o.ObserveInt64(l.topics, int64(t.Lite.Topics), metric.WithAttributes(attribute.String("topic", string(t.Topic))))
		}
	}
	for i := range st.Groups {
		if g := &st.Groups[i]; g.Lite != nil {
			o.ObserveInt64(l.named, int64(g.Lite.Named), metric.WithAttributes(
				attribute.String("group", string(g.Group)), attribute.String("topic", string(g.Topic))))
		}
	}
	o.ObserveInt64(l.forgotten, int64(st.Counts.LiteForgotten), metric.WithAttributes(attribute.Bool("room", false)))
	o.ObserveInt64(l.forgotten, int64(st.Counts.LiteEvicted), metric.WithAttributes(attribute.Bool("room", true)))
}
