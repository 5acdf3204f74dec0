package rocketmq

import (
	"context"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// unsupported names a part of the protocol that this server does not speak.
func unsupported(what string) *pb.Status {
	return refuse(pb.Code_UNSUPPORTED, what+" are not supported")
}

// SyncLiteSubscription is refused.
func (s *Server) SyncLiteSubscription(context.Context, *pb.SyncLiteSubscriptionRequest) (*pb.SyncLiteSubscriptionResponse, error) {
	return &pb.SyncLiteSubscriptionResponse{Status: unsupported("lite topics")}, nil
}
