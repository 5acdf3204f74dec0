package config

import (
	"github.com/spf13/pflag"

	"github.com/mqrouter/mqrouter/cmd/mqrouter/internal/otlp"
)

// Trace says where a node's spans go. Its zero value leaves that to the OTEL_
// variables of the environment, without which there are none.
type Trace struct {
	Endpoint string `mapstructure:"trace-endpoint"`
	Protocol string `mapstructure:"trace-protocol"`
	Ratio    string `mapstructure:"trace-ratio"`
}

// TraceFlags declares the flags of Trace on fs.
func TraceFlags(fs *pflag.FlagSet) {
	fs.String("trace-endpoint", "", "OpenTelemetry collector for spans, http(s)://HOST:PORT; default: OTEL_EXPORTER_OTLP_ENDPOINT, without it no spans")
	fs.String("trace-protocol", "", "grpc or http/protobuf; default: OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf")
	fs.String("trace-ratio", "", "share of the messages without a trace context of their client that begin a trace, 0 to 1; default: OTEL_TRACES_SAMPLER, else 0")
}

// Settings returns what the exporter is told.
func (t Trace) Settings() *otlp.Settings {
	return &otlp.Settings{Endpoint: t.Endpoint, Protocol: t.Protocol, Ratio: t.Ratio}
}

// TraceOf returns what the flags of a command say that is not a node's own. The
// flags must have been declared with TraceFlags and parsed.
func TraceOf(fs *pflag.FlagSet) (Trace, error) {
	var t Trace
	for name, to := range map[string]*string{"trace-endpoint": &t.Endpoint, "trace-protocol": &t.Protocol, "trace-ratio": &t.Ratio} {
		var err error
		if *to, err = fs.GetString(name); err != nil {
			return Trace{}, err
		}
	}
	return t, t.Settings().Validate()
}

// Args returns the flags that say the same.
func (t Trace) Args() []string {
	var args []string
	for _, f := range [][2]string{{"--trace-endpoint", t.Endpoint}, {"--trace-protocol", t.Protocol}, {"--trace-ratio", t.Ratio}} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	return args
}
