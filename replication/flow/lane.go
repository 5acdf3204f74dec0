package flow

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// errNothing ends a lane: everything that its source has is settled.
var errNothing = errors.New("flow: nothing to send")

// repeatLog is the shortest time between two logs of the same failure of a leg.
const repeatLog = 30 * time.Second

// lane sends one leg: it opens sessions, one at a time, until everything is
// settled. All fields but status belong to its goroutine.
type lane struct {
	o      *Outbox
	leg    Leg
	src    Source
	lim    *Limits
	met    legMetrics
	log    *slog.Logger
	rng    *rand.Rand
	near   bool // the destination is in the origin's own city
	pulled bool // the destination asked for what landed here; see ServePull
	path   []zone.City

	back      backoff
	maxRecord uint32             // data bytes of the largest record met so far that needs a larger window
	rawOnly   bool               // the destination could not read a compressed batch
	behind    bool               // the last session ended with numbers unsettled
	drained   bool               // the last session was asked to move before it made progress
	dest      record.Incarnation // of the last session's destination; 0 = none yet
	verify    atomic.Bool        // the leg is settled: the destination is asked whether it still is
	unwanted  atomic.Bool        // the source does not name the leg; set by Outbox.Run
	sealC     chan struct{}      // capacity 1: somebody waits for a seal
	failed    wire.Code          // of the last failure that was logged
	failedAt  time.Time          // when that was
	gaps      loglimit.Limit     // lines about numbers that were declared lost

	s         sender
	thrift    thrift
	linger    linger
	shelf     shelf
	state     OriginState
	items     []Item
	payload   []byte      // of the frame being sent
	scratch   []byte      // data before compression
	squeezed  []byte      // data after compression
	residency []zone.City // of the last run
	hops      uint8       // of frames; not 0 only when landings are served
	ackFrame  wire.Ack
	traces    spans // of traced records on their way

	mu     sync.Mutex
	status LegStatus // guarded by mu
}

// run sends until nothing is left or ctx ends.
func (l *lane) run(ctx context.Context) {
	for {
		l.s.moved = false
		err := l.session(ctx)
		if l.s.moved {
			l.back.good()
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNothing):
			return
		case l.s.phase == phaseSealed:
			// Nothing more can be sent, ever; asking again gets the same answer.
			l.setState(StateSealed, wire.CodeSealed, "")
			select {
			case <-ctx.Done():
				return
			case <-l.sealC:
				continue
			}
		}
		wait := l.failedWith(err)
		if l.unwanted.Load() && !l.behind {
			return // settled meanwhile, or the topology has no such destination any more
		}
		if l.verify.Load() && !l.behind {
			return // asked again when it is due
		}
		if !l.rest(ctx, wait, codeOf(err)) {
			return
		}
	}
}

// failedWith counts and logs the end of a session and returns how long to wait
// before the next.
func (l *lane) failedWith(err error) time.Duration {
	code, text := codeOf(err), ""
	if err != nil {
		text = err.Error()
	}
	var drain *drainError
	if errors.As(err, &drain) {
		moved := !l.drained
		l.drained = true
		if moved {
			return 0
		}
		code = wire.CodeDraining
	}
	var retry *retryError
	var after time.Duration
	if errors.As(err, &retry) {
		after = retry.after
	}
	state := StateWaiting
	if code == wire.CodeDiverged {
		state = StateDiverged
		l.met.diverged()
	}
	if code == wire.CodeMalformed && len(l.shelf.told) == 0 {
		l.rawOnly = true // in case that it was the codec
	}
	l.met.failed(code)
	l.setState(state, code, text)
	if now := time.Now(); code != wire.CodeOK && (code != l.failed || now.Sub(l.failedAt) >= repeatLog) {
		l.failed, l.failedAt = code, now
		level := slog.LevelWarn
		if state == StateDiverged {
			level = slog.LevelError
		}
		l.log.Log(context.Background(), level, "flow session ended", "code", code.String(), "err", err)
	}
	return l.back.next(l.rng, after)
}

// sleep waits; it reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryError is a refusal with a hint when to try again.
type retryError struct {
	*RefusedError
	after time.Duration
}

func (e *retryError) Unwrap() error { return e.RefusedError }

// drainError asks to move to another stream.
type drainError struct{}

func (*drainError) Error() string { return "flow: the stream is draining" }

func (l *lane) setState(s State, code wire.Code, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status.State != s || l.status.Code != code {
		l.status.Since = time.Now()
	}
	l.status.State, l.status.Code, l.status.Text = s, code, text
	if s != StateStreaming && s != StateHeld && s != StateRelayed {
		l.status.Session = 0
	}
}

// publish makes the sender's numbers visible to Status.
func (l *lane) publish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := &l.status
	st.Head, st.Settled, st.Sent, st.RTT = l.s.head, l.s.cursor, 0, l.s.rtt
	if l.s.phase != phaseOpening {
		st.Settled, st.Sent = l.s.acked, l.s.next-1
	}
	if l.s.moved {
		// The sender's watchdog starts anew with each session; a session that
		// settled nothing is no progress.
		st.Progress = l.s.progress
	}
	state := StateHeld
	if l.s.held == wire.CodeRelayed {
		state = StateRelayed
	}
	switch held := !l.s.heldAt.IsZero(); {
	case l.s.phase == phaseSealed:
		st.State, st.Code, st.Text = StateSealed, wire.CodeSealed, ""
	case held && (st.State != state || st.Code != l.s.held || st.Text != l.s.heldText):
		if st.State != state || st.Code != l.s.held {
			st.Since = l.s.heldAt
		}
		st.State, st.Code, st.Text = state, l.s.held, l.s.heldText
	case !held && (st.State == StateHeld || st.State == StateRelayed):
		st.State, st.Code, st.Text, st.Since = StateStreaming, wire.CodeOK, "", time.Now()
	}
}
