package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/zone"
)

// Options are the seams and times of a File. The zero value is useful.
type Options struct {
	// Poll is how often the file is read although nothing told of a change:
	// network file systems tell nothing. Zero means 10 s.
	Poll time.Duration
	// Settle is how long a change rests before the file is read, so that a
	// half-written file is seldom seen. Zero means 100 ms.
	Settle time.Duration
	// Read returns the content of the file. Zero means the operating system's
	// file, of at most zone.MaxFileBytes.
	Read func(path string) ([]byte, error)
	// Notify watches the file: the channel gets a value after changes (it may
	// coalesce them, and tell of changes that are none); stop ends the watch
	// and waits for its goroutines. Zero means Notify, which is fsnotify.
	Notify func(path string) (changes <-chan struct{}, stop func(), err error)
	// Log gets refusals and applied epochs. Zero means slog.Default.
	Log *slog.Logger
	// Refused is called from Run for each refusal, after it was logged. It does
	// not block. It may be nil.
	Refused func(*RefusedError)
}

func (o Options) withDefaults() Options {
	if o.Poll <= 0 {
		o.Poll = 10 * time.Second
	}
	if o.Settle <= 0 {
		o.Settle = 100 * time.Millisecond
	}
	if o.Read == nil {
		o.Read = ReadFile
	}
	if o.Notify == nil {
		o.Notify = Notify
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// File keeps a node's topology in step with a file. All methods are safe for
// concurrent use.
type File struct {
	live    *Live
	path    string
	opts    Options
	refusal atomic.Pointer[RefusedError]
	confirm chan confirmation // unbuffered: Run answers

	// Only Run, and Open before it.
	seen  [sha256.Size]byte // of the content that was judged last
	fault string            // the read error that was reported last
	held  *zone.Topology    // much smaller, waits for Confirm; nil when none does
}

type confirmation struct {
	digest zone.Digest
	done   chan error // capacity 1
}

// Open reads the file at path. At the start the file has to be valid: the
// error is a *RefusedError of kind Unreadable or Invalid. Call Run to follow
// its changes.
func Open(path string, opts Options) (*File, error) {
	f := &File{path: path, opts: opts.withDefaults(), confirm: make(chan confirmation)}
	data, err := f.opts.Read(path)
	if err != nil {
		return nil, &RefusedError{Kind: Unreadable, Cause: err}
	}
	t, err := zone.Parse(data, path)
	if err != nil {
		return nil, &RefusedError{Kind: Invalid, Cause: err}
	}
	f.seen = sha256.Sum256(data)
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
	c := confirmation{digest: digest, done: make(chan error, 1)}
	select {
	case f.confirm <- c:
		return <-c.done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run follows the file until ctx is done, and returns ctx's error then. It is
// called once. Nothing that the file holds ends it.
func (f *File) Run(ctx context.Context) error {
	changes, stop, err := f.opts.Notify(f.path)
	if err != nil {
		f.opts.Log.Warn("topology file is not watched, only polled", "path", f.path, "poll", f.opts.Poll, "err", err)
	} else {
		defer stop()
	}
	f.check() // what changed between Open and the watch
	poll := time.NewTicker(f.opts.Poll)
	defer poll.Stop()
	// Settling starts at the first change and is not put off by later ones, so
	// that a file that changes all the time is read all the same.
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, open := <-changes:
			if !open {
				f.opts.Log.Warn("topology file is no longer watched, only polled", "path", f.path, "poll", f.opts.Poll)
				changes = nil
				continue
			}
			if settled == nil {
				settled = time.After(f.opts.Settle)
			}
		case <-settled:
			settled = nil
			f.check()
		case <-poll.C:
			f.check()
		case c := <-f.confirm:
			c.done <- f.confirmHeld(c.digest)
		}
	}
}

// check reads the file and applies it when it changed and may be applied.
func (f *File) check() {
	data, err := f.opts.Read(f.path)
	if err != nil {
		if f.fault != err.Error() {
			f.fault = err.Error()
			f.refuse(&RefusedError{Kind: Unreadable, Running: f.live.Current().Epoch, Cause: err})
		}
		return
	}
	readable := f.fault == ""
	f.fault = ""
	sum := sha256.Sum256(data)
	if sum == f.seen && readable {
		return
	}
	f.seen = sum
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
	f.opts.Log.Info("topology in force", "path", f.path, "epoch", next.Epoch.String())
}

func (f *File) refuse(r *RefusedError) {
	f.refusal.Store(r)
	f.opts.Log.Error("topology not applied", "path", f.path, "epoch", r.Epoch.String(), "running", r.Running.String(), "err", r)
	if f.opts.Refused != nil {
		f.opts.Refused(r)
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
