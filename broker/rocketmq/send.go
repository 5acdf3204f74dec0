package rocketmq

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/zone"
)

// sending is the scratch of one SendMessage: every message of every client passes
// here, so the slices are reused.
type sending struct {
	msgs    []broker.Message
	results []broker.PublishResult
}

// sendings holds no state between uses.
var sendings = sync.Pool{New: func() any { return new(sending) }}

// grow makes both slices n long.
func (b *sending) grow(n int) {
	if cap(b.msgs) < n {
		b.msgs, b.results = make([]broker.Message, n), make([]broker.PublishResult, n)
	}
	b.msgs, b.results = b.msgs[:n], b.results[:n]
}

// release drops what the messages point to and gives the scratch back.
func (b *sending) release() {
	clear(b.msgs)
	clear(b.results)
	sendings.Put(b)
}

// SendMessage stores the messages in one append. When one is malformed, none is
// stored and the answer's status says why; a message that the store refuses is
// refused alone, in its entry; TOO_MANY_REQUESTS says that nothing was looked at.
// The status text of a stored message's entry says
// how far it got: "level=stored zone=Z" (durable where its consumers are),
// "level=origin zone=Z" or "level=origin channel=C" (durable here, on its way),
// "level=half ..." (durable here, and nowhere else before it is committed),
// "level=waiting ..." (durable here, where it waits for its delivery time), or
// "level=accepted ..." (written, not yet durable, as the topic asks).
func (s *Server) SendMessage(ctx context.Context, req *pb.SendMessageRequest) (*pb.SendMessageResponse, error) {
	start := time.Now()
	size := sizeOf(req.GetMessages())
	if !s.memory.charge(size) {
		st := s.memory.noRoom()
		s.metrics.took(ctx, setKey{operation: opSend, code: st.GetCode()}, start)
		return &pb.SendMessageResponse{Status: st}, nil
	}
	defer s.memory.release(size)
	info, st := s.sendTopic(ctx, req.GetMessages())
	if st != nil {
		s.metrics.took(ctx, setKey{operation: opSend, code: st.GetCode()}, start)
		return &pb.SendMessageResponse{Status: st}, nil
	}
	resp := s.publish(ctx, info, req.GetMessages())
	s.metrics.took(ctx, setKey{operation: opSend, topic: string(info.Name), code: resp.GetStatus().GetCode()}, start)
	return resp, nil
}

// sendTopic judges the request as a whole and returns its topic.
func (s *Server) sendTopic(ctx context.Context, msgs []*pb.Message) (*zone.TopicInfo, *pb.Status) {
	if _, st := s.caller(ctx); st != nil {
		return nil, st
	}
	switch {
	case len(msgs) == 0:
		return nil, refuse(pb.Code_MESSAGE_CORRUPTED, "the request has no message")
	case len(msgs) > maxBatch:
		return nil, refuse(pb.Code_PAYLOAD_TOO_LARGE, fmt.Sprintf("the request has %d messages, the limit is %d", len(msgs), maxBatch))
	}
	resource := msgs[0].GetTopic()
	for _, m := range msgs[1:] {
		if m.GetTopic().GetName() != resource.GetName() || m.GetTopic().GetResourceNamespace() != resource.GetResourceNamespace() {
			return nil, refuse(pb.Code_MESSAGE_CORRUPTED, "the messages of one request must have one topic")
		}
	}
	name, st := topicName(ctx, resource)
	if st != nil {
		return nil, st
	}
	if len(name) > 0 && name[0] == '%' {
		return nil, refuse(pb.Code_ILLEGAL_TOPIC, "the topic "+string(name)+" belongs to the system")
	}
	info := s.store.Topology().FindTopic(name)
	if info == nil {
		return nil, refuse(pb.Code_TOPIC_NOT_FOUND, "the topology does not declare the topic "+string(name))
	}
	return info, nil
}

// publish translates, stores and answers.
func (s *Server) publish(ctx context.Context, info *zone.TopicInfo, msgs []*pb.Message) *pb.SendMessageResponse {
	b := sendings.Get().(*sending)
	defer b.release()
	b.grow(len(msgs))
	size := 0
	for i, m := range msgs {
		if st := translate(info, m, &b.msgs[i]); st != nil {
			if len(msgs) > 1 {
				st.Message = fmt.Sprintf("message %d of %d: %s", i+1, len(msgs), st.GetMessage())
			}
			return &pb.SendMessageResponse{Status: st}
		}
		size += len(m.GetBody())
	}
	var spans []publishSpan
	if s.tracer.On() {
		spans = s.traceSend(ctx, b.msgs)
	}
	if err := s.store.Publish(ctx, b.msgs, b.results); err != nil {
		st := statusOf(err)
		for i := range spans {
			spans[i].fail(st)
		}
		return &pb.SendMessageResponse{Status: st}
	}
	for i := range spans {
		spans[i].end(&b.results[spans[i].message])
	}
	entries, slab := make([]*pb.SendResultEntry, len(msgs)), make([]pb.SendResultEntry, len(msgs))
	stored, last := 0, -1 // last is the last entry that says OK
	for i := range entries {
		r, e := &b.results[i], &slab[i]
		e.MessageId, e.TransactionId, e.RecallHandle = b.msgs[i].ID, r.TransactionID, r.Recall
		switch {
		case r.Err != nil:
			e.Status = statusOf(r.Err)
			s.metrics.published.Add(ctx, 1, s.metrics.set(setKey{operation: opSend, topic: string(info.Name), code: e.Status.GetCode()}).add...)
		case last >= 0 && sameReach(r, &b.results[last]):
			e.Status, e.Offset = slab[last].Status, r.Offset
			stored, last = stored+1, i
		default:
			e.Status, e.Offset = refuse(pb.Code_OK, reached(r)), r.Offset
			stored, last = stored+1, i
		}
		entries[i] = e
	}
	if stored > 0 {
		add := s.metrics.set(setKey{operation: opSend, topic: string(info.Name), code: pb.Code_OK}).add
		s.metrics.published.Add(ctx, int64(stored), add...)
		s.metrics.bytes.Add(ctx, int64(size), add...)
	}
	if id, st := clientID(ctx); info.Kind == zone.KindTransaction && stored > 0 && st == nil {
		s.clients.produces(id, info.Name, msgs[0].GetTopic())
	}
	outer := merge(len(entries), func(i int) *pb.Status { return entries[i].GetStatus() })
	return &pb.SendMessageResponse{Status: outer, Entries: entries}
}

