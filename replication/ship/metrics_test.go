package ship

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/zone"
)

// TestAlertsAskForWhatIsMeasured finds the metrics of the alerts among those of a
// master, before anything has gone wrong: the first fault is an increase.
func TestAlertsAskForWhatIsMeasured(t *testing.T) {
	reader := metric.NewManualReader()
	meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
	log := lonelyLog(t)
	l, err := NewLeader(LeaderOptions{
		Self: "a", Group: simGroup, Log: log, Snapshots: &simSnapshots{l: log}, Sets: quietSets{},
		Term:    coordinator.Term{Epoch: 3, Master: "a", InSync: []zone.Node{"a"}, Version: 9},
		Leading: func() bool { return true }, Members: func() []zone.Node { return []zone.Node{"a", "b"} }, Meter: meter,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.metrics.close()
	var got metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, scope := range got.ScopeMetrics {
		for _, m := range scope.Metrics {
			have[strings.ReplaceAll(m.Name, ".", "_")] = true
		}
	}
	rules, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`mqrouter_ship_[a-z_]+`).FindAllString(string(rules), -1)
	if len(names) < 3 {
		t.Fatalf("alerts ask for %v; is the expression right?", names)
	}
	for _, name := range names {
		if !have[strings.TrimSuffix(name, "_total")] {
			t.Errorf("nobody measures %s; there are %v", name, have)
		}
	}
}
