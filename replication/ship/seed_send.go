package ship

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// seed gives a replica the store's snapshot, and keeps the log from where the copy
// begins until the replica has come back for it. The position is fixed only once the
// snapshot is open: from then on nothing that it refers to is trimmed.
func (l *Leader) seed(ctx context.Context, node zone.Node, stream wire.Stream) error {
	snap, err := l.o.Snapshots.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("ship: no snapshot for %s: %w", node, err)
	}
	defer func() { _ = snap.Close() }() // it was only read
	begin := l.o.Log.Begin()
	hold := &seedHold{begin: begin}
	l.mu.Lock()
	l.seeded[node] = hold
	need := l.needed(time.Now())
	l.mu.Unlock()
	l.o.Log.Retain(need)
	defer func() {
		l.mu.Lock()
		hold.until = time.Now().Add(l.o.Limits.SeedGrace)
		l.mu.Unlock()
	}()

	files := snap.Files()
	x := wire.Seed{
		Incarnation: l.o.Log.Incarnation(), Epoch: l.o.Term.Epoch, Lanes: uint8(l.o.Snapshots.Lanes()), Begin: begin,
		Lineage: upTo(l.o.Log.Lineage(), begin), Files: make([]wire.SeedFile, len(files)),
	}
	for i, f := range files {
		x.Files[i] = wire.SeedFile{Name: f.Name, Size: uint64(f.Size)}
	}
	l.o.Logger.Info("replica is given a snapshot", "peer", string(node), "begin", begin, "files", len(files))
	l.metrics.seeded()
	if err := stream.Send(ctx, wire.Frame{Type: wire.TypeSeed, Payload: x.Append(nil)}); err != nil {
		return err
	}
	s := &seeder{l: l, stream: stream, snap: snap, wake: make(chan struct{}, 1)}
	return s.run(ctx, files)
}

// upTo returns the rows of a table that begin at or before a position.
func upTo(table []record.LineageStart, p record.Position) []record.LineageStart {
	n := slices.IndexFunc(table, func(r record.LineageStart) bool { return r.First > p })
	if n < 0 {
		return table
	}
	return table[:n]
}

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
// session.
func (s *seeder) run(ctx context.Context, files []File) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(s.listen(ctx)) })
	err := s.send(ctx, files)
	if err == nil {
		select {
		case <-ctx.Done():
			err = context.Cause(ctx)
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
			if err := s.stream.Send(ctx, wire.Frame{Type: wire.TypePart, Payload: payload}); err != nil {
				return err
			}
			off += int64(len(p))
			s.bytes += uint64(len(p))
		}
	}
	return nil
}

// allowed waits until n more bytes may be sent: by the replica's credit and by the
// pace of catching up.
func (s *seeder) allowed(ctx context.Context, n int) error {
	for s.credit.Load() < s.bytes+uint64(n) {
		select {
		case <-s.wake:
		case <-s.l.done:
			return ErrOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return s.l.pace.take(ctx, n)
}
