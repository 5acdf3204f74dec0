package ship

import (
	"errors"
	"time"
)

// How soon a replica whose disk is full asks its master again: its log, its place and
// what stands on it stay meanwhile.
const (
	fullFirst = time.Second
	fullMost  = 10 * time.Second
)

// untilSpace is the wait before the attempt after n sessions in a row that ended since
// the disk is full: doubling, half of it jitter.
func (f *Follower) untilSpace(n int) time.Duration {
	wait := min(fullFirst<<min(n, 10), fullMost)
	return wait/2 + time.Duration(f.o.Rand.Int64N(int64(wait/2)))
}

// restoring is what a failure to receive a store means for the session.
func restoring(op string, err error) error {
	if errors.Is(err, ErrFull) {
		return err
	}
	return &LogError{Op: op, Err: err}
}
