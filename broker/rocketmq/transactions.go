package rocketmq

import (
	"context"
	"time"

	"github.com/mqrouter/mqrouter/broker"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// resolutions maps what a producer says to the broker's words.
var resolutions = map[pb.TransactionResolution]broker.Resolution{
	pb.TransactionResolution_TRANSACTION_RESOLUTION_UNSPECIFIED: broker.ResolutionUnknown,
	pb.TransactionResolution_COMMIT:                             broker.ResolutionCommit,
	pb.TransactionResolution_ROLLBACK:                           broker.ResolutionRollback,
}

// EndTransaction decides a half message: at OK the decision is durable, and a
// committed message is on its way. An unspecified resolution is OK and changes
// nothing. INVALID_TRANSACTION_ID: the id is not one, of another zone or topic, or
// no longer known. PRECONDITION_FAILED: it was decided otherwise, or parked; no
// other call of the protocol has that code, and every official client gives its
// caller an exception that carries it. The message id and the source are not
// looked at: Node's ids are not those that were sent, and Go names no source.
func (s *Server) EndTransaction(ctx context.Context, req *pb.EndTransactionRequest) (*pb.EndTransactionResponse, error) {
	start := time.Now()
	key := setKey{operation: opEnd}
	st := s.endTransaction(ctx, req, &key)
	key.code = st.GetCode()
	s.metrics.took(ctx, key, start)
	return &pb.EndTransactionResponse{Status: st}, nil
}

// endTransaction names the topic in the key when there is such a topic.
func (s *Server) endTransaction(ctx context.Context, req *pb.EndTransactionRequest, key *setKey) *pb.Status {
	if _, st := s.caller(ctx); st != nil {
		return st
	}
	topic, st := topicName(ctx, req.GetTopic())
	if st != nil {
		return st
	}
	if s.store.Topology().FindTopic(topic) != nil {
		key.topic = string(topic)
	}
	resolution, known := resolutions[req.GetResolution()]
	if !known {
		return refuse(pb.Code_BAD_REQUEST, "the resolution "+req.GetResolution().String()+" is not known")
	}
	st = statusOf(s.store.EndTransaction(ctx, topic, req.GetTransactionId(), resolution))
	if id, bad := clientID(ctx); bad == nil {
		s.clients.answered(id)
	}
	return st
}

// CheckBack queues the question what became of a half message for a producer of its
// topic: one whose Settings list the topic, or who has sent a half message of it.
// They are asked in turn. The broker calls it (SetProducers); it does not block.
func (s *Server) CheckBack(c *broker.CheckBack) broker.CheckOutcome { return s.clients.ask(c) }

// sendCheck writes a check to its stream, unless the half message was decided while
// it waited. The error is of the stream.
func (s *Server) sendCheck(t *telemetry, c check) error {
	if !s.memory.charge(int64(c.back.Size)) {
		c.back.Lost(false)
		return nil
	}
	defer s.memory.release(int64(c.back.Size))
	half, ok := c.back.Load()
	if !ok {
		return nil
	}
	m := s.message(c.resource, &broker.Delivery{Record: half.Record, Topic: c.back.Topic, Attempt: 1, Stored: half.Record.Stored()})
	sp := m.SystemProperties
	sp.ReceiptHandle, sp.QueueOffset, sp.InvisibleDuration = nil, nil, nil // it was not received
	command := &pb.RecoverOrphanedTransactionCommand{Message: m, TransactionId: half.TransactionID}
	err := t.tell(&pb.TelemetryCommand{Status: statusOK, Command: &pb.TelemetryCommand_RecoverOrphanedTransactionCommand{RecoverOrphanedTransactionCommand: command}})
	if err != nil {
		c.back.Lost(false)
		return err
	}
	c.back.Sent()
	s.clients.wrote(t.sess, c.back)
	return nil
}
