package router

import (
	"cmp"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/router/link"
	"github.com/mqrouter/mqrouter/zone"
)

// linkShape are the metrics of how a link fills its path.
type linkShape struct {
	connections, wanted, bound, window metric.Int64ObservableGauge
	goodput, loss, queue               metric.Float64ObservableGauge
	spread                             metric.Int64ObservableCounter

	// Of correction, by peer: its links share a stream.
	corrects, congested  metric.Int64ObservableGauge
	pathLoss, redundancy metric.Float64ObservableGauge
	extra, recovered     metric.Int64ObservableCounter
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
		wanted:      gauge("mqrouter.link.connections.wanted", "{connection}", "Connections that this end wants for its sessions; 1 = the link's own, or the last of those beside it."),
		bound:       gauge("mqrouter.link.bound", "{link}", "1 for what keeps the link from carrying more: none, cpu, window, peer, path or rate."),
		window:      gauge("mqrouter.link.window", "By", "Windows of the sessions that sent something of late: the most that they may have on their way."),
		goodput:     float("mqrouter.link.goodput", "By/s", "Bytes of sessions a second, averaged over about five seconds."),
		loss:        float("mqrouter.link.loss", "1", "Part of the packets sent that were lost, averaged over about five seconds; with correction, that it left."),
		queue:       float("mqrouter.link.queue", "s", "By which round trips are longer than the shortest."),
	}
	counter := func(name, unit, text string) metric.Int64ObservableCounter {
		c, err := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		first = cmp.Or(first, err)
		return c
	}
	x.spread = counter("mqrouter.router.sessions.spread", "{session}", "Sessions asked to change the connection of their link since the start.")
	x.corrects = gauge("mqrouter.correction.on", "{peer}", "1 when losses of what is sent to the peer are repaired.")
	x.congested = gauge("mqrouter.correction.congested", "{peer}", "1 while a queue stands on the path to the peer, and correction is held back.")
	x.pathLoss = float("mqrouter.correction.loss", "1", "Part of the packets that the path to the peer loses, before correction.")
	x.redundancy = float("mqrouter.correction.redundancy", "1", "Parity packets for each packet to the peer, averaged over about five seconds.")
	x.extra = counter("mqrouter.correction.extra", "By", "Bytes of parity and headers of correction, which mqrouter.link.wire does not count.")
	x.recovered = counter("mqrouter.correction.recovered", "{packet}", "Packets of the peer that were lost and repaired here.")
	return x, first
}

func (x *linkShape) all() []metric.Observable {
	return []metric.Observable{x.connections, x.wanted, x.bound, x.window, x.goodput, x.loss, x.queue, x.spread,
		x.corrects, x.congested, x.pathLoss, x.redundancy, x.extra, x.recovered}
}

func (x *linkShape) observe(o metric.Observer, l *link.Status, attrs []attribute.KeyValue) {
	all := metric.WithAttributes(attrs...)
	o.ObserveInt64(x.connections, int64(l.Connections), all)
	o.ObserveInt64(x.wanted, int64(l.Wanted), all)
	o.ObserveInt64(x.window, l.Rates.Window, all)
	o.ObserveFloat64(x.loss, l.Rates.Loss, all)
	o.ObserveFloat64(x.queue, l.Rates.Queue.Seconds(), all)
	o.ObserveFloat64(x.goodput, l.Rates.Out, all, metric.WithAttributes(attribute.String("direction", "out")))
	o.ObserveFloat64(x.goodput, l.Rates.In, all, metric.WithAttributes(attribute.String("direction", "in")))
	for b := link.BoundNone; b <= link.BoundRate; b++ {
		o.ObserveInt64(x.bound, one(l.Rates.Bound == b), all, metric.WithAttributes(attribute.String("by", b.String())))
	}
}

// observeCorrection tells of the streams to peers; a peer whose node takes no
// correction has none.
func (x *linkShape) observeCorrection(o metric.Observer, links []link.Status) {
	told := make(map[zone.Node]bool)
	for i := range links {
		l := &links[i]
		if l.State != link.StateUp || told[l.Node] || !l.Correction.On {
			continue
		}
		told[l.Node] = true
		c := &l.Correction
		peer := metric.WithAttributes(attribute.String("city", string(l.City)), attribute.String("peer", string(l.Node)))
		o.ObserveInt64(x.corrects, 1, peer)
		o.ObserveInt64(x.congested, one(c.Congested), peer)
		o.ObserveFloat64(x.pathLoss, c.Loss, peer)
		o.ObserveFloat64(x.redundancy, l.Rates.Parity, peer)
		o.ObserveInt64(x.extra, int64(c.Extra), peer)
		o.ObserveInt64(x.recovered, int64(c.Recovered), peer)
	}
}
