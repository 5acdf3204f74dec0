package otlp

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/mqrouter/mqrouter/internal/tracing"
)

// Protocols of OTLP, as OTEL_EXPORTER_OTLP_PROTOCOL names them.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf" // the specification's default
)

// defaultQueue is the capacity of the queue in spans: the specification's
// default of OTEL_BSP_MAX_QUEUE_SIZE.
const defaultQueue = 2048

// Settings are what the node's flags say. The zero value leaves everything to the
// environment.
type Settings struct {
	Endpoint string // URL of the collector; empty: the environment's
	Protocol string // grpc or http/protobuf; empty: the environment's, else http/protobuf
	Ratio    string // share of messages without a client's context, 0 to 1; empty: the environment's sampler, else 0
}

// Validate reports every fault of the settings.
func (s *Settings) Validate() error {
	var errs []error
	if s.Endpoint != "" && !isURL(s.Endpoint) {
		errs = append(errs, fmt.Errorf("otlp: endpoint %q: write a URL, http://HOST:PORT or https://HOST:PORT", s.Endpoint))
	}
	if s.Protocol != "" && s.Protocol != protocolGRPC && s.Protocol != protocolHTTP {
		errs = append(errs, fmt.Errorf("otlp: protocol %q: write %s or %s", s.Protocol, protocolGRPC, protocolHTTP))
	}
	if s.Ratio != "" {
		if _, err := tracing.ParseShare(s.Ratio); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// isURL reports whether a collector can be at the endpoint.
func isURL(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// endpointVariables hold the endpoint in the environment; for traces, the first
// that is set counts.
var endpointVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// checkEnvironment refuses an endpoint that the exporter would take for a default
// without a word, as one without a scheme.
func checkEnvironment(getenv func(string) string) error {
	for _, name := range endpointVariables {
		if v := getenv(name); v != "" {
			if !isURL(v) {
				return fmt.Errorf("otlp: %s is %q: write a URL, http://HOST:PORT or https://HOST:PORT", name, v)
			}
			return nil
		}
	}
	return nil
}

// plan is what settings and environment together ask for.
type plan struct {
	on       bool
	endpoint string // empty: the exporter reads the environment itself
	protocol string
	sampler  tracing.Sampler
	queue    int // spans
}

// resolve reads the environment where the settings say nothing.
func (s *Settings) resolve(getenv func(string) string) (plan, error) {
	if err := s.Validate(); err != nil {
		return plan{}, err
	}
	p := plan{endpoint: s.Endpoint, queue: defaultQueue}
	var errs []error
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); {
	case s.Endpoint != "":
		p.on = true
	case exporter == "otlp":
		p.on = true
	case exporter == "":
		p.on = getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	case exporter != "none":
		errs = append(errs, fmt.Errorf("otlp: OTEL_TRACES_EXPORTER is %q: write otlp or none", exporter))
	}
	if disabled, _ := strconv.ParseBool(getenv("OTEL_SDK_DISABLED")); disabled {
		p.on = false
	}
	if !p.on {
		return plan{}, errors.Join(errs...)
	}
	if s.Endpoint == "" {
		if err := checkEnvironment(getenv); err != nil {
			errs = append(errs, err)
		}
	}
	for _, v := range []string{s.Protocol, getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), protocolHTTP} {
		if v != "" {
			p.protocol = v
			break
		}
	}
	if p.protocol != protocolGRPC && p.protocol != protocolHTTP {
		errs = append(errs, fmt.Errorf("otlp: OTEL_EXPORTER_OTLP_PROTOCOL is %q: write %s or %s", p.protocol, protocolGRPC, protocolHTTP))
	}
	if n, err := strconv.Atoi(getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		p.queue = n
	}
	var err error
	if p.sampler, err = s.sampler(getenv); err != nil {
		errs = append(errs, err)
	}
	if p.sampler.Never() {
		p.on = false // nothing would ever be sent
	}
	return p, errors.Join(errs...)
}

func (s *Settings) sampler(getenv func(string) string) (tracing.Sampler, error) {
	if s.Ratio != "" {
		share, err := tracing.ParseShare(s.Ratio)
		return tracing.ParentBased(share), err
	}
	if name := getenv("OTEL_TRACES_SAMPLER"); name != "" {
		return tracing.ParseSampler(name, getenv("OTEL_TRACES_SAMPLER_ARG"))
	}
	return tracing.ParentBased(0), nil
}
