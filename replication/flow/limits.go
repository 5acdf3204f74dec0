package flow

import (
	"math/bits"
	"time"

	"github.com/mqrouter/mqrouter/replication/wire"
)

// Limits bounds what flows hold and wait for. The zero value of each field
// stands for the default named beside it. Origin and destination may differ.
type Limits struct {
	// BatchNumbers is the fixed number boundary: a batch never crosses a
	// multiple of it, and for records so large that fewer fit BatchBytes, of a
	// smaller power of two. A power of two, else rounded down; at most
	// wire.MaxCount. Default 512.
	BatchNumbers int
	// BatchBytes is where a batch is cut by its uncompressed data. A batch of
	// one record may be larger. Default 512 KiB: 4 ms on a link of 1 Gbit/s.
	BatchBytes int
	// InFlight is the number of unacknowledged batches, full ones apart, from which
	// the next waits a millisecond for more records, of whatever class. From four
	// times as many on, only full ones are sent. Default 256.
	InFlight int
	// CacheBytes bounds the compressed batches kept for the other legs of a
	// channel. Default 16 MiB.
	CacheBytes int
	// MemoryBytes bounds the data of all flows that a destination has granted
	// credit for or holds. Default 128 MiB.
	MemoryBytes int64
	// MinWindow is the credit that every session gets, MaxWindow what one can
	// grow to. Defaults 256 KiB and 16 MiB (100 MB/s over 160 ms).
	MinWindow, MaxWindow int64
	// NumberWindow is how many numbers may be unsettled. Default 65,536.
	NumberWindow int

	// OpenTimeout covers dial, TLS, greeting, Open and Accept. Default 3 s.
	OpenTimeout time.Duration
	// StallTimeout is how long a session with backlog may go without progress
	// unless the destination says that it is held. Default 5 s.
	StallTimeout time.Duration
	// ProbeEvery is the interval of probes while there is backlog, and of
	// repeated credit. Default 500 ms.
	ProbeEvery time.Duration
	// IdleTimeout is when a session without backlog closes. Default 30 s.
	IdleTimeout time.Duration
	// MaxBackoff bounds the wait between two attempts to open a session, full
	// jitter included. Default and maximum 500 ms.
	MaxBackoff time.Duration
	// VerifyEvery is about how often the destination of a settled leg is asked
	// whether it still has what it settled. Default 1 min.
	VerifyEvery time.Duration
	// HeldRetry is how often a held destination is asked again. Default 100 ms.
	HeldRetry time.Duration
	// RelayHops is how many hops a landing may have behind it and still be served to
	// another city: the hop limit (policy.HopLimit) less the crossing to that city and
	// the step to a zone there. Whoever asks for one that has more goes on to another
	// holder, at last to the origin. Default 2.
	RelayHops int
	// RelayStall is how long a holder may move nothing while its origin has more,
	// before the next one is asked. Default 2 s.
	RelayStall time.Duration
	// RelayRest is how long the declared holder rests after it failed; it doubles
	// with each failure up to RelayRestMax. Defaults 5 s and 2 min.
	RelayRest, RelayRestMax time.Duration
	// sampleBytes is what a dictionary is made of, and keepDictionaries how many of
	// them a destination keeps for a session, negative = it takes none. Only tests set
	// these. Defaults 64 KiB, which is 130 records of 500 bytes, and maxTopics.
	sampleBytes, keepDictionaries int
	// SettleWait is how long a new session waits for the landings of the one
	// that it supersedes. Default 2 s.
	SettleWait time.Duration
}

// maxData is the largest data of one batch: the frame's payload less room for
// the fields around it.
const maxData = wire.MaxPayload - 64<<10

func or[T int | int64 | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// withDefaults returns the limits with every zero field filled in.
func (l Limits) withDefaults() Limits {
	l.BatchNumbers = 1 << (bits.Len(uint(min(or(l.BatchNumbers, 512), wire.MaxCount))) - 1)
	l.BatchBytes = min(or(l.BatchBytes, 512<<10), maxData)
	l.InFlight = or(l.InFlight, 256)
	l.CacheBytes = or(l.CacheBytes, 16<<20)
	l.MemoryBytes = or(l.MemoryBytes, 128<<20)
	l.MinWindow = min(or(l.MinWindow, 256<<10), l.MemoryBytes)
	l.MaxWindow = max(or(l.MaxWindow, 16<<20), l.MinWindow)
	l.NumberWindow = or(l.NumberWindow, 1<<16)
	l.OpenTimeout = or(l.OpenTimeout, 3*time.Second)
	l.StallTimeout = or(l.StallTimeout, 5*time.Second)
	l.ProbeEvery = or(l.ProbeEvery, 500*time.Millisecond)
	l.IdleTimeout = or(l.IdleTimeout, 30*time.Second)
	l.MaxBackoff = min(or(l.MaxBackoff, 500*time.Millisecond), 500*time.Millisecond)
	l.VerifyEvery = or(l.VerifyEvery, time.Minute)
	l.HeldRetry = or(l.HeldRetry, 100*time.Millisecond)
	l.RelayHops = or(l.RelayHops, 2)
	l.RelayStall = or(l.RelayStall, 2*time.Second)
	l.RelayRest = or(l.RelayRest, 5*time.Second)
	l.RelayRestMax = max(or(l.RelayRestMax, 2*time.Minute), l.RelayRest)
	l.sampleBytes = or(l.sampleBytes, 64<<10)
	if l.keepDictionaries == 0 {
		l.keepDictionaries = maxTopics
	}
	l.SettleWait = or(l.SettleWait, 2*time.Second)
	return l
}
