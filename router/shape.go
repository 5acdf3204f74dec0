package router

import (
	"cmp"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/router/link"
)

// linkShape are the metrics of how a link fills its path.
type linkShape struct {
	connections, wanted, bound metric.Int64ObservableGauge
	goodput, loss, queue       metric.Float64ObservableGauge
	spread                     metric.Int64ObservableCounter
}

func newLinkShape(m metric.Meter) (*linkShape, error) {
	var first error
	gauge := func(name, unit, text string) metric.Int64ObservableGauge {
		g, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
		first = cmp.Or(first, err)
		return g
	}
	float := func(name, unit, text string) metric.Float64ObservableGauge {
		g, err := m.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(text))
		first = cmp.Or(first, err)
		return g
	}
	x := &linkShape{
		connections: gauge("mqrouter.link.connections", "{connection}", "QUIC connections of the link, its own and those for sessions."),
		wanted:      gauge("mqrouter.link.connections.wanted", "{connection}", "Connections that this end wants for its sessions; 1 = the link's own."),
		bound:       gauge("mqrouter.link.bound", "{link}", "1 for what keeps the link from carrying more: none, cpu, window, peer or path."),
		goodput:     float("mqrouter.link.goodput", "By/s", "Bytes of sessions a second, averaged over about five seconds."),
		loss:        float("mqrouter.link.loss", "1", "Part of the packets sent that were lost, averaged over about five seconds."),
		queue:       float("mqrouter.link.queue", "s", "By which round trips are longer than the shortest."),
	}
	var err error
	x.spread, err = m.Int64ObservableCounter("mqrouter.router.sessions.spread", metric.WithUnit("{session}"),
		metric.WithDescription("Sessions asked to change the connection of their link since the start."))
	return x, cmp.Or(first, err)
}

func (x *linkShape) all() []metric.Observable {
	return []metric.Observable{x.connections, x.wanted, x.bound, x.goodput, x.loss, x.queue, x.spread}
}

func (x *linkShape) observe(o metric.Observer, l *link.Status, attrs []attribute.KeyValue) {
	all := metric.WithAttributes(attrs...)
	o.ObserveInt64(x.connections, int64(l.Connections), all)
	o.ObserveInt64(x.wanted, int64(l.Wanted), all)
	o.ObserveFloat64(x.loss, l.Rates.Loss, all)
	o.ObserveFloat64(x.queue, l.Rates.Queue.Seconds(), all)
	o.ObserveFloat64(x.goodput, l.Rates.Out, all, metric.WithAttributes(attribute.String("direction", "out")))
	o.ObserveFloat64(x.goodput, l.Rates.In, all, metric.WithAttributes(attribute.String("direction", "in")))
	for b := link.BoundNone; b <= link.BoundPath; b++ {
		o.ObserveInt64(x.bound, one(l.Rates.Bound == b), all, metric.WithAttributes(attribute.String("by", b.String())))
	}
}
