package rocketmqclient

import (
	"errors"
	"fmt"

	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// Errors that callers match with errors.Is.
var (
	// ErrClosed is returned by every call on a closed client.
	ErrClosed = errors.New("rocketmqclient: client is closed")
	// ErrNoQueue means that the route of a topic has no queue of the wanted kind.
	ErrNoQueue = errors.New("rocketmqclient: no usable queue in the route")
	// ErrProtocol means that a server's answer breaks the protocol.
	ErrProtocol = errors.New("rocketmqclient: malformed answer")
	// ErrBound means that a call would exceed one of the client's own limits.
	ErrBound = errors.New("rocketmqclient: limit of the client reached")
)

// StatusError is a refusal: the server answered and the code is not OK. Match it
// with errors.As.
type StatusError struct {
	Code pb.Code // business code; may be one this build does not know
	Text string  // the server's explanation; may be empty
}

// Error returns the code's name and the server's text.
func (e *StatusError) Error() string {
	return fmt.Sprintf("rocketmq status %s (%d): %s", e.Code, int32(e.Code), e.Text)
}

// Temporary reports whether the same request may succeed later without any
// change: the server was busy, full, or without its storage at the moment. An unknown
// code is not temporary.
func (e *StatusError) Temporary() bool { return temporary[e.Code] }

// temporary lists the codes worth repeating, by the protocol's meaning of each.
var temporary = map[pb.Code]bool{
	pb.Code_REQUEST_TIMEOUT:            true,
	pb.Code_TOO_MANY_REQUESTS:          true,
	pb.Code_INTERNAL_ERROR:             true,
	pb.Code_INTERNAL_SERVER_ERROR:      true,
	pb.Code_HA_NOT_AVAILABLE:           true,
	pb.Code_PROXY_TIMEOUT:              true,
	pb.Code_MASTER_PERSISTENCE_TIMEOUT: true,
	pb.Code_SLAVE_PERSISTENCE_TIMEOUT:  true,
}

// OpError is a request that got no business answer: no connection, deadline,
// cancellation, a gRPC error, or an answer that breaks the protocol. Whether the
// server acted on the request is unknown.
type OpError struct {
	Op       string // RPC name
	Endpoint string // host:port that was asked
	Err      error  // gRPC status error or one of this package's values
}

// Error returns operation, endpoint and cause.
func (e *OpError) Error() string {
	return fmt.Sprintf("rocketmq %s at %s: %v", e.Op, e.Endpoint, e.Err)
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// check turns a business status into an error; a missing status is a protocol
// error, as a server that answers at all must say how.
func check(op, endpoint string, s *pb.Status) error {
	switch {
	case s == nil:
		return &OpError{Op: op, Endpoint: endpoint, Err: ErrProtocol}
	case s.GetCode() == pb.Code_OK:
		return nil
	}
	return &StatusError{Code: s.GetCode(), Text: s.GetMessage()}
}
