package source

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"time"
)

// FollowOptions are the seams and times of a Follower.
type FollowOptions struct {
	// Poll is how often the file is read although nothing told of a change:
	// network file systems tell nothing. Zero means 10 s.
	Poll time.Duration
	// Settle is how long a change rests before the file is read, so that a
	// half-written file is seldom seen. Zero means 100 ms.
	Settle time.Duration
	// Read returns the content of the file. It is needed.
	Read func(path string) ([]byte, error)
	// Notify watches the file: the channel gets a value after changes (it may
	// coalesce them, and tell of changes that are none); stop ends the watch
	// and waits for its goroutines. Zero means Notify, which is fsnotify.
	Notify func(path string) (changes <-chan struct{}, stop func(), err error)
	Log    *slog.Logger // nil discards
}

// Follower keeps somebody in step with a file. Its first content is read by Open; Run
// follows its changes.
type Follower struct {
	path  string
	o     FollowOptions
	judge func(data []byte, err error)
	do    chan func() // unbuffered: Run does it

	// Only Run, and Open before it.
	seen  [sha256.Size]byte // of the content that was judged last
	fault string            // the read error that was told last; empty after a good read
}

// NewFollower returns a Follower of the file at path. Run calls judge with the content
// when it is another than before, or can be read again, and with the error when the
// file cannot be read, once for each text. judge must not block.
func NewFollower(path string, o FollowOptions, judge func(data []byte, err error)) *Follower {
	if o.Poll <= 0 {
		o.Poll = 10 * time.Second
	}
	if o.Settle <= 0 {
		o.Settle = 100 * time.Millisecond
	}
	if o.Notify == nil {
		o.Notify = Notify
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Follower{path: path, o: o, judge: judge, do: make(chan func())}
}

// Open reads the file for the first time: the content counts as judged. It is called
// before Run.
func (f *Follower) Open() ([]byte, error) {
	data, err := f.o.Read(f.path)
	if err == nil {
		f.seen = sha256.Sum256(data)
	}
	return data, err
}

// Do has Run call fn between two looks at the file. It blocks until Run takes it or ctx
// is done, whose error it returns then.
func (f *Follower) Do(ctx context.Context, fn func()) error {
	select {
	case f.do <- fn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run follows the file until ctx is done. It is called once. Nothing that the file
// holds ends it.
func (f *Follower) Run(ctx context.Context) {
	changes, stop, err := f.o.Notify(f.path)
	if err != nil {
		f.o.Log.Warn("file is not watched, only polled", "path", f.path, "poll", f.o.Poll, "err", err)
	} else {
		defer stop()
	}
	f.look() // what changed between Open and the watch
	poll := time.NewTicker(f.o.Poll)
	defer poll.Stop()
	// Settling starts at the first change and is not put off by later ones, so
	// that a file that changes all the time is read all the same.
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open {
				f.o.Log.Warn("file is no longer watched, only polled", "path", f.path, "poll", f.o.Poll)
				changes = nil
			} else if settled == nil {
				settled = time.After(f.o.Settle)
			}
		case <-settled:
			settled = nil
			f.look()
		case <-poll.C:
			f.look()
		case fn := <-f.do:
			fn()
		}
	}
}

// look reads the file and has it judged when there is something new to say.
func (f *Follower) look() {
	data, err := f.o.Read(f.path)
	if err != nil {
		if text := err.Error(); f.fault != text {
			f.fault = text
			f.judge(nil, err)
		}
		return
	}
	sum := sha256.Sum256(data)
	if sum == f.seen && f.fault == "" {
		return
	}
	f.seen, f.fault = sum, ""
	f.judge(data, nil)
}
