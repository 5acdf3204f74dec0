package acl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/mqrouter/mqrouter/policy"
	"github.com/mqrouter/mqrouter/zone/source"
)

// Options are the seams and times of a File. The zero value is useful: Read nil means
// the Read of this package.
type Options = source.FollowOptions

// File keeps what clients may do in step with a file.
type File struct {
	path     string
	log      *slog.Logger
	follower *source.Follower
	state    atomic.Pointer[state]
	fault    atomic.Pointer[string] // why the present content is not in force; nil when it is
}

// state is what is in force; changed is closed when something else is.
type state struct {
	access  *policy.Access
	changed chan struct{}
}

// Open reads the file, which has to be good at the start. Call Run to follow its
// changes.
func Open(path string, o Options) (*File, error) {
	if o.Read == nil {
		o.Read = Read
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Read = rested(o.Read)
	f := &File{path: path, log: o.Log}
	f.follower = source.NewFollower(path, o, f.judge)
	data, err := f.follower.Open()
	if err != nil {
		return nil, err
	}
	a, err := policy.ParseAccess(data, path)
	if err != nil {
		return nil, err
	}
	f.state.Store(&state{a, make(chan struct{})})
	return f, nil
}

// Watch returns what is in force, and a channel that is closed when something else
// is. It does not block.
func (f *File) Watch() (*policy.Access, <-chan struct{}) {
	s := f.state.Load()
	return s.access, s.changed
}

// Problem says why the present content of the file is not in force; empty when it is.
func (f *File) Problem() string {
	if p := f.fault.Load(); p != nil {
		return *p
	}
	return ""
}

// Run follows the file until ctx is done, and returns nil then. Nothing that the
// file holds ends it.
func (f *File) Run(ctx context.Context) error {
	f.follower.Run(ctx)
	return nil
}

// judge puts the content of the file in force if it is good.
func (f *File) judge(data []byte, err error) {
	var a *policy.Access
	if err == nil {
		a, err = policy.ParseAccess(data, f.path)
	}
	if err != nil {
		text := err.Error()
		if was := f.fault.Swap(&text); was == nil || *was != text {
			f.log.Error("access file is not in force, the last good one is", "path", f.path, "err", err)
		}
		return
	}
	f.fault.Store(nil)
	old := f.state.Swap(&state{a, make(chan struct{})})
	close(old.changed)
	f.log.Info("access file in force", "path", f.path, "users", len(a.Users()))
}

// ModeError says that others may read or change a file with secrets.
type ModeError struct {
	Path string
	Mode fs.FileMode
}

// Error says what to do.
func (e *ModeError) Error() string {
	return fmt.Sprintf("%s has mode %04o: it holds secrets, so others must not read it and its group must not write it: chmod 0640 or less", e.Path, e.Mode.Perm())
}

// errNoFile is for what a path leads to instead.
var errNoFile = errors.New("it is no regular file")

// Read returns the content of an access file of which others can read nothing. The
// error is a *ModeError or one of the file system.
func Read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("access file: %w", err)
	}
	if !info.Mode().IsRegular() { // a pipe would block
		return nil, fmt.Errorf("access file: %s: %w", path, errNoFile)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("access file: %w", err)
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil { // of what is read
		return nil, fmt.Errorf("access file: %w", err)
	}
	if info.Mode().Perm()&0o027 != 0 {
		return nil, &ModeError{path, info.Mode()}
	}
	data, err := io.ReadAll(io.LimitReader(file, policy.MaxAccessBytes+1))
	if err != nil {
		return nil, fmt.Errorf("access file: %w", err)
	}
	return data, nil
}
