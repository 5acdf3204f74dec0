package router

import (
	"context"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func TestMetricsTellLinksAndTraffic(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	defer func() { _ = provider.Shutdown(context.Background()) }()
	c := newCluster(t, "rt-hz-1")
	c.broker("rz03-a", echo)
	r := c.start("rt-sh-1", func(o *Options) { o.Meter = provider.Meter("test") })
	c.linked()
	s := c.open(r, 1, nil)
	recv(t, s)
	if err := s.Send(t.Context(), batch(1, 0, 5000)); err != nil {
		t.Fatal(err)
	}
	recv(t, s)
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	sum := make(map[string]int64)
	for _, scope := range got.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					sum[m.Name] += p.Value
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					sum[m.Name] += p.Value
				}
			}
		}
	}
	if sum["mqrouter.router.sessions"] != 1 || sum["mqrouter.link.up"] != 2 ||
		sum["mqrouter.router.payload"] < 10_000 || sum["mqrouter.link.wire"] < sum["mqrouter.router.payload"] {
		t.Errorf("metrics = %v, want a session, two links up, and its traffic", sum)
	}
	_ = s.Close(wire.CodeOK)
}

func TestChooseIsStableAndPutsDrainingLast(t *testing.T) {
	hops := []hop{{node: "a", up: true}, {node: "b", up: true}, {node: "c", up: true, draining: true}, {node: "d"}}
	first := make(map[zone.Node]int)
	for session := range uint64(1000) {
		got := choose(session, hops)
		if len(got) != 3 || got[2] != "c" {
			t.Fatalf("session %d: %v, want the draining one last and the one that is down left out", session, got)
		}
		first[got[0]]++
	}
	if first["a"] < 400 || first["b"] < 400 {
		t.Errorf("first choices %v, want them spread", first)
	}
	if got := choose(1, hops[3:]); len(got) != 0 {
		t.Errorf("choose = %v, want nobody", got)
	}
}
