package rocketmq

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/internal/tracing"
)

// publishSpan is the span of a message of a SendMessage.
type publishSpan struct {
	message int // index in the request
	span    trace.Span
}

// traceSend begins the spans of the messages that are traced and writes their
// contexts into the messages.
func (s *Server) traceSend(ctx context.Context, msgs []broker.Message) []publishSpan {
	var (
		spans   []publishSpan
		client  string
		now     time.Time
		skipped int
	)
	for i := range msgs {
		m := &msgs[i]
		parent, ok := s.opts.Sampler.Decide(m.TraceContext)
		if !ok {
			if parent.IsValid() && parent.IsSampled() {
				// The stations after this one follow the record.
				m.TraceContext = tracing.Unsampled(parent)
			}
			continue
		}
		if len(spans) == tracing.MaxPerBatch {
			skipped++
			continue
		}
		if len(spans) == 0 {
			client, _ = clientID(ctx)
			now = time.Now()
		}
		span := s.tracer.Start(tracing.Publish, trace.SpanKindProducer, string(m.Topic.Name), parent, now, publishAttributes(m, client, len(msgs))...)
		m.TraceContext = tracing.Format(span.SpanContext())
		spans = append(spans, publishSpan{i, span})
	}
	s.tracer.Skipped(tracing.Publish, skipped)
	return spans
}

func publishAttributes(m *broker.Message, client string, batch int) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		semconv.MessagingOperationTypeSend, semconv.MessagingDestinationName(string(m.Topic.Name)), semconv.MessagingMessageID(m.ID),
		semconv.MessagingClientID(client), semconv.MessagingMessageBodySize(len(m.Body)), semconv.MessagingRocketMQMessageTypeNormal,
	}
	if batch > 1 {
		attrs = append(attrs, semconv.MessagingBatchMessageCount(batch))
	}
	if m.Tag != "" {
		attrs = append(attrs, semconv.MessagingRocketMQMessageTag(m.Tag))
	}
	if len(m.Keys) > 0 {
		attrs = append(attrs, semconv.MessagingRocketMQMessageKeys(slices.Clone(m.Keys)...))
	}
	return attrs
}

// fail ends the span of a message of a request that failed as a whole.
func (p *publishSpan) fail(st *pb.Status) {
	tracing.Fail(p.span, st.GetCode().String(), st.GetMessage())
	p.span.End()
}

// end ends the span with what became of the message.
func (p *publishSpan) end(r *broker.PublishResult) {
	if r.Err != nil {
		p.fail(statusOf(r.Err))
		return
	}
	p.span.SetAttributes(tracing.KeyLevel.String(r.Level.String()))
	switch d := &r.Destination; {
	case d.Channel != nil:
		p.span.SetAttributes(tracing.KeyFlow.String(string(d.Channel.Name)))
	case d.Group != nil:
		p.span.SetAttributes(tracing.KeyGroup.String(string(d.Group.Name)))
	}
	p.span.End()
}

// deliveries are the traced ones of a receive. The zero value has none.
type deliveries struct {
	request *broker.ReceiveRequest
	batch   int // messages of the receive
	list    []delivery
}

type delivery struct {
	message int               // index in the receive
	parent  trace.SpanContext // what the record carries
	tries   int
}

// traceReceive looks which of the messages are traced.
func (s *Server) traceReceive(r *broker.ReceiveRequest, got []broker.Delivery) deliveries {
	d := deliveries{request: r, batch: len(got)}
	skipped := 0
	for i := range got {
		parent, ok := tracing.Sampled(got[i].Record.TraceContext())
		switch {
		case !ok:
		case len(d.list) == tracing.MaxPerBatch:
			skipped++
		default:
			d.list = append(d.list, delivery{i, parent, got[i].Attempt})
		}
	}
	s.tracer.Skipped(tracing.Receive, skipped)
	return d
}

// begin begins the span of a traced message, nil for the others, and gives the
// client its context: what the consumer does continues there. A span of a
// receive of several is linked to the other messages that came with it.
func (d *deliveries) begin(s *Server, message int, m *pb.Message) trace.Span {
	i := slices.IndexFunc(d.list, func(x delivery) bool { return x.message == message })
	if i < 0 {
		return nil
	}
	one, sp := &d.list[i], m.GetSystemProperties()
	attrs := []attribute.KeyValue{
		semconv.MessagingOperationTypeReceive, semconv.MessagingDestinationName(string(d.request.Topic)), semconv.MessagingMessageID(sp.GetMessageId()),
		semconv.MessagingConsumerGroupName(string(d.request.Group)), semconv.MessagingClientID(d.request.ClientID),
		semconv.MessagingMessageBodySize(len(m.GetBody())), tracing.KeyAttempt.Int(one.tries),
	}
	if d.batch > 1 {
		attrs = append(attrs, semconv.MessagingBatchMessageCount(d.batch))
	}
	span := s.tracer.Start(tracing.Receive, trace.SpanKindServer, string(d.request.Topic), one.parent, time.Now(), attrs...)
	for k := range d.list {
		if k != i {
			span.AddLink(trace.Link{SpanContext: d.list[k].parent})
		}
	}
	sp.TraceContext = proto.String(tracing.Format(span.SpanContext()))
	return span
}

// endReceive ends a span once the message was handed to the connection, or not.
func endReceive(span trace.Span, err error) {
	if err != nil {
		tracing.Fail(span, status.Code(err).String(), "the consumer's connection did not take the message; it is offered again")
	}
	span.End()
}
