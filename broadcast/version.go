package broadcast

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"time"
)

// RankLen is the length of a Rank in bytes.
const RankLen = 20 + 1 + 20

// Rank orders the changes of one key: of two, the one with the greater rank
// wins, in whatever order they arrive. It is a text of decimal digits, so that
// it is compared as text in every language (a Lua or JavaScript number would
// lose the low bits of a version):
//
//	version, 20 digits | 0 = set, 1 = delete | checksum of the value, 20 digits
//
// The checksum is the first eight bytes of SHA-256, big endian; 0 for a delete.
// Two changes with the same rank are the same change, so equal versions cannot
// diverge.
type Rank string

// Rank returns the rank of a set or delete.
func (c *Change) Rank() Rank {
	b := make([]byte, 0, RankLen)
	b = appendPadded(b, c.Version)
	if c.Op == OpDelete {
		return Rank(appendPadded(append(b, '1'), 0))
	}
	sum := sha256.Sum256(c.Value)
	return Rank(appendPadded(append(b, '0'), binary.BigEndian.Uint64(sum[:])))
}

// Padded returns a number as 20 decimal digits.
func Padded(n uint64) string { return string(appendPadded(nil, n)) }

func appendPadded(dst []byte, n uint64) []byte {
	var buf [20]byte
	digits := strconv.AppendUint(buf[:0], n, 10)
	for range 20 - len(digits) {
		dst = append(dst, '0')
	}
	return append(dst, digits...)
}

// Valid reports whether r has the form of a rank.
func (r Rank) Valid() bool {
	if len(r) != RankLen || r[20] > '1' {
		return false
	}
	for i := range len(r) {
		if r[i] < '0' || r[i] > '9' {
			return false
		}
	}
	_, err := strconv.ParseUint(string(r[:20]), 10, 64)
	return err == nil
}

// Version returns the version; 0 when r is not valid.
func (r Rank) Version() uint64 {
	if !r.Valid() {
		return 0
	}
	n, err := strconv.ParseUint(string(r[:20]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Deleted reports whether r is the rank of a delete.
func (r Rank) Deleted() bool { return len(r) == RankLen && r[20] == '1' }

// Verdict is what the fence says of a change.
type Verdict uint8

// The verdicts.
const (
	Superseded    Verdict = iota // what is stored is newer, or the same
	Applied                      // the change is stored
	AppliedAsGone                // the fence moves, and the key has no value
)

// Stored is what an applier knows of a key.
type Stored struct {
	Rank       Rank   // empty: nothing
	Generation uint64 // greatest version of a flush-prefix that covers the key; 0 = none
}

// Fence decides what a set or delete does to a key. It is the one definition
// that the appliers follow:
//
//   - the greatest rank wins;
//   - a change that is not newer than the generation of its namespace loses;
//   - a change older than the horizon with nothing stored is a delete: what was
//     stored may have been a tombstone that has been forgotten;
//   - a set whose time to live is over moves the fence and leaves no value.
func Fence(have Stored, rank Rank, op Op, unknownBefore, expires time.Time, stored, now time.Time) Verdict {
	switch {
	case rank.Version() <= have.Generation:
		return Superseded
	case have.Rank >= rank:
		return Superseded
	case op == OpDelete:
		return AppliedAsGone
	case have.Rank == "" && stored.Before(unknownBefore):
		return AppliedAsGone
	case !expires.IsZero() && !expires.After(now):
		return AppliedAsGone
	}
	return Applied
}
