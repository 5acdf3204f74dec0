//go:build unix

package cli

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// keysWork says that readKeys reads keys here.
const keysWork = true

// keyWait is how long readKeys waits before it looks whether ctx has ended, in
// microseconds.
const keyWait = 100_000

// readKeys sends what is typed until ctx ends or the terminal is gone. It never
// blocks in a read, so that it ends in time and takes no key of what comes after.
func readKeys(ctx context.Context, in *os.File, out chan<- byte) {
	fd := int(in.Fd())
	var b [64]byte
	for ctx.Err() == nil {
		var set unix.FdSet
		set.Zero()
		set.Set(fd)
		n, err := unix.Select(fd+1, &set, nil, nil, &unix.Timeval{Usec: keyWait})
		if errors.Is(err, unix.EINTR) || (err == nil && n == 0) {
			continue
		}
		if err != nil {
			return
		}
		if n, err = unix.Read(fd, b[:]); err != nil || n == 0 {
			return
		}
		for _, k := range b[:n] {
			select {
			case out <- k:
			default:
			}
		}
	}
}
