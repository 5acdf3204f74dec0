package source

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Options are the seams and times of a File. The zero value is useful.
type Options struct {
	Poll, Settle time.Duration // as in FollowOptions
	// Read returns the content of the file. Zero means the operating system's
	// file, of at most zone.MaxFileBytes.
	Read func(path string) ([]byte, error)
	// Notify is as in FollowOptions.
	Notify func(path string) (changes <-chan struct{}, stop func(), err error)
	// Log gets refusals and applied epochs. Zero means slog.Default.
	Log *slog.Logger
	// Refused is called from Run for each refusal, after it was logged. It does
	// not block. It may be nil.
	Refused func(*RefusedError)
}

// File keeps a node's topology in step with a file. All methods are safe for
// concurrent use.
type File struct {
	live     *Live
	path     string
	log      *slog.Logger
	refused  func(*RefusedError)
	follower *Follower
	refusal  atomic.Pointer[RefusedError]

	held *zone.Topology // much smaller, waits for Confirm; nil when none does; only Run
}

// Open reads the file at path. At the start the file has to be valid: the
// error is a *RefusedError of kind Unreadable or Invalid. Call Run to follow
// its changes.
func Open(path string, opts Options) (*File, error) {
	if opts.Read == nil {
		opts.Read = ReadFile
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	f := &File{path: path, log: opts.Log, refused: opts.Refused}
	f.follower = NewFollower(path, FollowOptions{Poll: opts.Poll, Settle: opts.Settle, Read: opts.Read, Notify: opts.Notify, Log: opts.Log}, f.judge)
	data, err := f.follower.Open()
	if err != nil {
		return nil, &RefusedError{Kind: Unreadable, Cause: err}
	}
	t, err := zone.Parse(data, path)
	if err != nil {
		return nil, &RefusedError{Kind: Invalid, Cause: err}
	}
	f.live = NewLive(t)
	return f, nil
}

// Current returns the running topology; see Live.Current.
func (f *File) Current() *zone.Topology { return f.live.Current() }

// Watch returns the running topology and a channel that is closed as soon as
// another one runs; see Live.Watch.
func (f *File) Watch() (*zone.Topology, <-chan struct{}) { return f.live.Watch() }

// Path returns the file's path.
func (f *File) Path() string { return f.path }

// Refusal returns why the file's present content is not the running topology,
// or nil when it is. It is what a status page shows.
func (f *File) Refusal() *RefusedError { return f.refusal.Load() }

// ErrNothingHeld means that no topology with the digest waits for Confirm.
var ErrNothingHeld = errors.New("source: no topology of that digest waits to be confirmed")

// Confirm applies the topology that Run holds back because it is much smaller
// than the running one. It names it by digest, so that a newer file is not
// confirmed unseen: ErrNothingHeld then. It blocks until Run has answered or
// ctx is done.
func (f *File) Confirm(ctx context.Context, digest zone.Digest) error {
	done := make(chan error, 1)
	if err := f.follower.Do(ctx, func() { done <- f.confirmHeld(digest) }); err != nil {
		return err
	}
	return <-done
}

// Run follows the file until ctx is done, and returns ctx's error then. It is
// called once. Nothing that the file holds ends it.
func (f *File) Run(ctx context.Context) error {
	f.follower.Run(ctx)
	return ctx.Err()
}

// judge applies the content of the file when it may be applied.
func (f *File) judge(data []byte, err error) {
	if err != nil {
		f.refuse(&RefusedError{Kind: Unreadable, Running: f.live.Current().Epoch, Cause: err})
		return
	}
	f.held = nil
	next, err := zone.Parse(data, f.path)
	if err != nil {
		f.refuse(&RefusedError{Kind: Invalid, Running: f.live.Current().Epoch, Cause: err})
		return
	}
	f.settle(next, f.live.Apply(next))
}

// settle records and tells the outcome of an attempt to apply next.
func (f *File) settle(next *zone.Topology, err error) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		if refused.Kind == MuchSmaller {
			f.held = next
		}
		f.refuse(refused)
		return
	}
	f.held = nil
	f.refusal.Store(nil)
	f.log.Info("topology in force", "path", f.path, "epoch", next.Epoch.String())
}

func (f *File) refuse(r *RefusedError) {
	f.refusal.Store(r)
	f.log.Error("topology not applied", "path", f.path, "epoch", r.Epoch.String(), "running", r.Running.String(), "err", r)
	if f.refused != nil {
		f.refused(r)
	}
}

func (f *File) confirmHeld(digest zone.Digest) error {
	if f.held == nil || f.held.Digest != digest {
		return ErrNothingHeld
	}
	next := f.held
	err := f.live.Confirm(next)
	f.settle(next, err)
	return err
}
