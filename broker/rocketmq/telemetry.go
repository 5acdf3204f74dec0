package rocketmq

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// settingsTime is how long a stream may be open before its first Settings: clients send
// them at once. It bounds how long one that says nothing holds its place.
const settingsTime = 10 * time.Second

// Telemetry serves a client's stream: every Settings is answered with Settings and
// status OK, and the last are repeated for a while after the first; producers are
// asked about half messages, lite consumers told what they have no longer. This goroutine is the
// stream's only writer; a second one reads, as reading cannot be interrupted.
func (s *Server) Telemetry(stream grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand]) error {
	id, st := clientID(stream.Context())
	if st != nil {
		return status.Error(codes.InvalidArgument, st.GetCode().String()+": "+st.GetMessage())
	}
	l := s.answers.linkOf(stream.Context())
	if !l.stream() {
		return status.Errorf(codes.ResourceExhausted, "the connection has %d Telemetry streams, which is the limit", maxTelemetry)
	}
	defer l.streamEnded()
	sess := newSession()
	sess.from = clientAddr(stream.Context())
	if !s.clients.attach(id, sess) {
		return status.Error(codes.ResourceExhausted, "too many clients")
	}
	t := &telemetry{BidiStreamingServer: stream, Server: s, sess: sess, id: id, link: l, box: pb.Outbox{Count: l.count}, wait: s.resend, ended: make(chan error, 1)}
	defer t.close()

	in := make(chan *pb.Settings)
	s.readers.Go(func() { t.ended <- readSettings(stream, in) })
	return t.serve(in)
}

// telemetry is a Telemetry stream that is served.
type telemetry struct {
	grpc.BidiStreamingServer[pb.TelemetryCommand, pb.TelemetryCommand]
	*Server
	sess *session
	id   string
	link *link
	box  pb.Outbox

	ended chan error           // of the reader; capacity 1
	last  *pb.TelemetryCommand // what is repeated; nil until there is something
	kept  int64                // its size, which counts as unread
	again *time.Timer
	wait  time.Duration
}

// close forgets the stream, and whom it was to ask.
func (t *telemetry) close() {
	if t.again != nil {
		t.again.Stop()
	}
	t.keep(nil)
	t.clients.detach(t.id, t.sess)
	t.clients.giveUp(t.sess)
}

func (t *telemetry) serve(in <-chan *pb.Settings) error {
	first := time.NewTimer(t.silence)
	defer first.Stop()
	silent, due := first.C, (<-chan time.Time)(nil)
	for {
		select {
		case settings := <-in:
			silent = nil
			if err := t.answerSettings(settings); err != nil {
				return err
			}
			due = t.again.C
		case <-silent:
			return status.Errorf(codes.DeadlineExceeded, "no settings came within %v", t.silence)
		case <-due:
			if err := t.repeat(); err != nil {
				return err
			}
		case c := <-t.sess.checks: // only for streams whose Settings were answered
			if err := t.check(c); err != nil {
				return endOf(err)
			}
		case l := <-t.sess.lost:
			if err := t.sendLost(t, l); err != nil {
				return err
			}
		case err := <-t.ended:
			return endOf(err)
		case <-t.sess.end:
			return status.Error(codes.Unavailable, "superseded by newer streams of this client, or no heartbeat, or the address has too many")
		case <-t.Context().Done():
			return t.Context().Err()
		case <-t.stopping.Done():
			return nil
		}
	}
}

// endOf is how a stream ends that the reader has seen the end of.
func endOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil // the client has closed its half
	}
	return err
}

// answerSettings answers the client's Settings, and has the answer repeated for a while.
func (t *telemetry) answerSettings(settings *pb.Settings) error {
	reply, info, err := t.answer(t.Context(), settings)
	if err != nil {
		t.tellSettings(t.id, settings, err)
		return refuseSettings(t, err)
	}
	t.clients.settings(t.id, t.sess, info)
	if t.again == nil {
		t.again = time.NewTimer(t.wait)
	}
	command := &pb.TelemetryCommand{Status: statusOK, Command: &pb.TelemetryCommand_Settings{Settings: reply}}
	if !t.link.reads(int64(proto.Size(command))) {
		return status.Error(codes.ResourceExhausted, "the client does not read its answers: read them first")
	}
	if t.wait < t.resend<<resends {
		t.keep(command)
	}
	return t.tell(command)
}

// keep has the command repeated, if there is room to keep it; nil ends that.
func (t *telemetry) keep(c *pb.TelemetryCommand) {
	t.link.keep(-t.kept)
	t.last, t.kept = nil, 0
	if c == nil {
		return
	}
	if size := int64(proto.Size(c)); t.link.keep(size) {
		t.last, t.kept = c, size
	}
}

// repeat sends the last command again, and has it repeated after twice the time.
func (t *telemetry) repeat() error {
	command := t.last
	if t.wait *= 2; t.wait < t.resend<<resends {
		t.again.Reset(t.wait)
	} else {
		t.keep(nil)
	}
	if command == nil {
		return nil
	}
	return t.tell(command)
}

// tell sends a command; the stream ends when the client does not read it.
func (t *telemetry) tell(c *pb.TelemetryCommand) error {
	_, stop := t.hurry(t.Context(), func() {})
	defer stop()
	return t.SendMsg(t.box.Of(c))
}

// check asks the client about a half message, unless the stream has ended meanwhile:
// then somebody else is asked. The error is of the stream.
func (t *telemetry) check(c check) error {
	select {
	case err := <-t.ended:
		c.back.Lost(false)
		return err
	case <-t.sess.end:
		c.back.Lost(false)
		return status.Error(codes.Unavailable, "superseded by newer streams of this client, or no heartbeat, or the address has too many")
	default:
	}
	return t.sendCheck(t, c)
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
		s.clients.see(ctx, id, k)
		return statusOK
	}
	switch k {
	case pb.ClientType_PRODUCER, pb.ClientType_PUSH_CONSUMER, pb.ClientType_SIMPLE_CONSUMER, pb.ClientType_PULL_CONSUMER,
		pb.ClientType_LITE_PUSH_CONSUMER, pb.ClientType_LITE_SIMPLE_CONSUMER:
		if _, ok := s.clients.see(ctx, id, k); !ok {
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
