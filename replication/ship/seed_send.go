package ship

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// seedBuild is how many bytes of a snapshot a second a replica makes a store of, at
// least: it reads and writes each twice, on a disk that others use. 16 MB/s is a tenth
// of what a machine with one disk of 300 MB/s was measured to do.
const seedBuild = 16_000_000

// grace is how long a replica that was given a snapshot of a size may take to come
// back.
func (l *Limits) grace(size int64) time.Duration {
	return l.SeedGrace + time.Duration(float64(size)/seedBuild*float64(time.Second))
}

// seedHold is a replica that is given a snapshot, and keeps the log for it: while the
// snapshot is on its way, and then until it has come back, for a while.
type seedHold struct {
	begin record.Position // from where on the log is kept; the greatest position while that is not fixed
	until time.Time       // zero while the snapshot is on its way

	cancel context.CancelCauseFunc // ends the session
	ended  chan struct{}           // closed when it has given back what it held
	before *seedHold               // whose end it did not live to see, or nil; read after ended
}

// seed gives a replica the store's snapshot, and keeps the log from where the copy
// begins until the replica has come back for it. The position is fixed only once the
// snapshot is open: from then on nothing that it refers to is trimmed. A node has one
// snapshot open at a time.
func (l *Leader) seed(ctx context.Context, node zone.Node, stream wire.Stream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hold := &seedHold{begin: nothing, cancel: cancel, ended: make(chan struct{})}
	defer close(hold.ended)
	var g given
	err := l.take(ctx, node, hold)
	if err == nil {
		g, err = l.give(ctx, node, stream, hold)
	}
	l.mu.Lock()
	hold.until = time.Now().Add(l.o.Limits.grace(g.size))
	l.mu.Unlock()
	if cause := context.Cause(ctx); errors.Is(cause, errSuperseded) {
		return cause
	}
	if ctx.Err() == nil && !errors.Is(err, ErrOver) {
		l.tellGiven(node, g, err)
	}
	return err
}

// given is what a replica got of a snapshot; bytes.
type given struct{ size, sent int64 }

// tellGiven logs how a session ended in which a replica was given a snapshot. A replica
// that has got all of it ends the session when it has made a store of it, or has failed
// to: its own log says which, and it comes again.
func (l *Leader) tellGiven(node zone.Node, g given, err error) {
	if g.sent == g.size && g.size > 0 && !errors.Is(err, errStalled) {
		l.o.Logger.Info("replica has got the whole snapshot", "peer", string(node), "bytes", g.size)
		return
	}
	l.metrics.seedBroke()
	if missed, ok := l.broken.Allow(time.Now()); ok {
		l.o.Logger.Warn("replica did not get the snapshot; it asks again", "peer", string(node), "sent", g.sent, "bytes", g.size, "err", err, "suppressed", missed)
	}
}

// take makes hold the node's, once the sessions that the node had before have ended.
func (l *Leader) take(ctx context.Context, node zone.Node, hold *seedHold) error {
	l.mu.Lock()
	old, shipping := l.seeded[node], l.senders[node]
	l.seeded[node], hold.before = hold, old
	l.mu.Unlock()
	if shipping != nil {
		shipping.supersede()
	}
	err := old.end(ctx)
	if err == nil {
		hold.before = nil
	}
	return err
}

