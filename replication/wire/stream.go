package wire

import (
	"context"

	"github.com/mqrouter/mqrouter/zone"
)

// Type is the type of a frame.
type Type uint8

// Code says why a stream or a request ended; see the table in code.go.
type Code uint16

// Frame is one frame of a session.
type Frame struct {
	Type    Type
	Flags   uint16
	Session uint64
	Class   zone.Class
	Hops    uint8 // city crossings so far; a relay raises it
	Payload []byte
}

// Stream carries the frames of one session, in order, in both directions.
// Send and Recv may run concurrently; neither may run twice at a time.
type Stream interface {
	// Send writes f; when it returns, the payload may be reused. It blocks while
	// the hop does not take bytes, for a bounded time, then the stream is reset.
	Send(ctx context.Context, f Frame) error
	// Recv returns the next frame; the payload belongs to the caller.
	Recv(ctx context.Context) (Frame, error)
	// Close ends both directions and tells the peer why. It is idempotent.
	Close(code Code) error
}
