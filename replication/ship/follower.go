package ship

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/mqrouter/mqrouter/replication/coordinator"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// FollowerOptions tells a Follower what to be. All fields but Limits, Logger and
// Meter are required.
type FollowerOptions struct {
	Self    zone.Node
	Group   zone.Group
	Log     FollowerLog
	Restore Restore
	// Dial opens a session to the master, of the given number, within the context's
	// time. The session's first frame is Follow.
	Dial func(ctx context.Context, master zone.Node, session uint64) (wire.Stream, error)
	// Rand makes session numbers and jitter. Only Run's goroutine uses it.
	Rand *rand.Rand

	Limits Limits
	Logger *slog.Logger // nil discards
	Meter  metric.Meter // nil measures nothing
}

// Validate reports every fault, joined.
func (o *FollowerOptions) Validate() error {
	var errs []error
	if o.Self == "" || o.Group == "" || o.Log == nil || o.Restore == nil || o.Dial == nil || o.Rand == nil {
		errs = append(errs, errors.New("ship: a follower's option is missing"))
	}
	return errors.Join(append(errs, o.Limits.Validate())...)
}

// Follower keeps a replica's log equal to its master's. Make one, call Run, tell it
// with Observe who is master. It is safe for concurrent use.
type Follower struct {
	o       FollowerOptions
	metrics *followerMetrics
	told    chan struct{} // capacity 1: target has changed

	mu     sync.Mutex
	target target                  // guarded by mu
	abort  context.CancelCauseFunc // ends the session under way; nil = none; guarded by mu
	status FollowerStatus          // guarded by mu
}

// target is whom to follow.
type target struct {
	epoch  uint64
	master zone.Node // "" = nobody yet
}

// NewFollower returns a Follower that does nothing until Run.
func NewFollower(o FollowerOptions) (*Follower, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Limits = o.Limits.WithDefaults()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("group", string(o.Group))
	f := &Follower{o: o, told: make(chan struct{}, 1)}
	rows := o.Log.Lineage()
	if len(rows) > 0 {
		f.target.epoch = rows[len(rows)-1].Epoch
	}
	var err error
	f.metrics, err = newFollowerMetrics(o.Meter, f)
	return f, err
}

// Observe tells what the coordinator says. Terms of older epochs are ignored; a
// session with the master of an older one ends: from now on nothing is acknowledged
// to it.
func (f *Follower) Observe(t coordinator.Term) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := target{epoch: t.Epoch, master: t.Master}
	if t.Epoch < f.target.epoch || next == f.target {
		return
	}
	f.target = next
	if f.abort != nil {
		f.abort(errNewTerm)
	}
	signal(f.told)
}

var errNewTerm = errors.New("ship: the term has changed")

// Run follows until ctx ends, which it returns the error of. It also returns when
// nothing more can be done here: ErrReplaced, a *DivergedError, a *LogError. It is
// called once.
func (f *Follower) Run(ctx context.Context) error {
	defer f.metrics.close()
	failures, full := 0, 0
	for ctx.Err() == nil {
		f.mu.Lock()
		to := f.target
		f.mu.Unlock()
		if to.master == "" || to.master == f.o.Self {
			select {
			case <-f.told:
			case <-ctx.Done():
			}
			continue
		}
		led, err := f.follow(ctx, to)
		f.ended(to, err)
		var diverged *DivergedError
		var broken *LogError
		switch {
		case errors.Is(err, ErrReplaced), errors.As(err, &diverged), errors.As(err, &broken):
			return err
		case errors.Is(err, errNewTerm), led:
			failures = 0
		default:
			failures++
		}
		if errors.Is(err, ErrFull) {
			pause(ctx, f.untilSpace(full), f.told)
			full++
			continue
		}
		full = 0
		if !errors.Is(err, errNewTerm) {
			pause(ctx, f.backoff(failures), f.told)
		}
	}
	return ctx.Err()
}

// backoff is the wait before the next attempt: full jitter, doubling.
func (f *Follower) backoff(failures int) time.Duration {
	most := min(f.o.Limits.MaxBackoff, 10*time.Millisecond<<min(failures, 10))
	return 1 + time.Duration(f.o.Rand.Int64N(int64(most)))
}

func (f *Follower) ended(to target, err error) {
	f.mu.Lock()
	f.status.Following, f.status.Err = false, err
	f.mu.Unlock()
	if errors.Is(err, errNewTerm) || errors.Is(err, context.Canceled) {
		return
	}
	f.metrics.ended()
	f.o.Logger.Info("session with the master ended", "peer", string(to.master), "epoch", to.epoch, "err", err)
}

// follow makes one session with the master. led says that the master had accepted.
func (f *Follower) follow(ctx context.Context, to target) (led bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.mu.Lock()
	changed := f.target != to
	f.abort = cancel
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.abort = nil
		f.mu.Unlock()
		if errors.Is(context.Cause(ctx), errNewTerm) && !final(err) {
			err = errNewTerm
		}
	}()
	if changed {
		return false, errNewTerm
	}
	dctx, done := context.WithTimeout(ctx, f.o.Limits.Dial)
	defer done()
	stream, err := f.o.Dial(dctx, to.master, f.o.Rand.Uint64()|1)
	if err != nil {
		return false, err
	}
	s := &following{f: f, stream: stream, to: to, window: uint64(f.o.Limits.Window)}
	answer, err := s.ask(ctx)
	if err == nil {
		led, err = true, s.run(ctx, answer)
	}
	_ = stream.Close(closeCode(err)) // err says what happened
	return led, err
}

// final says that a replica must not go on with its log after err, whatever else has
// happened meanwhile: a copy of the master's was installed in its place, it has
// diverged, or it failed.
func final(err error) bool {
	var diverged *DivergedError
	var log *LogError
	return errors.Is(err, ErrReplaced) || errors.As(err, &diverged) || errors.As(err, &log)
}

// positions is what a session needs of the log at its beginning.
func (f *Follower) positions() (begin, end, synced, committed record.Position) {
	l := f.o.Log
	// From the lowest up: each may ascend meanwhile, and their order must hold.
	begin, committed, synced = l.Begin(), l.Committed(), l.Synced()
	return begin, l.End(), synced, committed
}
