package rocketmqclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// Message is one message to send. The client only reads it, until the send returns.
type Message struct {
	Topic        string
	Body         []byte            // at least one byte
	Tag          string            // empty: none
	Keys         []string          // may be empty
	Properties   map[string]string // user properties; may be nil
	MessageGroup string            // empty: none
	LiteTopic    string            // of a message of type LITE; empty: none
	Priority     int32             // of a message of type PRIORITY; from 0 on, the higher, the sooner
	TraceContext string            // W3C traceparent; empty: none
	// ID is the message id; empty makes a new one. Give the id of an earlier
	// attempt to send the same message again.
	ID string
	// DeliverAt is when to deliver a message of type DELAY; it goes with it.
	DeliverAt time.Time
	// Type is the message type; the zero value means FIFO with a message group, DELAY
	// with DeliverAt, LITE with a lite topic, PRIORITY with one above 0, else NORMAL.
	Type pb.MessageType
	// Encoding says how Body is compressed; the zero value means IDENTITY.
	Encoding pb.Encoding
	// Born is when the message came to be; the zero value means now.
	Born time.Time
}

// SendResult is what the server said of one message.
type SendResult struct {
	MessageID string
	Offset    int64  // offset in its queue, or what the server gives in its place
	Text      string // the server's words on how far the message got; may be empty
	Recall    string // by which a delayed message is taken back; else empty
	// TransactionID names a message of type TRANSACTION, for EndTransaction.
	TransactionID string
	// Err is nil when the message is stored as its topic promises, else a *StatusError.
	Err error
}

// Producer sends messages. It is safe for concurrent use.
type Producer struct {
	core *core
	ids  *IDs
	host string
}

// NewProducer connects and returns when the access point has answered the
// client's settings, within ctx. The topics are optional: their routes are asked
// for at once, so that an unknown topic is an error here and not at the first send.
func NewProducer(ctx context.Context, cfg Config, topics ...string) (*Producer, error) {
	kind := pb.ClientType_PRODUCER
	publishing := &pb.Publishing{}
	for _, t := range topics {
		publishing.Topics = append(publishing.Topics, &pb.Resource{Name: t})
	}
	core, err := newCore(cfg, &pb.Settings{
		ClientType:     &kind,
		RequestTimeout: durationpb.New(max(cfg.RequestTimeout, 3*time.Second)),
		PubSub:         &pb.Settings_Publishing{Publishing: publishing},
		UserAgent:      &pb.UA{Language: pb.Language_GOLANG, Version: "mqrouter"},
	}, nil)
	if err != nil {
		return nil, err
	}
	p := &Producer{core: core, host: core.cfg.ClientID}
	if p.ids, err = NewIDs(core.cfg.Rand); err == nil {
		err = core.start(ctx, topics)
	}
	if err != nil {
		core.close()
		return nil, err
	}
	return p, nil
}

// start loads routes and waits until the access point's session stands.
func (c *core) start(ctx context.Context, topics []string) error {
	for _, t := range topics {
		if _, err := c.route(ctx, t); err != nil {
			return err
		}
	}
	access, err := c.endpoint(c.cfg.Endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout+3*time.Second)
	defer cancel()
	return access.waitReady(ctx)
}

// Close tells the brokers, ends the connections and waits for the client's
// goroutines. Later calls return ErrClosed or an *OpError; a second Close returns nil.
func (p *Producer) Close() error {
	p.core.close()
	return nil
}

// Send sends one message and blocks until the server's answer, ctx or the request
// timeout. A refusal is returned as *StatusError, in the result's Err as well.
func (p *Producer) Send(ctx context.Context, m *Message) (SendResult, error) {
	s := singles.Get().(*single)
	defer singles.Put(s)
	s.in[0] = m
	results, err := p.send(ctx, s.in[:], s.out[:0])
	s.in[0] = nil
	if err != nil {
		return SendResult{}, err
	}
	return results[0], results[0].Err
}

