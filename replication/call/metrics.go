package call

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// metrics are the instruments of one direction.
type metrics struct {
	direction attribute.KeyValue
	name      func(kind uint8) string
	time      metric.Float64Histogram
}

func newMetrics(m metric.Meter, direction string, name func(uint8) string) (*metrics, error) {
	if m == nil {
		m = noop.NewMeterProvider().Meter("")
	}
	if name == nil {
		name = func(kind uint8) string { return strconv.Itoa(int(kind)) }
	}
	h, err := m.Float64Histogram("mqrouter.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Calls between the brokers of a zone, by kind and result: ok, refused with a reason, or no answer."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10))
	return &metrics{direction: attribute.String("direction", direction), name: name, time: h}, err
}

// took counts a call.
func (m *metrics) took(kind uint8, began time.Time, err error) {
	result := "ok"
	var f *Fault
	switch {
	case errors.As(err, &f):
		result = "refused"
	case err != nil:
		result = "no answer"
	}
	m.time.Record(context.Background(), time.Since(began).Seconds(), metric.WithAttributes(
		m.direction, attribute.String("kind", m.name(kind)), attribute.String("result", result)))
}
