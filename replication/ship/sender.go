package ship

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// sender is a session of a replica at its master.
type sender struct {
	l      *Leader
	node   zone.Node
	id     uint64
	stream wire.Stream
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1: there may be something to send, or leave to

	taken  atomic.Bool   // a newer session has taken over
	mute   atomic.Bool   // the replica was silent for too long
	sent   atomic.Uint64 // position up to which the replica was sent the log
	credit atomic.Uint64 // bytes that may be sent from the session's beginning

	// Only run's goroutine.
	pos   record.Position // next to be sent
	bytes uint64          // sent so far
	told  record.Position // commit position last told
	buf   []byte          // head of a Ship, then the stretch
	piece []byte          // the same for a later part of a large stretch
	began time.Time       // when the replica was last told where the log begins
}

func newSender(l *Leader, cancel context.CancelFunc, node zone.Node, stream wire.Stream, from record.Position) *sender {
	s := &sender{l: l, node: node, stream: stream, cancel: cancel, wake: make(chan struct{}, 1), pos: from}
	s.sent.Store(uint64(from))
	return s
}

func (s *sender) supersede() {
	s.taken.Store(true)
	s.cancel()
}

// giveUp ends the session of a replica that says nothing any more.
func (s *sender) giveUp() {
	s.mute.Store(true)
	s.cancel()
}

// run ships until the session ends.
func (s *sender) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(s.listen(ctx)) })
	stop := s.l.o.Log.Notify(s.wake)
	err := s.ship(ctx)
	stop()
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
		err = cause // what ended the listener, not that it did
	}
	cancel(err)
	wg.Wait()
	switch {
	case s.taken.Load():
		return errSuperseded
	case s.mute.Load():
		return errMute
	}
	return err
}

// listen takes the replica's acknowledgements.
func (s *sender) listen(ctx context.Context) error {
	return eachAck(ctx, s.stream, func(a wire.ShipAck) error {
		if uint64(a.Written) > s.sent.Load() {
			return breach("a replica acknowledged what it was not sent")
		}
		s.l.acked(s, a.Written, a.Synced)
		if a.Credit > s.credit.Load() {
			s.credit.Store(a.Credit)
			signal(s.wake)
		}
		return nil
	})
}

// ship sends what there is, and otherwise waits.
func (s *sender) ship(ctx context.Context) error {
	timer := time.NewTimer(s.l.o.Limits.Beat)
	defer timer.Stop()
	last := time.Now()
	for {
		n, err := s.next(ctx)
		if err != nil {
			return err
		}
		if n > 0 {
			if last = time.Now(); last.Sub(s.began) > beginEvery { // it is busy, and yet is to hear what may be trimmed
				if err := s.beat(ctx); err != nil {
					return err
				}
			}
			continue
		}
		committed := s.l.o.Log.Committed()
		wait := s.l.o.Limits.Beat
		if committed > s.told {
			wait = s.l.o.Limits.CommitDelay
		}
		if wait -= time.Since(last); wait <= 0 {
			if err := s.beat(ctx); err != nil {
				return err
			}
			last = time.Now()
			continue
		}
		timer.Reset(wait)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-s.l.done:
			return ErrOver
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// beginEvery is how long a replica may go without hearing where its master's log begins.
const beginEvery = 10 * time.Second

// beat says that the master lives, what is committed, and where its log begins.
func (s *sender) beat(ctx context.Context) error {
	s.told = s.l.o.Log.Committed()
	s.began = time.Now()
	x := wire.Ship{Committed: s.told, From: s.pos, Next: s.pos, Begin: s.l.o.Log.Begin()}
	s.buf = x.Append(s.buf[:0])
	return s.stream.Send(ctx, wire.Frame{Type: wire.TypeShip, Payload: s.buf})
}

// next sends the next stretch as far as there is credit, and returns its bytes; 0
// when there is none to send.
func (s *sender) next(ctx context.Context) (int, error) {
	o := &s.l.o
	end := o.Log.End()
	left := int64(s.credit.Load() - s.bytes)
	if end <= s.pos || left <= 0 {
		return 0, nil
	}
	chunk := o.Limits.Chunk
	if end-s.pos > o.Limits.Near {
		chunk = o.Limits.bulk()
	}
	limit := int(min(int64(chunk), left))
	if cap(s.buf) < wire.ShipHead+limit {
		s.buf = make([]byte, wire.ShipHead, wire.ShipHead+chunk)
	}
	st, err := o.Log.ReadRaw(ctx, s.pos, limit, s.buf[wire.ShipHead:wire.ShipHead])
	if err != nil || len(st.Frames) == 0 {
		return 0, err
	}
	if chunk > o.Limits.Chunk { // what was read counts, which may be far less than was asked for
		if err := s.l.pace.take(ctx, len(st.Frames)); err != nil {
			return 0, err
		}
	}
	return len(st.Frames), s.send(ctx, st)
}

// send sends a stretch, in parts when it is too large for a frame.
func (s *sender) send(ctx context.Context, st Stretch) error {
	chunk := s.l.o.Limits.bulk()
	// The replica may acknowledge it before Send returns.
	s.sent.Store(uint64(st.Next))
	s.told = s.l.o.Log.Committed()
	x := wire.Ship{Committed: s.told, Base: st.Base, From: st.From, Next: st.Next, Size: uint32(len(st.Frames))}
	for off := 0; off < len(st.Frames); {
		data := st.Frames[off:min(off+chunk, len(st.Frames))]
		if err := s.allowed(ctx); err != nil {
			return err
		}
		payload := s.framed(st.Frames, off, len(data))
		x.Offset = uint32(off)
		x.PutHead(payload, len(data))
		if err := s.stream.Send(ctx, wire.Frame{Type: wire.TypeShip, Payload: payload}); err != nil {
			return err
		}
		off += len(data)
		s.bytes += uint64(len(data))
		s.l.metrics.shipped(len(data))
	}
	s.pos = st.Next
	return nil
}

// framed returns a payload with room for the head and the n bytes of frames from an
// offset on: where they stand, if they stand behind the head's room already.
func (s *sender) framed(frames []byte, off, n int) []byte {
	if room := s.buf[:cap(s.buf)]; off == 0 && len(room) > wire.ShipHead && &room[wire.ShipHead] == &frames[0] {
		return room[:wire.ShipHead+n]
	}
	if cap(s.piece) < wire.ShipHead {
		s.piece = make([]byte, 0, wire.ShipHead+s.l.o.Limits.Chunk)
	}
	s.piece = append(s.piece[:wire.ShipHead], frames[off:off+n]...)
	return s.piece
}

// allowed waits until the replica takes more. The rest of a large stretch keeps no
// beat meanwhile: the replica that takes nothing hears nothing.
func (s *sender) allowed(ctx context.Context) error {
	for s.credit.Load() <= s.bytes {
		select {
		case <-s.wake:
		case <-s.l.done:
			return ErrOver
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
