package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/quic-go/quic-go"

	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// ErrNoLink says that a link has no usable connection now.
var ErrNoLink = errors.New("link: no connection")

// ErrSessions says that a connection has as many sessions as it may have.
var ErrSessions = errors.New("link: too many sessions")

// ErrTooLarge says that a frame is larger than the node takes.
var ErrTooLarge = errors.New("link: frame too large")

// errAside says that a side stream leads to another one.
var errAside = errors.New("link: aside on a side stream")

// ErrRunning says that Run was called twice.
var ErrRunning = errors.New("link: already running")

// Error says what failed with a peer.
type Error struct {
	Op    string // "dial", "greet", "accept" or "probe"
	Peer  zone.Node
	Class zone.Class
	Code  wire.Code // what was or will be told to the peer; CodeOK when nothing was
	Err   error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Code == wire.CodeOK {
		return fmt.Sprintf("link: %s %s: %v", e.Op, e.Peer, e.Err)
	}
	return fmt.Sprintf("link: %s %s: %s: %v", e.Op, e.Peer, e.Code, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// streamError translates what quic-go returns from a stream or a connection.
func streamError(err error) error {
	if err == nil {
		return nil
	}
	var (
		stream *quic.StreamError
		app    *quic.ApplicationError
		idle   *quic.IdleTimeoutError
		closed *wire.ClosedError
		frame  *wire.FrameError
		own    *Error
	)
	switch {
	case errors.As(err, &closed), errors.As(err, &frame), errors.As(err, &own),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &stream):
		return &wire.ClosedError{Code: wire.Code(stream.ErrorCode), Local: !stream.Remote}
	case errors.As(err, &app):
		return &wire.ClosedError{Code: wire.Code(app.ErrorCode), Text: app.ErrorMessage, Local: !app.Remote}
	case errors.As(err, &idle):
		return &wire.ClosedError{Code: wire.CodeTimeout, Text: "connection idle"}
	case errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return &wire.ClosedError{Code: wire.CodeSlowPeer, Local: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, quic.ErrStreamClosed), errors.Is(err, net.ErrClosed):
		return &wire.ClosedError{Code: wire.CodeShutdown}
	}
	return &wire.ClosedError{Code: wire.CodeInternal, Text: err.Error()}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// codeOf returns the code that an error carries.
func codeOf(err error) wire.Code {
	var (
		closed *wire.ClosedError
		frame  *wire.FrameError
		own    *Error
	)
	switch {
	case err == nil:
		return wire.CodeOK
	case errors.As(err, &own) && own.Code != wire.CodeOK:
		return own.Code
	case errors.As(err, &closed):
		return closed.Code
	case errors.As(err, &frame):
		return frame.Code
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return wire.CodeTimeout
	case errors.Is(err, context.Canceled):
		return wire.CodeShutdown
	}
	return wire.CodeInternal
}