// single is the one-message scratch of Send, pooled as benches send millions.
type single struct {
	in  [1]*Message
	out [1]SendResult
}

// singles holds no state between uses; a pool is allowed to be package-wide.
var singles = sync.Pool{New: func() any { return new(single) }}

// SendBatch sends messages of one topic in one request and returns one result for
// each, in order. The error is nil when the server answered each message; look at
// SendResult.Err then. An empty batch is an error.
func (p *Producer) SendBatch(ctx context.Context, ms []*Message) ([]SendResult, error) {
	return p.send(ctx, ms, make([]SendResult, 0, len(ms)))
}

func (p *Producer) send(ctx context.Context, ms []*Message, out []SendResult) ([]SendResult, error) {
	if len(ms) == 0 {
		return nil, fmt.Errorf("%w: a batch needs at least one message", ErrBound)
	}
	r, err := p.core.route(ctx, ms[0].Topic)
	if err != nil {
		return nil, err
	}
	q, err := r.pick(r.writable)
	if err != nil {
		return nil, fmt.Errorf("topic %s: %w", ms[0].Topic, err)
	}
	req := &pb.SendMessageRequest{Messages: make([]*pb.Message, len(ms))}
	slab, now, total := make([]sending, len(ms)), time.Now(), 0
	for i, m := range ms {
		if m.Topic != ms[0].Topic {
			return nil, fmt.Errorf("%w: messages of two topics in one batch", ErrBound)
		}
		p.encode(&slab[i], m, r, q, now)
		req.Messages[i] = &slab[i].message
		total += len(m.Body)
	}
	if total > sendBatchLimit && len(ms) > 1 {
		return nil, fmt.Errorf("%w: %d body bytes in one batch", ErrBound, sendBatchLimit)
	}
	ctx, cancel := p.core.outgoing(ctx, p.core.cfg.RequestTimeout)
	defer cancel()
	resp, err := q.ep.stub().SendMessage(ctx, req)
	q.ep.heard(err)
	if err != nil {
		return nil, &OpError{Op: "SendMessage", Endpoint: q.ep.addr, Err: err}
	}
	return results(q.ep.addr, ms, req, resp, out)
}

// results pairs entries with messages. Without one entry for each message the
// outer status is the answer to all of them.
func results(addr string, ms []*Message, req *pb.SendMessageRequest, resp *pb.SendMessageResponse, out []SendResult) ([]SendResult, error) {
	entries := resp.GetEntries()
	outer := check("SendMessage", addr, resp.GetStatus())
	if len(entries) != len(ms) {
		if outer == nil {
			outer = &OpError{Op: "SendMessage", Endpoint: addr, Err: ErrProtocol}
		}
		return nil, outer
	}
	for i, e := range entries {
		res := SendResult{MessageID: e.GetMessageId(), Offset: e.GetOffset(), Text: e.GetStatus().GetMessage(), Recall: e.GetRecallHandle(), TransactionID: e.GetTransactionId()}
		res.Err = check("SendMessage", addr, e.GetStatus())
		var protocol *OpError
		if errors.As(res.Err, &protocol) {
			return nil, res.Err
		}
		if res.MessageID == "" {
			res.MessageID = req.Messages[i].GetSystemProperties().GetMessageId()
		}
		out = append(out, res)
	}
	return out, nil
}

// sending is a message of the protocol with all that belongs to it, so that the
// messages of a request are one allocation.
type sending struct {
	message           pb.Message
	system            pb.SystemProperties
	born              timestamppb.Timestamp
	tag, group, trace string
	lite              string
	priority          int32
}

