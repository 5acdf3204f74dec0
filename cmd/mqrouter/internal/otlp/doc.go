// Package otlp sends a node's spans to an OpenTelemetry collector.
//
// It owns where spans go, which messages begin a trace, and the queue between
// the two. It never blocks who ends a span: the queue is bounded, a span that
// finds it full is dropped and counted, and so are those that the collector does
// not take. A collector that is slow, wrong or away costs spans and one log line
// in a while, nothing else.
//
// # Settings
//
// Off by default. On with an endpoint, by flag or by the environment that every
// OpenTelemetry SDK knows:
//
//	OTEL_TRACES_EXPORTER                  otlp or none
//	OTEL_EXPORTER_OTLP[_TRACES]_ENDPOINT  and _PROTOCOL, _HEADERS, _TIMEOUT,
//	                                      _CERTIFICATE, _COMPRESSION, ...
//	OTEL_TRACES_SAMPLER, _ARG             which messages without a client's context
//	OTEL_BSP_*, OTEL_SPAN_*               queue and limits of a span
//	OTEL_RESOURCE_ATTRIBUTES              more about the node
//	OTEL_SDK_DISABLED                     off
//
// A flag wins over the environment. A fault of the settings is an error at the
// start.
//
// # Goroutines
//
// One for a node, the SDK's batch processor; Close joins it, within flushTime and
// the time of a refused call.
package otlp
