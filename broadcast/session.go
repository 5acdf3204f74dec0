package broadcast

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
)

// RefusedError says that the landing group does not serve the reader.
type RefusedError struct {
	Code wire.Code
	Text string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("broadcast: the landing group refuses: %s: %s", e.Code, e.Text)
}

// ProtocolError says that the landing group sent what does not belong there.
type ProtocolError struct{ What string }

// Error implements error.
func (e *ProtocolError) Error() string { return "broadcast: from the landing group: " + e.What }

// errRegressed ends a session: the cache fell back and is refilled.
var errRegressed = errors.New("broadcast: the cache fell back; it is refilled")

// landing is one landing, taken apart.
type landing struct {
	offset   uint64
	size     int             // bytes that count against the credit
	envelope record.Envelope // Number 0: published in the landing group itself
	change   Change
	absent   bool           // numbers that did not land: there is no record
	rejected error          // the message is no change
	damaged  bool           // rejected says why the landing cannot be read
	id       string         // message id, of a rejected or traced one
	traced   *tracedLanding // nil unless the message asks for a span
}

// session reads landings once, from wherever the cache stands, until something
// fails.
func (s *Sync) session(ctx context.Context) error {
	s.board.state(StateConnecting)
	var st Progress
	err := s.patiently(ctx, func() (err error) { st, err = s.o.Applier.Load(ctx, s.o.Topic); return err })
	if err != nil {
		return err
	}
	s.place, s.marks = st.Place, NewMarks(st.Marks)
	s.board.stands(s.place, s.marks)
	stream, err := s.o.Dial(ctx)
	if err != nil {
		return err
	}
	defer stream.Close(wire.CodeOK) //nolint:errcheck // the session is over whatever it says
	found, err := s.find(ctx, stream)
	if err != nil {
		return err
	}
	s.board.found(found)
	if err := s.enter(ctx, found); err != nil {
		return err
	}
	s.board.state(StateFollowing)
	s.log.Info("following the landings", "group", string(found.Group), "seq", found.Next, "head", found.Head)
	return s.follow(ctx, stream, found)
}

// find asks the landing group.
func (s *Sync) find(ctx context.Context, stream wire.Stream) (*wire.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	w := wire.Want{Subscription: s.o.Subscription, Topic: s.o.Topic}
	w.Incarnation, w.Offset = wanted(s.place)
	// No credit yet: it counts from the first offset, which the answer tells.
	if err := stream.Send(ctx, wire.Frame{Type: wire.TypeWant, Payload: w.Append(nil)}); err != nil {
		return nil, err
	}
	f, err := stream.Recv(ctx)
	if err != nil {
		return nil, err
	}
	switch f.Type {
	case wire.TypeFound:
		found, err := wire.ParseFound(f.Payload)
		if err == nil && found.Incarnation == 0 {
			err = &ProtocolError{"an incarnation of 0"}
		}
		return &found, err
	case wire.TypeRefuse:
		r, err := wire.ParseRefuse(f.Payload)
		if err != nil {
			return nil, err
		}
		return nil, &RefusedError{r.Code, r.Text}
	}
	return nil, &ProtocolError{fmt.Sprintf("%s in answer to want", f.Type)}
}

// enter tells what is missing and takes the cache to where the landings begin.
func (s *Sync) enter(ctx context.Context, f *wire.Found) error {
	b := &Batch{To: Place{Group: f.Group, Incarnation: f.Incarnation, Offset: f.Next}}
	if g, ok := begin(s.place, f, s.o.Exclusive); ok {
		if err := s.gap(ctx, g); err != nil {
			return err
		}
		// What is told now must not be told again as missing numbers.
		for _, m := range s.marks.List() {
			b.Drop = append(b.Drop, m.Flow)
		}
		s.marks = NewMarks(nil)
	}
	if s.place == b.To {
		return nil
	}
	return s.apply(ctx, b)
}