// encode builds the protocol's message. It shares the body and the maps of m.
func (p *Producer) encode(s *sending, m *Message, r *route, q queue, now time.Time) {
	sp := &s.system
	sp.Keys, sp.MessageId, sp.BornHost, sp.QueueId = m.Keys, m.ID, p.host, q.mq.GetId()
	if sp.BodyEncoding = m.Encoding; sp.BodyEncoding == pb.Encoding_ENCODING_UNSPECIFIED {
		sp.BodyEncoding = pb.Encoding_IDENTITY
	}
	if sp.MessageType = m.Type; sp.MessageType == pb.MessageType_MESSAGE_TYPE_UNSPECIFIED {
		sp.MessageType = pb.MessageType_NORMAL
		switch {
		case m.MessageGroup != "":
			sp.MessageType = pb.MessageType_FIFO
		case !m.DeliverAt.IsZero():
			sp.MessageType = pb.MessageType_DELAY
		case m.LiteTopic != "":
			sp.MessageType = pb.MessageType_LITE
		case m.Priority > 0:
			sp.MessageType = pb.MessageType_PRIORITY
		}
	}
	if !m.DeliverAt.IsZero() {
		sp.DeliveryTimestamp = timestamppb.New(m.DeliverAt)
	}
	if sp.MessageId == "" {
		sp.MessageId = p.ids.Next()
	}
	born := m.Born
	if born.IsZero() {
		born = now
	}
	s.born.Seconds, s.born.Nanos = born.Unix(), int32(born.Nanosecond())
	sp.BornTimestamp = &s.born
	if s.tag = m.Tag; s.tag != "" {
		sp.Tag = &s.tag
	}
	if s.group = m.MessageGroup; s.group != "" {
		sp.MessageGroup = &s.group
	}
	if s.lite = m.LiteTopic; s.lite != "" {
		sp.LiteTopic = &s.lite
	}
	if sp.Priority = nil; m.Priority > 0 {
		s.priority = m.Priority
		sp.Priority = &s.priority
	}
	if s.trace = m.TraceContext; s.trace != "" {
		sp.TraceContext = &s.trace
	}
	s.message.Topic, s.message.UserProperties, s.message.SystemProperties, s.message.Body = r.topic, m.Properties, sp, m.Body
}

// Recall takes a delayed message back before it is due, and returns its id. It asks
// the broker of the topic's first route; any of the zone may be asked.
func (p *Producer) Recall(ctx context.Context, topic, handle string) (string, error) {
	r, err := p.core.route(ctx, topic)
	if err != nil {
		return "", err
	}
	q, err := r.pick(r.writable)
	if err != nil {
		return "", fmt.Errorf("topic %s: %w", topic, err)
	}
	ctx, cancel := p.core.outgoing(ctx, p.core.cfg.RequestTimeout)
	defer cancel()
	resp, err := q.ep.stub().RecallMessage(ctx, &pb.RecallMessageRequest{Topic: r.topic, RecallHandle: handle})
	q.ep.heard(err)
	if err != nil {
		return "", &OpError{Op: "RecallMessage", Endpoint: q.ep.addr, Err: err}
	}
	return resp.GetMessageId(), check("RecallMessage", q.ep.addr, resp.GetStatus())
}

// EndTransaction commits the transactional message of a Send, or rolls it back. It
// asks a broker of the topic's route; any of the zone may be asked.
func (p *Producer) EndTransaction(ctx context.Context, topic string, sent SendResult, commit bool) error {
	r, err := p.core.route(ctx, topic)
	if err != nil {
		return err
	}
	q, err := r.pick(r.writable)
	if err != nil {
		return fmt.Errorf("topic %s: %w", topic, err)
	}
	resolution := pb.TransactionResolution_ROLLBACK
	if commit {
		resolution = pb.TransactionResolution_COMMIT
	}
	ctx, cancel := p.core.outgoing(ctx, p.core.cfg.RequestTimeout)
	defer cancel()
	resp, err := q.ep.stub().EndTransaction(ctx, &pb.EndTransactionRequest{
		Topic: r.topic, MessageId: sent.MessageID, TransactionId: sent.TransactionID,
		Resolution: resolution, Source: pb.TransactionSource_SOURCE_CLIENT,
	})
	q.ep.heard(err)
	if err != nil {
		return &OpError{Op: "EndTransaction", Endpoint: q.ep.addr, Err: err}
	}
	return check("EndTransaction", q.ep.addr, resp.GetStatus())
}
