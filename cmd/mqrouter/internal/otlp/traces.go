package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
)

// flushTime bounds how long Close waits for the collector.
const flushTime = 2 * time.Second

// Options tell Open what to do.
type Options struct {
	Settings Settings
	Getenv   func(string) string  // required; what the exporter reads by itself is the process's environment
	Resource []attribute.KeyValue // about the node
	Meter    metric.Meter         // required
	Logger   *slog.Logger         // required
}

// Traces is a node's way to the collector. A nil *Traces is off.
type Traces struct {
	provider *sdk.TracerProvider
	sampler  tracing.Sampler
	queue    *queue
}

// Open returns nil when the settings do not ask for traces. It does not wait for
// the collector.
func Open(ctx context.Context, o Options) (*Traces, error) {
	p, err := o.Settings.resolve(o.Getenv)
	if err != nil || !p.on {
		return nil, err
	}
	quiet(o.Logger)
	about, err := resource.New(ctx, resource.WithAttributes(o.Resource...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("otlp: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	exporter, err := newExporter(ctx, &p)
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	q, err := newQueue(exporter, p.queue, p.protocol, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("otlp: metrics: %w", err), exporter.Shutdown(ctx))
	}
	// Spans are started for what the sampler, or the record, has decided on already.
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(q), sdk.WithResource(about), sdk.WithSampler(sdk.AlwaysSample()))
	return &Traces{provider: provider, sampler: p.sampler, queue: q}, nil
}

// newExporter makes the client of the collector; it dials when there is something
// to send.
func newExporter(ctx context.Context, p *plan) (*otlptrace.Exporter, error) {
	if p.protocol == protocolGRPC {
		var opts []otlptracegrpc.Option
		if p.endpoint != "" {
			opts = append(opts, otlptracegrpc.WithEndpointURL(p.endpoint))
		}
		return otlptracegrpc.New(ctx, opts...)
	}
	var opts []otlptracehttp.Option
	if p.endpoint != "" {
		opts = append(opts, otlptracehttp.WithEndpointURL(tracesURL(p.endpoint)))
	}
	return otlptracehttp.New(ctx, opts...)
}

// tracesURL appends the path of traces to the URL of a collector, as the SDK does
// with OTEL_EXPORTER_OTLP_ENDPOINT; a URL with a path of its own stays.
func tracesURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Path != "" && u.Path != "/" {
		return endpoint
	}
	return u.JoinPath("v1", "traces").String()
}

// quiet keeps the SDK from writing to the standard error by itself. The handler
// is the process's, so the first node's log gets what there is.
func quiet(log *slog.Logger) {
	quietOnce.Do(func() {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("traces", "err", err) }))
	})
}

var quietOnce sync.Once

// Tracer returns the tracer of a package; nil when tracing is off.
func (t *Traces) Tracer(name string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer(name, trace.WithSchemaURL(tracing.SchemaURL))
}

// Sampler decides which messages are traced.
func (t *Traces) Sampler() tracing.Sampler {
	if t == nil {
		return tracing.Sampler{}
	}
	return t.sampler
}

// Close sends what is queued, for flushTime at most, and joins. What is left then
// is dropped and counted.
func (t *Traces) Close() error {
	if t == nil {
		return nil
	}
	end := time.AfterFunc(flushTime, t.queue.cut)
	defer end.Stop()
	return t.provider.Shutdown(context.Background())
}
