package rocketmq

import (
	"context"
	"time"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// deliveryTime returns when a message of a topic of kind delay is to be delivered,
// and the zero time on other topics. How far ahead it may be, the store judges.
func deliveryTime(info *zone.TopicInfo, sp *pb.SystemProperties) (time.Time, *pb.Status) {
	if info.Kind != zone.KindDelay {
		return time.Time{}, nil
	}
	at := sp.GetDeliveryTimestamp()
	if at == nil {
		return time.Time{}, refuse(pb.Code_ILLEGAL_DELIVERY_TIME, "a DELAY message needs a delivery timestamp")
	}
	if at.CheckValid() != nil {
		return time.Time{}, refuse(pb.Code_ILLEGAL_DELIVERY_TIME, "the delivery timestamp is out of range")
	}
	return at.AsTime(), nil
}

// RecallMessage takes a delayed message back before it is due. It may be called at
// any broker of the zone. BAD_REQUEST says that the handle is none of this topic and
// zone, NOT_FOUND that the message fell due: MESSAGE_NOT_FOUND, whose name says it
// better, is no error to some clients.
func (s *Server) RecallMessage(ctx context.Context, req *pb.RecallMessageRequest) (*pb.RecallMessageResponse, error) {
	start := time.Now()
	name, id, st := s.recall(ctx, req)
	s.metrics.took(ctx, setKey{operation: opRecall, topic: string(name), code: st.GetCode()}, start)
	return &pb.RecallMessageResponse{Status: st, MessageId: id}, nil
}

// recall returns the topic when it is known, and the id of what was recalled.
func (s *Server) recall(ctx context.Context, req *pb.RecallMessageRequest) (known zone.Topic, id string, st *pb.Status) {
	if _, st := s.caller(ctx); st != nil {
		return "", "", st
	}
	name, st := topicName(ctx, req.GetTopic())
	if st != nil {
		return "", "", st
	}
	if s.store.Topology().FindTopic(name) == nil {
		return "", "", refuse(pb.Code_TOPIC_NOT_FOUND, "the topology does not declare the topic "+string(name))
	}
	if req.GetRecallHandle() == "" {
		return name, "", refuse(pb.Code_BAD_REQUEST, "the recall handle is missing")
	}
	id, err := s.store.Recall(ctx, name, req.GetRecallHandle())
	return name, id, statusOf(err)
}
