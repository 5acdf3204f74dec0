package router

import (
	"context"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/router/link/fec"
)

// TestCorrectionIsSwitchedOnAndTold: two routers that both correct do so with each
// other, once for both links, and not with one that does not.
func TestCorrectionIsSwitchedOnAndTold(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	defer func() { _ = provider.Shutdown(context.Background()) }()
	c := newCluster(t)
	c.broker("rz03-a", echo)
	c.start("rt-hz-1", func(o *Options) { o.Correction = &fec.Options{} })
	c.start("rt-hz-2", nil)
	r := c.start("rt-sh-1", func(o *Options) {
		o.Meter, o.Correction = provider.Meter("test"), &fec.Options{}
		o.Limits.Link.Rate = 64 << 20
	})
	c.linked()
	s := c.open(r, 1, nil)
	recv(t, s)
	if err := s.Send(t.Context(), batch(1, 0, 5000)); err != nil {
		t.Fatal(err)
	}
	recv(t, s)
	corrected := map[string]int64{}
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	for _, scope := range got.ScopeMetrics {
		for _, m := range scope.Metrics {
			if g, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == "mqrouter.correction.on" {
				for _, p := range g.DataPoints {
					peer, _ := p.Attributes.Value("peer")
					corrected[peer.AsString()] += p.Value
				}
			}
		}
	}
	if len(corrected) != 1 || corrected["rt-hz-1"] != 1 {
		t.Errorf("corrected: %v, want rt-hz-1 once", corrected)
	}
	for _, l := range r.Status().Links {
		if l.Correction.On != (l.Node == "rt-hz-1") {
			t.Errorf("link to %s: %+v", l.Node, l.Correction)
		}
	}
	_ = s.Close(wire.CodeOK)
}
