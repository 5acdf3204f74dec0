package ship

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// fixedLog has one stretch, which is committed.
type fixedLog struct {
	Stretch
	limit int // of the last read
	err   error
}

func (l *fixedLog) Incarnation() record.Incarnation { return 7 }
func (l *fixedLog) Committed() record.Position      { return l.Next }
func (l *fixedLog) ReadRaw(_ context.Context, from record.Position, limit int, dst []byte) (Stretch, error) {
	l.limit = limit
	if from != l.From || l.err != nil {
		return Stretch{}, errors.Join(ErrTrimmed, l.err)
	}
	st := l.Stretch
	st.Frames = append(dst, l.Frames...)
	return st, nil
}

// A member is given what it asks for, stretch by stretch, in parts where it is large, and
// told why when it is not. The session ends with whoever says anything else.
func TestAMemberFetchesFromAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frames := bytes.Repeat([]byte("0123456789abcdef"), 3*fetchPart/16+5)
		log := &fixedLog{Stretch: Stretch{From: 4096, Base: true, Next: 4096 + 64 + record.Position(len(frames)), Frames: frames}}
		good := wire.Fetch{Group: simGroup, Incarnation: 7, From: 4096, To: log.Next, Limit: 8 << 20}
		for name, c := range map[string]struct {
			change func(*wire.Fetch)
			broken error
			code   wire.Code
		}{
			"another store":       {change: func(x *wire.Fetch) { x.Incarnation++ }, code: wire.CodeWrongIdentity},
			"another group":       {change: func(x *wire.Fetch) { x.Group = "h" }, code: wire.CodeWrongIdentity},
			"not committed":       {change: func(x *wire.Fetch) { x.To++ }, code: wire.CodeHeld},
			"no longer there":     {change: func(x *wire.Fetch) { x.From-- }, code: wire.CodeInternal},
			"damaged there, too":  {broken: errors.New("rotten"), code: wire.CodeInternal},
			"twice, from the log": {},
		} {
			mine, theirs := flow.Pipe()
			ended := make(chan error, 1)
			go func() {
				first, err := theirs.Recv(t.Context())
				if err == nil {
					err = ServeFetch(t.Context(), log, simGroup, theirs, first)
				}
				ended <- err
			}()
			for range 2 { // the first is good in any case
				st, err := Fetch(t.Context(), mine, "b", good)
				if err != nil || st.From != log.From || st.Next != log.Next || !st.Base || !bytes.Equal(st.Frames, frames) {
					t.Fatalf("%s: %d bytes from %d to %d, %v", name, len(st.Frames), st.From, st.Next, err)
				}
				if log.limit != FetchLimit {
					t.Errorf("%s: %d bytes were read for one question", name, log.limit)
				}
			}
			if c.code != 0 {
				x := good
				if log.err = c.broken; c.change != nil {
					c.change(&x)
				}
				var refused *RefusedError
				if _, err := Fetch(t.Context(), mine, "b", x); !errors.As(err, &refused) || refused.Code != c.code {
					t.Errorf("%s: %v", name, err)
				}
				log.err = nil
			} else if err := mine.Send(t.Context(), wire.Frame{Type: wire.TypeProbe}); err != nil {
				t.Error(err)
			}
			if err := <-ended; err == nil {
				t.Errorf("%s: the session goes on", name)
			}
			_ = mine.Close(wire.CodeOK)
		}
	})
}

// Who asks and then says nothing holds a session for a moment only.
func TestAMemberThatAsksNoMoreIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &fixedLog{Stretch: Stretch{From: 64, Next: 96, Frames: make([]byte, 32)}}
		mine, theirs := flow.Pipe()
		defer mine.Close(wire.CodeOK)
		x := wire.Fetch{Group: simGroup, Incarnation: 7, From: 64, To: 96, Limit: 1}
		if err := ServeFetch(t.Context(), log, simGroup, theirs, wire.Frame{Type: wire.TypeFetch, Payload: x.Append(nil)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
	})
}
