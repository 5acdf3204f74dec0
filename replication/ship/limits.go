package ship

import (
	"errors"
	"fmt"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
)

// Limits bounds what shipping holds, sends and waits for. The zero value of each
// field stands for the default named beside it.
type Limits struct {
	// Chunk is about how many bytes of the log one frame carries to a replica that is
	// Near; one that is not gets eight times as many, up to 4 MiB, since each costs it a
	// write and may cost it a sync. A stretch of one entry that is larger still is
	// split. Default 256 KiB: 2 ms on a link of 1 Gbit/s.
	Chunk int
	// Window is how many bytes may be on their way to a replica beyond what it has
	// taken in: what the replica holds in memory, at most. Default 8 MiB (800 MB/s
	// over 10 ms).
	Window int64
	// SyncBytes is how much a replica writes at most before it syncs. Default 4 MiB.
	SyncBytes int64
	// CatchUp is how many bytes a second all replicas together are sent of what lies
	// more than Near behind the end of the log, so that reading old segments leaves
	// the disk and the processor to publishes. Default 256 MiB.
	CatchUp int64
	// Near is how far behind the end of the log a replica is not only catching up any
	// more, in bytes: it is sent small stretches, at no pace. Default 4 MiB.
	Near record.Position
	// Close is how much of the log a replica that is Near may not have made durable, in
	// bytes, when it becomes semi-sync: acknowledgements wait for that. One that stays
	// Near for Semi without coming so close becomes it, too. Default 256 KiB.
	Close record.Position

	// Beat is how often master and replica tell the other that they live. Default
	// 100 ms.
	Beat time.Duration
	// CommitDelay is how long a replica of an idle group waits to be told of a new
	// commit position. Default 10 ms.
	CommitDelay time.Duration
	// Semi bounds how long acknowledgements wait for a replica that is not in sync
	// yet. Default 1 s.
	Semi time.Duration
	// Join is how long a new master waits for a member of the in-sync set that has not
	// come yet. Default 500 ms.
	Join time.Duration
	// Gone is how long a member of the in-sync set may be without a session. Default
	// 300 ms.
	Gone time.Duration
	// Silent is how long one with a session may say nothing. Default 750 ms.
	Silent time.Duration
	// Mute is how long one may say nothing before its session is ended. Until then its
	// machine may be frozen and go on where it was; nobody waits for it, and what it holds
	// here is bounded. A line that is dead at the other end only says nothing for ever.
	// Default 30 s.
	Mute time.Duration
	// Lag is how long one may take to make durable what the master has written.
	// Default 1 s.
	Lag time.Duration
	// HoldOff is how long a replica stays async after it was taken out of the set for
	// being slow; it doubles with each time up to MaxHoldOff, until the replica has
	// stayed in sync for MaxHoldOff. Defaults 1 s and 1 min.
	HoldOff, MaxHoldOff time.Duration

	// Ask bounds one request to the coordinator, AskAgain the wait after one that
	// failed. Defaults 1 s and 100 ms.
	Ask, AskAgain time.Duration
	// Dead is how long a replica waits for a sign of life of its master before it
	// dials again. Default 1 s.
	Dead time.Duration
	// Dial bounds one attempt to reach the master, greeting and Follow included, and
	// then how long the master may say nothing before it answers. Default 3 s.
	Dial time.Duration
	// MaxBackoff bounds the wait between two attempts, full jitter included. Default
	// 250 ms.
	MaxBackoff time.Duration
	// SeedGrace is how long the master keeps its log for a replica that was given a
	// snapshot and has not come back, besides the time that it needs to make a store
	// of the bytes (see seedBuild). Default 1 min.
	SeedGrace time.Duration
	// SeedStall is how long a replica that is given a snapshot may take nothing: the
	// master keeps its log and its snapshots meanwhile. Default 30 s.
	SeedStall time.Duration
}

func orDefault[T int | int64 | record.Position | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// WithDefaults returns l with its zero fields filled.
func (l Limits) WithDefaults() Limits {
	orDefault(&l.Chunk, 256<<10)
	orDefault(&l.Window, 8<<20)
	orDefault(&l.SyncBytes, 4<<20)
	orDefault(&l.CatchUp, 256<<20)
	orDefault(&l.Near, 4<<20)
	orDefault(&l.Close, 256<<10)
	orDefault(&l.Beat, 100*time.Millisecond)
	orDefault(&l.CommitDelay, 10*time.Millisecond)
	orDefault(&l.Semi, time.Second)
	orDefault(&l.Join, 500*time.Millisecond)
	orDefault(&l.Gone, 300*time.Millisecond)
	orDefault(&l.Silent, 750*time.Millisecond)
	orDefault(&l.Mute, 30*time.Second)
	orDefault(&l.Lag, time.Second)
	orDefault(&l.HoldOff, time.Second)
	orDefault(&l.MaxHoldOff, time.Minute)
	orDefault(&l.Ask, time.Second)
	orDefault(&l.AskAgain, 100*time.Millisecond)
	orDefault(&l.Dead, time.Second)
	orDefault(&l.Dial, 3*time.Second)
	orDefault(&l.MaxBackoff, 250*time.Millisecond)
	orDefault(&l.SeedGrace, time.Minute)
	orDefault(&l.SeedStall, 30*time.Second)
	return l
}

// bulk is how many bytes of the log one frame carries at most.
func (l *Limits) bulk() int { return min(8*l.Chunk, 4<<20) }

// Validate reports every fault, joined; defaults are filled first.
func (l Limits) Validate() error {
	l = l.WithDefaults()
	var errs []error
	if l.Chunk < 1<<10 || l.Chunk > 4<<20 {
		errs = append(errs, fmt.Errorf("ship: chunk of %d bytes: want 1 KiB to 4 MiB", l.Chunk))
	}
	if l.Window < int64(l.Chunk) || l.Window > 16<<20 {
		errs = append(errs, fmt.Errorf("ship: window of %d bytes: want a chunk to 16 MiB", l.Window))
	}
	if l.SyncBytes < 0 || l.CatchUp < 0 {
		errs = append(errs, errors.New("ship: a negative number of bytes"))
	}
	for _, d := range []time.Duration{l.Beat, l.CommitDelay, l.Semi, l.Join, l.Gone, l.Lag, l.HoldOff, l.MaxHoldOff, l.Ask, l.AskAgain, l.Dial, l.MaxBackoff, l.SeedGrace, l.SeedStall} {
		if d < 0 {
			errs = append(errs, errors.New("ship: a negative time"))
		}
	}
	if l.Silent < 3*l.Beat || l.Dead < 3*l.Beat {
		errs = append(errs, fmt.Errorf("ship: silence of %s and %s: want three beats of %s at least", l.Silent, l.Dead, l.Beat))
	}
	if l.Mute < l.Silent {
		errs = append(errs, fmt.Errorf("ship: sessions end after a silence of %s, before one of %s is told", l.Mute, l.Silent))
	}
	return errors.Join(errs...)
}