// reached says how far a message got; see SendMessage.
func reached(r *broker.PublishResult) string {
	switch d := &r.Destination; {
	case d.Channel != nil:
		return "level=" + r.Level.String() + " channel=" + string(d.Channel.Name)
	case d.Zone != nil:
		return "level=" + r.Level.String() + " zone=" + string(d.Zone.Name)
	}
	return "level=" + r.Level.String()
}

// sameReach reports whether reached says the same of both.
func sameReach(a, b *broker.PublishResult) bool {
	return a.Level == b.Level && a.Destination.Channel == b.Destination.Channel && a.Destination.Zone == b.Destination.Zone
}

// bodyLimit is the largest body of a topic in bytes.
func bodyLimit(info *zone.TopicInfo) int {
	if info.MaxBody > 0 {
		return info.MaxBody
	}
	return maxBody
}

// noProperties stands for system properties that were not sent.
var noProperties = &pb.SystemProperties{}

// translate judges a message and fills out. out shares strings, maps and the body
// with m.
func translate(info *zone.TopicInfo, m *pb.Message, out *broker.Message) *pb.Status {
	sp := m.GetSystemProperties()
	if sp == nil {
		sp = noProperties
	}
	st := checkKind(info, sp)
	if st != nil {
		return st
	}
	if st := checkBody(info, m); st != nil {
		return st
	}
	if st := checkFields(sp); st != nil {
		return st
	}
	if st := checkProperties(m); st != nil {
		return st
	}
	born := sp.GetBornTimestamp()
	if born == nil {
		out.Born = time.Now()
	} else if err := born.CheckValid(); err != nil {
		return refuse(pb.Code_BAD_REQUEST, "the born timestamp is out of range")
	} else {
		out.Born = born.AsTime()
	}
	out.Topic = info
	out.ID = sp.GetMessageId()
	out.Tag = sp.GetTag()
	out.Keys = sp.GetKeys()
	if out.MessageGroup = sp.GetMessageGroup(); info.Kind == zone.KindLite {
		out.MessageGroup = sp.GetLiteTopic()
	}
	out.Kind = info.Kind
	out.Priority = sp.GetPriority()
	if d := sp.GetOrphanedTransactionRecoveryDuration(); info.Kind == zone.KindTransaction && d.CheckValid() == nil {
		out.Recovery = max(d.AsDuration(), 0)
	}
	if out.DeliverAt, st = deliveryTime(info, sp); st != nil {
		return st
	}
	out.Properties = m.GetUserProperties()
	out.Body = m.GetBody()
	out.Encoding = record.Encoding(sp.GetBodyEncoding())
	out.Digest = recordDigest(sp.GetBodyDigest())
	out.BornHost = sp.GetBornHost()
	out.TraceContext = sp.GetTraceContext()
	out.Queue = int(sp.GetQueueId()) // a hint; some clients know queue 0 only
	return nil
}

// checkBody judges size, encoding and digest.
func checkBody(info *zone.TopicInfo, m *pb.Message) *pb.Status {
	limit := bodyLimit(info)
	switch n := len(m.GetBody()); {
	case n == 0:
		return refuse(pb.Code_MESSAGE_BODY_EMPTY, "the body is empty, it must have at least 1 byte")
	case n > limit:
		return refuse(pb.Code_MESSAGE_BODY_TOO_LARGE, fmt.Sprintf("the body has %d bytes, the limit of the topic %s is %d", n, info.Name, limit))
	}
	// Bodies are not looked into, so an encoding of newer clients is theirs to know.
	if e := m.GetSystemProperties().GetBodyEncoding(); e < 0 || e > maxEncoding {
		return refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the body encoding %d is out of range, it must be from 0 to %d", e, maxEncoding))
	}
	return checkDigest(m.GetSystemProperties().GetBodyDigest(), m.GetBody())
}

// checkFields judges the remaining system properties.
func checkFields(sp *pb.SystemProperties) *pb.Status {
	id := sp.GetMessageId()
	switch {
	case blank(id) || control(id):
		return refuse(pb.Code_ILLEGAL_MESSAGE_ID, "the message id is blank or has control characters")
	case len(id) > maxMessageID:
		return refuse(pb.Code_ILLEGAL_MESSAGE_ID, fmt.Sprintf("the message id has %d bytes, the limit is %d", len(id), maxMessageID))
	case len(sp.GetBornHost()) > maxHost:
		return refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the born host has %d bytes, the limit is %d", len(sp.GetBornHost()), maxHost))
	case len(sp.GetTraceContext()) > maxTraceContext:
		return refuse(pb.Code_BAD_REQUEST, fmt.Sprintf("the trace context has %d bytes, the limit is %d", len(sp.GetTraceContext()), maxTraceContext))
	}
	if sp.Tag != nil && sp.GetTag() != "" {
		return checkTag(sp.GetTag())
	}
	return nil
}
