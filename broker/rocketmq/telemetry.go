package rocketmq

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// Telemetry serves a client's stream: every Settings is answered with Settings and
// status OK, and the last are repeated for a while after the first; producers are
// asked about half messages, lite consumers told what they have no longer. This goroutine is the
// stream's only writer; a second one reads, as reading cannot be interrupted.
func (s *Server) Telemetry(stream grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand]) error {
	id, st := clientID(stream.Context())
	if st != nil {
		return status.Error(codes.InvalidArgument, st.GetCode().String()+": "+st.GetMessage())
	}
	sess := newSession()
	if !s.clients.attach(id, sess) {
		return status.Error(codes.ResourceExhausted, "too many clients")
	}
	defer s.clients.detach(id, sess)

	in := make(chan *pb.Settings)
	ended := make(chan error, 1)
	s.readers.Go(func() { ended <- readSettings(stream, in) })

	var (
		last  *pb.TelemetryCommand
		again *time.Timer // nil until there is something to repeat
		due   <-chan time.Time
		wait  = s.resend
	)
	for {
		select {
		case settings := <-in:
			reply, info, err := s.answer(stream.Context(), settings)
			if err != nil {
				s.tellSettings(id, settings, err)
				return refuseSettings(stream, err)
			}
			s.clients.settings(id, sess, info)
			if last == nil {
				again = time.NewTimer(wait)
				defer again.Stop()
				due = again.C
			}
			last = &pb.TelemetryCommand{Status: statusOK, Command: &pb.TelemetryCommand_Settings{Settings: reply}}
			if err := stream.Send(last); err != nil {
				return err
			}
		case <-due:
			if wait *= 2; wait < s.resend<<resends {
				again.Reset(wait)
			}
			if err := stream.Send(last); err != nil {
				return err
			}
		case c := <-sess.checks: // only for streams whose Settings were answered
			if err := s.sendCheck(stream, c); err != nil {
				return err
			}
		case l := <-sess.lost:
			if err := s.sendLost(stream, l); err != nil {
				return err
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil // the client has closed its half
			}
			return err
		case <-sess.end:
			return status.Error(codes.Unavailable, "superseded by newer streams of this client, or no heartbeat")
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.stopping.Done():
			return nil
		}
	}
}

// refuseSettings ends a stream whose Settings cannot be answered. Most clients fail
// at a gRPC error; Node.js opens the stream again and again then, and fails only at
// a command that has nothing but a status, which the others pass over.
func refuseSettings(stream grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand], err error) error {
	st := refuse(pb.Code_BAD_REQUEST, err.Error())
	var refused *settingsError
	if errors.As(err, &refused) {
		st = refuse(refused.code, refused.text)
	}
	if sent := stream.Send(&pb.TelemetryCommand{Status: st}); sent != nil {
		return sent
	}
	return status.Error(codes.InvalidArgument, err.Error())
}

// readSettings passes on the client's Settings until the stream ends. Answers to
// commands are read and dropped: those that are sent are answered by other calls.
func readSettings(stream grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand], in chan<- *pb.Settings) error {
	for {
		cmd, err := stream.Recv()
		if err != nil {
			return err
		}
		settings := cmd.GetSettings()
		if settings == nil {
			continue
		}
		select {
		case in <- settings:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Heartbeat keeps a client's state. A client that is not known, as after a restart
// of the server, becomes known by it: Go, Python and C# do not send Settings again
// for minutes or ever.
func (s *Server) Heartbeat(ctx context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	return &pb.HeartbeatResponse{Status: s.heartbeat(ctx, req)}, nil
}

func (s *Server) heartbeat(ctx context.Context, req *pb.HeartbeatRequest) *pb.Status {
	id, st := clientID(ctx)
	if st != nil {
		return st
	}
	k := req.GetClientType()
	if _, known := pb.ClientType_name[int32(k)]; !known {
		k = pb.ClientType_CLIENT_TYPE_UNSPECIFIED // of a newer client: its Settings say what it is
		s.clients.see(id, k)
		return statusOK
	}
	switch k {
	case pb.ClientType_PRODUCER, pb.ClientType_PUSH_CONSUMER, pb.ClientType_SIMPLE_CONSUMER, pb.ClientType_PULL_CONSUMER,
		pb.ClientType_LITE_PUSH_CONSUMER, pb.ClientType_LITE_SIMPLE_CONSUMER:
		if _, ok := s.clients.see(id, k); !ok {
			return refuse(pb.Code_TOO_MANY_REQUESTS, "too many clients")
		}
		return statusOK
	default:
		return refuse(pb.Code_UNRECOGNIZED_CLIENT_TYPE, "clients of type "+k.String()+" are not supported")
	}
}

// NotifyClientTermination drops the client's state; what it holds comes back to its
// group when it expires.
func (s *Server) NotifyClientTermination(ctx context.Context, _ *pb.NotifyClientTerminationRequest) (*pb.NotifyClientTerminationResponse, error) {
	id, st := clientID(ctx)
	if st == nil {
		s.clients.drop(id)
		s.store.LeaveLite(id)
		st = statusOK
	}
	return &pb.NotifyClientTerminationResponse{Status: st}, nil
}
