package otlp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) string { return m[k] }
}

func TestSettingsAndEnvironment(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings Settings
		env      []string
		on       bool
		protocol string
		bad      bool
	}{
		{name: "nothing"},
		{name: "flag", settings: Settings{Endpoint: "http://c:4318"}, on: true, protocol: protocolHTTP},
		{name: "flag with grpc", settings: Settings{Endpoint: "https://c:4317", Protocol: "grpc"}, on: true, protocol: protocolGRPC},
		{name: "endpoint of the environment", env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, on: true, protocol: protocolHTTP},
		{name: "endpoint for traces", env: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, on: true, protocol: protocolGRPC},
		{name: "protocol for traces", env: []string{"OTEL_TRACES_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"}, on: true, protocol: protocolHTTP},
		{name: "exporter none", env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c", "OTEL_TRACES_EXPORTER", "none"}},
		{name: "flag over exporter none", settings: Settings{Endpoint: "http://c:1"}, env: []string{"OTEL_TRACES_EXPORTER", "none"}, on: true, protocol: protocolHTTP},
		{name: "sdk disabled", settings: Settings{Endpoint: "http://c:1"}, env: []string{"OTEL_SDK_DISABLED", "true"}},
		{name: "sampler that never does", settings: Settings{Endpoint: "http://c:1"}, env: []string{"OTEL_TRACES_SAMPLER", "always_off"}, protocol: protocolHTTP},
		{name: "ratio over the sampler", settings: Settings{Endpoint: "http://c:1", Ratio: "0.5"}, env: []string{"OTEL_TRACES_SAMPLER", "always_off"}, on: true, protocol: protocolHTTP},
		{name: "bad endpoint", settings: Settings{Endpoint: "c:4317"}, bad: true},
		{name: "endpoint of the environment without a scheme", env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"}, bad: true},
		{name: "endpoint for traces that is no URL", env: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "127.0.0.1:4317", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"}, bad: true},
		{name: "good endpoint for traces over a bad one", env: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c", "OTEL_EXPORTER_OTLP_ENDPOINT", "c"}, on: true, protocol: protocolHTTP},
		{name: "flag over a bad endpoint of the environment", settings: Settings{Endpoint: "http://c:1"}, env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "c:1"}, on: true, protocol: protocolHTTP},
		{name: "bad endpoint of an exporter that is off", env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "c:1", "OTEL_TRACES_EXPORTER", "none"}},
		{name: "bad protocol", settings: Settings{Endpoint: "http://c:1", Protocol: "http/json"}, bad: true},
		{name: "bad ratio", settings: Settings{Ratio: "7"}, bad: true},
		{name: "bad sampler", settings: Settings{Endpoint: "http://c:1"}, env: []string{"OTEL_TRACES_SAMPLER", "jaeger_remote"}, bad: true},
		{name: "bad exporter", env: []string{"OTEL_TRACES_EXPORTER", "zipkin"}, bad: true},
		{name: "bad protocol of the environment", env: []string{"OTEL_TRACES_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"}, bad: true},
	} {
		p, err := c.settings.resolve(env(c.env...))
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err == nil && (p.on != c.on || p.protocol != c.protocol) {
			t.Errorf("%s: %+v, want on=%v protocol=%q", c.name, p, c.on, c.protocol)
		}
	}
}

func TestOffIsNil(t *testing.T) {
	tr, err := Open(t.Context(), Options{Getenv: env()})
	if tr != nil || err != nil {
		t.Fatalf("Open = %v, %v, want nothing", tr, err)
	}
	if tracer := tr.Tracer("x"); tracer != nil {
		t.Error("a tracer although tracing is off")
	}
	if err := tr.Close(); err != nil || tr.Sampler().Never() {
		t.Errorf("Close = %v", err)
	}
}

// counters reads the queue's metrics: name, with error.type behind a slash.
type counters struct{ reader *sdkmetric.ManualReader }

func (c counters) read(t *testing.T) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := c.reader.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	all := map[string]int64{}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok {
				continue
			}
			for _, p := range sum.DataPoints {
				name := m.Name
				if v, ok := p.Attributes.Value(attribute.Key("error.type")); ok {
					name += "/" + v.AsString()
				}
				all[name] = p.Value
			}
		}
	}
	return all
}

// opened is a node's traces towards an endpoint.
func opened(t *testing.T, endpoint string, pairs ...string) (*Traces, counters) {
	t.Helper()
	c := counters{sdkmetric.NewManualReader()}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader))
	tr, err := Open(t.Context(), Options{Settings: Settings{Endpoint: endpoint, Ratio: "1"}, Getenv: env(pairs...), Meter: provider.Meter("test"),
		Resource: []attribute.KeyValue{attribute.String("service.instance.id", "me")}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return tr, c
}

func end(t *testing.T, tr *Traces, n int) {
	t.Helper()
	for i := range n {
		_, span := tr.Tracer("test").Start(context.Background(), fmt.Sprint("span ", i))
		span.End()
	}
}

func TestCloseSendsWhatIsQueued(t *testing.T) {
	var mu sync.Mutex
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		var req collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(b, &req); err != nil || r.URL.Path != "/v1/traces" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range req.GetResourceSpans() {
			for _, a := range rs.GetResource().GetAttributes() {
				if a.GetKey() == "service.instance.id" {
					got = append(got, a.GetValue().GetStringValue())
				}
			}
		}
	}))
	defer s.Close()
	tr, c := opened(t, s.URL)
	end(t, tr, 100)
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	if n := c.read(t); n["otel.sdk.exporter.span.exported"] != 100 || n["otel.sdk.processor.span.queue.size"] != 0 || n["otel.sdk.processor.span.processed"] != 100 {
		t.Errorf("counters %v, want 100 exported", n)
	}
	if len(got) == 0 || got[0] != "me" {
		t.Errorf("the collector heard of %v, want the node", got)
	}
}

// TestACollectorThatHangsCostsSpansOnly: who ends a span never waits, the queue
// stays within its bound, what finds it full is counted, and the end is bounded.
func TestACollectorThatHangsCostsSpansOnly(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client has gone
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(release)
	tr, c := opened(t, s.URL, "OTEL_BSP_MAX_QUEUE_SIZE", "64", "OTEL_BSP_SCHEDULE_DELAY", "600000") // nothing leaves the queue before the end
	const n = 1000
	began := time.Now()
	end(t, tr, n)
	took := time.Since(began)
	m := c.read(t)
	if m["otel.sdk.processor.span.queue.size"] != 64 || m["otel.sdk.processor.span.queue.capacity"] != 64 || m["otel.sdk.processor.span.processed/queue_full"] != n-64 {
		t.Errorf("counters %v, want 64 queued and the rest dropped", m)
	}
	began = time.Now()
	if err := tr.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	t.Logf("%d spans ended in %v, Close took %v", n, took, time.Since(began))
	if m = c.read(t); m["otel.sdk.exporter.span.exported/failed"] != 64 || m["otel.sdk.processor.span.queue.size"] != 0 {
		t.Errorf("counters %v, want the 64 queued as failed", m)
	}
}

func TestNoCollector(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close() // nobody listens there
	tr, c := opened(t, s.URL)
	end(t, tr, 10)
	if err := tr.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if m := c.read(t); m["otel.sdk.exporter.span.exported/failed"] != 10 {
		t.Errorf("counters %v, want ten failed", m)
	}
}
