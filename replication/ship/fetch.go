package ship

import (
	"context"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

const (
	// fetchPart is how many bytes of a stretch one frame carries.
	fetchPart = 256 << 10
	// FetchLimit is about how many bytes one Fetch asks for: what both sides hold in
	// memory for it, unless one entry is larger.
	FetchLimit = 1 << 20
	// fetchWait bounds the wait for an answer to a Fetch, and for the next question: a disk
	// that takes longer for a stretch is no source.
	fetchWait = 10 * time.Second
)

// SealedLog is the log of a member, master or replica, as others fetch from it. ReadRaw
// checks every frame that it returns.
type SealedLog interface {
	Incarnation() record.Incarnation
	Committed() record.Position
	ReadRaw(ctx context.Context, from record.Position, limit int, dst []byte) (Stretch, error)
}

// ServeFetch answers a session that began with Fetch: stretches of the log, one for each
// question, until the asker ends it, asks nothing for a while, or asks for something that
// this log does not have. Who asks must be a member of the group, which the caller has
// verified. It reads no more than it is asked for, and holds one stretch. The stream is
// closed when it returns.
func ServeFetch(ctx context.Context, log SealedLog, group zone.Group, stream wire.Stream, first wire.Frame) error {
	var buf, out []byte
	for f := first; ; {
		err := fmt.Errorf("ship: a member that fetches sent %s: %w", f.Type, breach("not a question"))
		if f.Type == wire.TypeFetch {
			buf, out, err = answerFetch(ctx, log, group, stream, f, buf, out)
		}
		if err == nil {
			wait, cancel := context.WithTimeout(ctx, fetchWait)
			f, err = stream.Recv(wait)
			cancel()
		}
		if err != nil {
			_ = stream.Close(closeCode(err)) // err says what happened
			return err
		}
	}
}

// answerFetch sends one stretch, and returns the buffers for the next.
func answerFetch(ctx context.Context, log SealedLog, group zone.Group, stream wire.Stream, f wire.Frame, buf, out []byte) ([]byte, []byte, error) {
	x, err := wire.ParseFetch(f.Payload)
	if err != nil {
		return buf, out, err
	}
	refuse := func(code wire.Code, text string) ([]byte, []byte, error) {
		r := wire.Refuse{Code: code, Text: text}
		if err := stream.Send(ctx, wire.Frame{Type: wire.TypeRefuse, Payload: r.Append(nil)}); err != nil {
			return buf, out, err
		}
		return buf, out, &protocolError{what: "fetch refused: " + text, code: code}
	}
	committed := log.Committed()
	switch {
	case x.Group != group || x.Incarnation != log.Incarnation():
		return refuse(wire.CodeWrongIdentity, "another store")
	case x.To > committed:
		return refuse(wire.CodeHeld, fmt.Sprintf("committed here up to %d", committed))
	}
	st, err := log.ReadRaw(ctx, x.From, int(min(x.Limit, FetchLimit)), buf[:0])
	if err == nil && len(st.Frames) == 0 {
		err = breach("nothing stands there")
	}
	if err != nil {
		return refuse(wire.CodeInternal, err.Error())
	}
	for off := 0; off < len(st.Frames); off += fetchPart {
		data := st.Frames[off:min(off+fetchPart, len(st.Frames))]
		s := wire.Ship{Committed: committed, Base: st.Base, From: st.From, Next: st.Next, Size: uint32(len(st.Frames)), Offset: uint32(off), Data: data}
		out = s.Append(out[:0])
		if err := stream.Send(ctx, wire.Frame{Type: wire.TypeShip, Payload: out}); err != nil {
			return st.Frames, out, err
		}
	}
	return st.Frames, out, nil
}

// Fetch asks for one stretch of another member's log and returns it: whole frames from
// x.From on, which the caller checks. It is the caller's.
//
// Errors: a *RefusedError, those of the stream, the context's; the session is over then.
func Fetch(ctx context.Context, stream wire.Stream, from zone.Node, x wire.Fetch) (Stretch, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	if err := stream.Send(ctx, wire.Frame{Type: wire.TypeFetch, Payload: x.Append(nil)}); err != nil {
		return Stretch{}, err
	}
	for part := (assembly{}); ; {
		f, err := stream.Recv(ctx)
		if err != nil {
			return Stretch{}, err
		}
		switch f.Type {
		case wire.TypeRefuse:
			r, err := wire.ParseRefuse(f.Payload)
			if err != nil {
				return Stretch{}, err
			}
			return Stretch{}, &RefusedError{Master: from, Code: r.Code, Text: r.Text}
		case wire.TypeShip:
		default:
			return Stretch{}, breach("a member that is fetched from sent " + f.Type.String())
		}
		s, err := wire.ParseShip(f.Payload)
		if err != nil {
			return Stretch{}, err
		}
		if s.Size == 0 || s.From != x.From {
			return Stretch{}, breach("not the stretch that was asked for")
		}
		frames, whole, err := part.add(&s)
		if err != nil {
			return Stretch{}, err
		}
		if whole {
			return Stretch{From: s.From, Base: s.Base, Next: s.Next, Frames: frames}, nil
		}
	}
}
