package disk

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ignoringEINTR repeats fn while a signal (the runtime preempts by signals)
// interrupts it.
func ignoringEINTR(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// withFD runs fn on the descriptor without letting it be closed meanwhile.
func withFD(f *os.File, op string, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) {
		inner = ignoringEINTR(func() error { return fn(int(fd)) })
	}); err != nil { // the only cause is that the file is closed
		return &os.PathError{Op: op, Path: f.Name(), Err: os.ErrClosed}
	}
	if inner != nil {
		return &os.PathError{Op: op, Path: f.Name(), Err: inner}
	}
	return nil
}

func dataSync(f *os.File) error { return withFD(f, "fdatasync", syscall.Fdatasync) }

func fullSync(f *os.File) error { return f.Sync() }

// preallocate reserves blocks. On file systems without fallocate the file is
// only made longer, and a full disk shows at the write.
func preallocate(f *os.File, have, size int64) error {
	err := withFD(f, "fallocate", func(fd int) error {
		return syscall.Fallocate(fd, 0, have, size-have)
	})
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return f.Truncate(size)
	}
	return err
}

// forget is a hint, and fails on file systems that take none.
func forget(f *os.File, off, n int64) {
	_ = withFD(f, "fadvise", func(fd int) error { return unix.Fadvise(fd, off, n, unix.FADV_DONTNEED) })
}