// end ends the session of a replica that is given a snapshot, and waits until it has
// given back what it held, and so have those before it: one that was superseded while it
// waited leaves that to its successor.
func (h *seedHold) end(ctx context.Context) error {
	if h == nil {
		return nil
	}
	h.cancel(errSuperseded)
	for ; h != nil; h = h.before {
		select {
		case <-h.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// give opens the snapshot and sends it.
func (l *Leader) give(ctx context.Context, node zone.Node, stream wire.Stream, hold *seedHold) (g given, err error) {
	snap, err := l.open(ctx, stream)
	if err != nil {
		return g, fmt.Errorf("ship: no snapshot for %s: %w", node, err)
	}
	defer func() { _ = snap.Close() }() // it was only read
	begin := l.o.Log.Begin()
	l.mu.Lock()
	hold.begin = begin
	need := l.needed(time.Now())
	l.mu.Unlock()
	l.o.Log.Retain(need)

	files := snap.Files()
	x := wire.Seed{
		Incarnation: l.o.Log.Incarnation(), Epoch: l.o.Term.Epoch, Lanes: uint8(l.o.Snapshots.Lanes()), Begin: begin,
		Lineage: upTo(l.o.Log.Lineage(), begin), Files: make([]wire.SeedFile, len(files)),
	}
	for i, f := range files {
		x.Files[i] = wire.SeedFile{Name: f.Name, Size: uint64(f.Size)}
		g.size += f.Size
	}
	l.o.Logger.Info("replica is given a snapshot", "peer", string(node), "begin", begin, "files", len(files), "bytes", g.size)
	l.metrics.seeded()
	if err := stream.Send(ctx, wire.Frame{Type: wire.TypeSeed, Payload: x.Append(nil)}); err != nil {
		return g, err
	}
	s := &seeder{l: l, stream: stream, snap: snap, wake: make(chan struct{}, 1)}
	err = s.run(ctx, files, l.o.Limits.grace(g.size))
	g.sent = int64(s.bytes)
	return g, err
}

// open opens the snapshot, and tells the replica meanwhile that it is heard: a large
// store may take its time.
func (l *Leader) open(ctx context.Context, stream wire.Stream) (snap Snapshot, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		snap, err = l.o.Snapshots.Snapshot(ctx)
	}()
	beat := time.NewTicker(l.o.Limits.Dial / 3)
	defer beat.Stop()
	var gone error
	for {
		select {
		case <-opened:
			if err == nil && gone != nil {
				return nil, errors.Join(gone, snap.Close())
			}
			return snap, err
		case <-beat.C:
			x := wire.Ship{Committed: l.o.Log.Committed()}
			if err := stream.Send(ctx, wire.Frame{Type: wire.TypeShip, Payload: x.Append(nil)}); err != nil {
				gone = err
				cancel()
				beat.Stop()
			}
		}
	}
}

// upTo returns the rows of a table that begin at or before a position.
func upTo(table []record.LineageStart, p record.Position) []record.LineageStart {
	n := slices.IndexFunc(table, func(r record.LineageStart) bool { return r.First > p })
	if n < 0 {
		return table
	}
	return table[:n]
}

var errStalled = errors.New("ship: the replica takes nothing of the snapshot that it is given")

// seeder sends the files of a snapshot.
type seeder struct {
	l      *Leader
	stream wire.Stream
	snap   Snapshot
	wake   chan struct{} // capacity 1: there is more credit
	credit atomic.Uint64
	bytes  uint64 // sent so far; only run's goroutine
}

// run sends the files and waits until the replica has installed them and ends the
// session, for a time at most.
func (s *seeder) run(ctx context.Context, files []File, grace time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(s.listen(ctx)) })
	err := s.send(ctx, files)
	if err == nil {
		installs := time.NewTimer(grace)
		defer installs.Stop()
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-installs.C:
			err = errStalled
		case <-s.l.done:
			err = ErrOver
		}
	}
	cancel(err)
	wg.Wait()
	return err
}

func (s *seeder) listen(ctx context.Context) error {
	return eachAck(ctx, s.stream, func(a wire.ShipAck) error {
		s.credit.Store(max(s.credit.Load(), a.Credit))
		signal(s.wake)
		return nil
	})
}

func (s *seeder) send(ctx context.Context, files []File) error {
	buf := make([]byte, s.l.o.Limits.Chunk)
	var payload []byte
	for i, f := range files {
		for off := int64(0); off < f.Size; {
			p := buf[:min(int64(len(buf)), f.Size-off)]
			if err := s.allowed(ctx, len(p)); err != nil {
				return err
			}
			if n, err := s.snap.ReadAt(i, p, off); n < len(p) {
				return fmt.Errorf("ship: read of snapshot file %s: %w", f.Name, err)
			}
			x := wire.Part{File: uint16(i), Offset: uint64(off), Data: p}
			payload = x.Append(payload[:0])
			if err := s.put(ctx, wire.Frame{Type: wire.TypePart, Payload: payload}); err != nil {
				return err
			}
			off += int64(len(p))
			s.bytes += uint64(len(p))
		}
	}
	return nil
}

// put sends a frame. A replica whose side of the connection takes nothing is given up
// as one that grants no credit.
func (s *seeder) put(ctx context.Context, f wire.Frame) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.l.o.Limits.SeedStall, errStalled)
	defer cancel()
	return causeOf(ctx, s.stream.Send(ctx, f))
}

// allowed waits until n more bytes may be sent: by the replica's credit and by the
// pace of catching up. A replica that grants none for long is given up.
func (s *seeder) allowed(ctx context.Context, n int) error {
	var stalled *time.Timer
	for last := s.credit.Load(); last < s.bytes+uint64(n); {
		if stalled == nil {
			stalled = time.NewTimer(s.l.o.Limits.SeedStall)
			defer stalled.Stop()
		}
		select {
		case <-s.wake:
			if now := s.credit.Load(); now > last {
				last = now
				stalled.Reset(s.l.o.Limits.SeedStall)
			}
		case <-stalled.C:
			return errStalled
		case <-s.l.done:
			return ErrOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return s.l.pace.take(ctx, n)
}
