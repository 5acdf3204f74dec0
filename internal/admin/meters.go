package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
)

// Meters is one node's OpenTelemetry meter provider with a Prometheus page.
// Each node has its own, so that several nodes of one process stay apart.
type Meters struct {
	provider *sdk.MeterProvider
	registry *prometheus.Registry
}

// NewMeters returns a provider whose page says in target_info what it is about.
// It registers Go runtime collectors as well.
func NewMeters(about ...attribute.KeyValue) (*Meters, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector())
	exp, err := otelprom.New(otelprom.WithRegisterer(reg), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("admin: metrics: %w", err)
	}
	return &Meters{provider: sdk.NewMeterProvider(sdk.WithReader(exp), sdk.WithResource(resource.NewSchemaless(about...))), registry: reg}, nil
}

// Meter returns a meter for a package, named as the package's import path.
func (m *Meters) Meter(name string) metric.Meter { return m.provider.Meter(name) }

// Handler serves the Prometheus page, any number of times at once: see maxPages.
func (m *Meters) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Close stops the provider.
func (m *Meters) Close(ctx context.Context) error { return m.provider.Shutdown(ctx) }