// follow applies what comes. It receives on another goroutine, which it joins.
func (s *Sync) follow(ctx context.Context, stream wire.Stream, found *wire.Found) error {
	recvCtx, cancel := context.WithCancel(ctx)
	in := make(chan []landing, 1)
	var recvErr error // written before in is closed
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(in)
		recvErr = s.receive(recvCtx, stream, found.Next, in)
	})
	defer func() {
		cancel()
		for range in { // the receiver may be about to hand over
		}
		wg.Wait()
	}()
	f := follower{Sync: s, stream: stream, next: found.Next}
	if err := f.grant(ctx); err != nil {
		return err
	}
	check := time.NewTicker(s.o.Check)
	defer check.Stop()
	for {
		select {
		case some, ok := <-in:
			if !ok {
				return recvErr
			}
			if err := f.take(ctx, some, in); err != nil {
				return err
			}
		case <-check.C:
			if err := s.check(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// receive takes frames apart and hands their landings over in order.
func (s *Sync) receive(ctx context.Context, stream wire.Stream, next uint64, in chan<- []landing) error {
	for {
		f, err := stream.Recv(ctx)
		if err != nil {
			return err
		}
		switch f.Type {
		case wire.TypeLanded:
		case wire.TypeDrain: // the broker is about to stop; the next session finds where it is
			continue
		case wire.TypeEnd:
			return &ProtocolError{"the end of the session"}
		default:
			return &ProtocolError{fmt.Sprintf("%s among landings", f.Type)}
		}
		some, err := parseLanded(f.Payload, next)
		if err != nil {
			return err
		}
		next += uint64(len(some))
		select {
		case in <- some:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func parseLanded(payload []byte, next uint64) ([]landing, error) {
	l, err := wire.ParseLanded(payload)
	if err != nil {
		return nil, err
	}
	switch {
	case l.Codec != wire.CodecNone:
		return nil, &ProtocolError{fmt.Sprintf("codec %d, which this version does not read", l.Codec)}
	case l.First != next:
		return nil, &ProtocolError{fmt.Sprintf("offset %d where %d is next", l.First, next)}
	}
	some := make([]landing, 0, l.Count)
	for range l.Count {
		env, rest, err := wire.NextItem(l.Data)
		if err != nil {
			return nil, err
		}
		rec, rest, err := wire.NextItem(rest)
		if err != nil {
			return nil, err
		}
		x := landing{offset: next, size: len(l.Data) - len(rest)}
		x.parse(env, rec)
		some = append(some, x)
		l.Data = rest
		next++
	}
	return some, nil
}

// parse takes envelope and record apart. What a client wrote can only make the
// landing a rejected one; one that cannot be read is a gap. Neither stops the
// stream.
func (l *landing) parse(env, rec []byte) {
	if err := l.open(env, rec); err != nil {
		l.rejected, l.damaged = err, true
	}
}

func (l *landing) open(env, rec []byte) error {
	if len(env) > 0 {
		if _, err := record.ParseEnvelope(env, &l.envelope); err != nil {
			l.envelope = record.Envelope{}
			return err
		}
		if l.envelope.Outcome != record.OutcomeLanded {
			l.absent = true
			return nil
		}
	}
	v, err := record.Parse(rec)
	if err != nil {
		return err
	}
	l.id = string(v.MessageID())
	if err := v.Verify(); err != nil {
		return err
	}
	if parent, ok := tracing.Sampled(v.TraceContext()); ok {
		l.traced = &tracedLanding{parent}
	}
	l.change, l.rejected = ParseRecord(v)
	return nil
}

// lost reports whether the landing stands for changes that this cache will not
// get, rather than for what it does not need.
func (l *landing) lost() bool {
	if !l.absent {
		return false
	}
	switch l.envelope.Outcome {
	case record.OutcomeSkipped: // a newer change of the key follows, or they are not for this city
		return false
	case record.OutcomeParked:
		return l.envelope.Reason != record.ReasonResidency
	}
	return true
}

// check notices an idle cache that fell back.
func (s *Sync) check(ctx context.Context) error {
	st, err := s.o.Applier.Load(ctx, s.o.Topic)
	if err != nil {
		s.board.cache(err)
		return nil
	}
	s.board.cache(nil)
	if sameSpot(st.Place, s.place) {
		return nil
	}
	return s.moved(ctx, st.Place)
}

func sameSpot(a, b Place) bool { return a.Incarnation == b.Incarnation && a.Offset == b.Offset }

// moved takes in that the cache stands elsewhere: ahead, since somebody else
// applies to it as well, or back, which begins a refill.
func (s *Sync) moved(ctx context.Context, at Place) error {
	if !s.place.Empty() && (at.Incarnation != s.place.Incarnation || at.Offset < s.place.Offset) {
		s.metrics.regression(ctx)
		s.board.regressed()
		s.log.Warn("the cache fell back; it is refilled", "seq", s.place.Offset, "found", at.Offset)
		return errRegressed
	}
	return s.patiently(ctx, func() error {
		st, err := s.o.Applier.Load(ctx, s.o.Topic)
		if err == nil {
			s.place, s.marks = st.Place, NewMarks(st.Marks)
			s.board.stands(s.place, s.marks)
		}
		return err
	})
}
