package rocketmq

import (
	"context"
	"time"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// deniedLines a minute tell of consumers that ask for what they cannot have.
const deniedLines = 5

// tellDenied logs that a consumer is refused for good. Its push consumers start and
// get nothing, since the official clients repeat the question for ever without a
// word to the application: only this line says why. Names have been judged before
// and are short.
func (s *Server) tellDenied(ctx context.Context, group, topic *pb.Resource, st *pb.Status) {
	switch st.GetCode() {
	case pb.Code_TOPIC_NOT_FOUND, pb.Code_CONSUMER_GROUP_NOT_FOUND, pb.Code_FORBIDDEN, pb.Code_UNSUPPORTED, pb.Code_ILLEGAL_FILTER_EXPRESSION:
	default:
		return
	}
	if missed, ok := s.denied.Allow(time.Now()); ok {
		id, _ := clientID(ctx) // judged before, too
		s.opts.Logger.Warn("consumer refused", "group", group.GetName(), "topic", topic.GetName(), "peer", id, "err", st.GetMessage(), "suppressed", missed)
	}
}

// tellSettings logs that a client's Settings are refused: some clients wait for ever
// then.
func (s *Server) tellSettings(id string, in *pb.Settings, err error) {
	if missed, ok := s.denied.Allow(time.Now()); ok {
		s.opts.Logger.Warn("client refused", "group", in.GetSubscription().GetGroup().GetName(), "peer", id, "err", err, "suppressed", missed)
	}
}
