package rocketmq

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// Names of the instruments and attributes. Attributes are those of OpenTelemetry's
// messaging conventions; the conventions name client instruments only, so the
// broker's own carry the same words under messaging.server.
const (
	metricDuration  = "messaging.server.operation.duration"  // histogram, s
	metricPublished = "messaging.server.published.messages"  // counter, {message}
	metricDelivered = "messaging.server.delivered.messages"  // counter, {message}
	metricSettled   = "messaging.server.settled.messages"    // counter, {message}
	metricBytes     = "messaging.server.message.body.size"   // counter of published body bytes, By
	metricRefused   = "messaging.server.refused.connections" // counter, {connection}
	metricDenied    = "messaging.server.denied.requests"     // counter, {request}
	metricClients   = "messaging.server.clients"             // gauge, {client}
	metricPolls     = "messaging.server.polls"               // up-down counter, {request}

	attrSystem    = attribute.Key("messaging.system")
	attrOperation = attribute.Key("messaging.operation.name")
	attrType      = attribute.Key("messaging.operation.type")
	attrTopic     = attribute.Key("messaging.destination.name")
	attrGroup     = attribute.Key("messaging.consumer.group.name")
	attrError     = attribute.Key("error.type")
)

// durationBounds suit a log whose sync takes 0.2 to 20 ms, and long polls; seconds.
var durationBounds = []float64{.0002, .0005, .001, .002, .003, .005, .01, .02, .05, .1, .5, 1, 5, 20}

// operations as the conventions name them, plus the settlements of this protocol.
const (
	opSend    = "send"
	opReceive = "receive"
	opAck     = "ack"
	opNack    = "nack"
	opDead    = "reject"
	opPull    = "pull"
	opSeek    = "seek"
	opEnd     = "end_transaction"
	opRecall  = "recall"
)

// operationTypes are the conventions' types of the operations.
var operationTypes = map[string]string{opSend: "send", opReceive: "receive", opAck: "settle", opNack: "settle", opDead: "settle", opPull: "receive", opSeek: "settle", opEnd: "settle", opRecall: "settle"}

// instruments are the front end's metrics. Attribute sets are made once for each
// combination, since the send path runs for every message; combinations are
// bounded by topics and groups that the Store accepted, and by codes.
type instruments struct {
	duration  metric.Float64Histogram
	published metric.Int64Counter
	delivered metric.Int64Counter
	settled   metric.Int64Counter
	bytes     metric.Int64Counter
	refusals  metric.Int64Counter
	polls     metric.Int64UpDownCounter

	sets sync.Map // setKey -> setOption

	registration metric.Registration // of what is observed; ends with Run
}

// setKey names an attribute set.
type setKey struct {
	operation, topic, group string
	code                    pb.Code
}

// setOption is an attribute set in the forms that the instruments take.
type setOption struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newInstruments(m metric.Meter, clients func() int) (*instruments, error) {
	var (
		i    instruments
		errs [8]error
	)
	i.duration, errs[0] = m.Float64Histogram(metricDuration, metric.WithUnit("s"), metric.WithDescription("Time to answer a request, long polls included."), metric.WithExplicitBucketBoundaries(durationBounds...))
	i.published, errs[1] = m.Int64Counter(metricPublished, metric.WithUnit("{message}"), metric.WithDescription("Messages sent by clients, by outcome."))
	i.delivered, errs[2] = m.Int64Counter(metricDelivered, metric.WithUnit("{message}"), metric.WithDescription("Messages handed to consumers, redeliveries included."))
	i.settled, errs[3] = m.Int64Counter(metricSettled, metric.WithUnit("{message}"), metric.WithDescription("Deliveries settled by consumers, by operation and outcome."))
	i.bytes, errs[4] = m.Int64Counter(metricBytes, metric.WithUnit("By"), metric.WithDescription("Body bytes of published messages."))
	i.refusals, errs[5] = m.Int64Counter(metricRefused, metric.WithUnit("{connection}"), metric.WithDescription("Connections refused before their first request, by reason."))
	i.polls, errs[6] = m.Int64UpDownCounter(metricPolls, metric.WithUnit("{request}"), metric.WithDescription("Receives that are waiting."))
	known, err := m.Int64ObservableGauge(metricClients, metric.WithUnit("{client}"), metric.WithDescription("Clients whose state is kept."))
	if errs[7] = err; err == nil {
		i.registration, errs[7] = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
			o.ObserveInt64(known, int64(clients()))
			return nil
		}, known)
	}
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("rocketmq: instruments: %w", err)
		}
	}
	return &i, nil
}

// close lets the meter forget a server that has ended.
func (i *instruments) close() {
	if i.registration != nil {
		_ = i.registration.Unregister() // only the noop and foreign meters fail
	}
}

func (i *instruments) set(k setKey) *setOption {
	if known, ok := i.sets.Load(k); ok {
		return known.(*setOption)
	}
	attrs := []attribute.KeyValue{attrSystem.String("rocketmq"), attrOperation.String(k.operation), attrType.String(operationTypes[k.operation])}
	if k.topic != "" {
		attrs = append(attrs, attrTopic.String(k.topic))
	}
	if k.group != "" {
		attrs = append(attrs, attrGroup.String(k.group))
	}
	if k.code != pb.Code_OK {
		attrs = append(attrs, attrError.String(k.code.String()))
	}
	opt := metric.WithAttributeSet(attribute.NewSet(attrs...))
	known, _ := i.sets.LoadOrStore(k, &setOption{add: []metric.AddOption{opt}, record: []metric.RecordOption{opt}})
	return known.(*setOption)
}

// took records the time of a request.
func (i *instruments) took(ctx context.Context, k setKey, start time.Time) {
	i.duration.Record(ctx, time.Since(start).Seconds(), i.set(k).record...)
}

// refuse counts a refused connection.
func (i *instruments) refuse(reason string) {
	i.refusals.Add(context.Background(), 1, metric.WithAttributes(attrError.String(reason)))
}
