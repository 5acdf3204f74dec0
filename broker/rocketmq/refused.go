package rocketmq

import (
	"context"

	"google.golang.org/grpc"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// unsupported names a part of the protocol that this server does not speak.
func unsupported(what string) *pb.Status {
	return refuse(pb.Code_UNSUPPORTED, what+" are not supported")
}

// noPull answers the calls of pull consumers, which no released client makes.
func noPull() *pb.Status {
	return refuse(pb.Code_NOT_IMPLEMENTED, "pull consumers are not implemented")
}

// EndTransaction is refused: there are no half messages.
func (s *Server) EndTransaction(context.Context, *pb.EndTransactionRequest) (*pb.EndTransactionResponse, error) {
	return &pb.EndTransactionResponse{Status: unsupported("transactions")}, nil
}

// RecallMessage is refused: there are no delayed messages.
func (s *Server) RecallMessage(context.Context, *pb.RecallMessageRequest) (*pb.RecallMessageResponse, error) {
	return &pb.RecallMessageResponse{Status: unsupported("delayed messages")}, nil
}

// SyncLiteSubscription is refused.
func (s *Server) SyncLiteSubscription(context.Context, *pb.SyncLiteSubscriptionRequest) (*pb.SyncLiteSubscriptionResponse, error) {
	return &pb.SyncLiteSubscriptionResponse{Status: unsupported("lite topics")}, nil
}

// PullMessage is refused.
func (s *Server) PullMessage(_ *pb.PullMessageRequest, stream grpc.ServerStreamingServer[pb.PullMessageResponse]) error {
	return stream.Send(&pb.PullMessageResponse{Content: &pb.PullMessageResponse_Status{Status: noPull()}})
}

// UpdateOffset is refused.
func (s *Server) UpdateOffset(context.Context, *pb.UpdateOffsetRequest) (*pb.UpdateOffsetResponse, error) {
	return &pb.UpdateOffsetResponse{Status: noPull()}, nil
}

// GetOffset is refused.
func (s *Server) GetOffset(context.Context, *pb.GetOffsetRequest) (*pb.GetOffsetResponse, error) {
	return &pb.GetOffsetResponse{Status: noPull()}, nil
}

// QueryOffset is refused.
func (s *Server) QueryOffset(context.Context, *pb.QueryOffsetRequest) (*pb.QueryOffsetResponse, error) {
	return &pb.QueryOffsetResponse{Status: noPull()}, nil
}
