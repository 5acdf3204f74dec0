package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mqrouter/mqrouter/broker/commitlog"
	"github.com/mqrouter/mqrouter/broker/queue"
	"github.com/mqrouter/mqrouter/replication/wire"
)

const (
	landedCount = 512       // landings of one frame
	landedBytes = 512 << 10 // bytes of one frame, unless one landing alone has more
)

// reader is a session that reads landings of a topic.
type reader struct {
	b      *Broker
	s      wire.Stream
	frame  wire.Frame // session and class of every answer
	key    subKey
	topic  *topic
	queue  *topicQueue
	next   uint64 // offset to send next
	sent   uint64 // bytes sent
	recvMu sync.Mutex
	credit wire.Credit   // guarded by recvMu
	more   chan struct{} // capacity 1: credit has come
}

// ServeWant serves one reader of landings until the stream or ctx ends. first is
// the Want frame that opened the session. Landings are sent in the order of
// their offsets, within the reader's credit; its Applied frames move the durable
// subscription, as soon as the next progress record is committed. It closes the
// stream and returns why it ended: nil when the reader ended it.
func (b *Broker) ServeWant(ctx context.Context, s wire.Stream, first wire.Frame) error {
	w, err := wire.ParseWant(first.Payload)
	if err != nil {
		return errors.Join(err, s.Close(wire.CodeMalformed))
	}
	r := &reader{b: b, s: s, frame: first, credit: w.Credit, more: make(chan struct{}, 1)}
	if code, err := r.open(&w); err != nil {
		refuse := wire.Refuse{Code: code, Text: err.Error()}
		serr := r.send(ctx, wire.TypeRefuse, refuse.Append(nil))
		return errors.Join(err, serr, s.Close(code))
	}
	return r.serve(ctx)
}

// open finds topic, subscription and offset.
func (r *reader) open(w *wire.Want) (wire.Code, error) {
	b := r.b
	if err := b.ready("want"); err != nil {
		return wire.CodeDraining, err
	}
	r.key = subKey{w.Subscription, w.Topic}
	refuse := func(kind Kind, text string) (wire.Code, error) {
		return wire.CodeUnknownGroup, &Error{Op: "want", Kind: kind, Group: w.Subscription, Topic: w.Topic, Text: text}
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	sub := b.state.subs[r.key]
	switch {
	case b.state.topics[w.Topic] == nil:
		return refuse(KindTopicUnknown, "the topic does not land here")
	case sub == nil || !sub.declared:
		return refuse(KindGroupUnknown, "the topology declares no such subscription for this zone")
	case !sub.cache:
		return refuse(KindInvalid, "the consumer group is not a cache subscription")
	case !sub.topic.broadcast:
		_, err := refuse(KindUnsupported, "landings are read of broadcast topics only")
		return wire.CodeUnsupported, err
	}
	r.topic, r.queue = sub.topic, sub.topic.queues[0]
	r.next = r.startAt(w)
	return wire.CodeOK, nil
}

// startAt picks the offset to begin with: never later than the truth. An offset
// of another store cannot be translated, so its reader gets everything that is
// left; one that does not know its offset goes on where its subscription is.
func (r *reader) startAt(w *wire.Want) uint64 {
	ix := r.queue.index
	floor := uint64(0)
	r.b.state.progress.Floors(r.key.group, r.key.topic, func(queue uint16, at uint64) {
		if queue == 0 {
			floor = at
		}
	})
	at := floor
	switch {
	case w.Incarnation == r.b.log.Incarnation() && w.Offset <= ix.Next():
		at = w.Offset
	case w.Incarnation != 0 && w.Incarnation != r.b.log.Incarnation():
		at = 0
	}
	return max(at, r.first())
}

// first returns the lowest offset that can still be read.
func (r *reader) first() uint64 {
	ix := r.queue.index
	i, _, err := ix.Search(r.b.log.Begin())
	if err != nil {
		return ix.First()
	}
	return max(i, ix.First())
}

func (r *reader) send(ctx context.Context, t wire.Type, payload []byte) error {
	return r.s.Send(ctx, wire.Frame{Type: t, Session: r.frame.Session, Class: r.frame.Class, Payload: payload})
}

// serve sends on this goroutine and receives on another, which it joins.
func (r *reader) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var recvErr error
	wg.Go(func() {
		defer cancel()
		recvErr = r.receive(ctx)
	})
	err := r.sendAll(ctx)
	code := wire.CodeOK
	switch {
	case r.b.ctx.Err() != nil:
		code = wire.CodeDraining
	case err != nil && ctx.Err() == nil:
		code = wire.CodeInternal
	}
	cancel()
	_ = r.s.Close(code) // the session is over whatever it says
	wg.Wait()
	var closed *wire.ClosedError
	if errors.As(recvErr, &closed) && !closed.Local && closed.Code == wire.CodeOK {
		return nil
	}
	if recvErr != nil && !errors.Is(recvErr, context.Canceled) {
		return recvErr
	}
	return err
}

// receive takes credit and progress.
func (r *reader) receive(ctx context.Context) error {
	for {
		f, err := r.s.Recv(ctx)
		if err != nil {
			return err
		}
		switch f.Type {
		case wire.TypeApplied:
		case wire.TypeEnd:
			return nil
		default:
			return fmt.Errorf("%s frame from a reader of landings", f.Type)
		}
		a, err := wire.ParseApplied(f.Payload)
		if err != nil {
			return err
		}
		r.recvMu.Lock()
		r.credit.Number = max(r.credit.Number, a.Credit.Number)
		r.credit.Bytes = max(r.credit.Bytes, a.Credit.Bytes)
		r.recvMu.Unlock()
		poke(r.more)
		r.b.applied(r.key, r.topic, min(a.Offset, r.queue.index.Next()))
	}
}

// applied notes that a reader has applied everything below the offset. It is
// logged with the next progress.
func (b *Broker) applied(key subKey, t *topic, offset uint64) {
	b.mu.Lock()
	if old, ok := b.reads[key]; !ok || offset > old.offset || old.topic != t {
		b.reads[key] = readTo{topic: t, offset: offset}
	}
	b.mu.Unlock()
	poke(b.kick)
}

// readTo is progress of a reader of landings that waits for company.
type readTo struct {
	topic  *topic
	offset uint64
}

// sendAll sends landings as they come and as credit allows.
func (r *reader) sendAll(ctx context.Context) error {
	head := r.queue.index.Next()
	found := wire.Found{Group: r.b.self, Incarnation: r.b.log.Incarnation(), First: r.first(), Next: r.next, Head: head}
	if err := r.send(ctx, wire.TypeFound, found.Append(nil)); err != nil {
		return err
	}
	for {
		grown, ok := r.grown()
		if !ok {
			return &Error{Op: "want", Kind: KindTopicUnknown, Topic: r.key.topic, Text: "the topic or subscription is gone"}
		}
		for {
			n, err := r.sendSome(ctx)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
		}
		select {
		case <-grown:
		case <-r.more:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.b.ctx.Done():
			return &Error{Op: "want", Kind: KindClosed}
		case <-r.b.failed:
			return &Error{Op: "want", Kind: KindStopped, Err: r.b.failErr}
		}
	}
}

// grown returns a channel that closes when the topic changes; false when topic
// or subscription are gone.
func (r *reader) grown() (<-chan struct{}, bool) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	sub := r.b.state.subs[r.key]
	if sub == nil || sub.topic != r.topic {
		return nil, false
	}
	if r.topic.grown == nil {
		r.topic.grown = make(chan struct{})
	}
	return r.topic.grown, true
}

// room returns how many landings and bytes the credit allows now.
func (r *reader) room() (count int, bytes int64) {
	r.recvMu.Lock()
	defer r.recvMu.Unlock()
	if r.credit.Number < r.next || r.credit.Bytes <= r.sent {
		return 0, 0
	}
	return int(min(r.credit.Number-r.next, landedCount-1)) + 1, int64(min(r.credit.Bytes-r.sent, uint64(r.b.limits.MaxWantWindow)))
}

// sendSome sends one frame, if there is anything to send and credit for it.
func (r *reader) sendSome(ctx context.Context) (int, error) {
	count, bytes := r.room()
	if count == 0 {
		return 0, nil
	}
	entries := make([]queue.Entry, count)
	n, err := r.queue.index.Read(r.next, entries)
	if n == 0 {
		if err != nil {
			return 0, r.lost(err)
		}
		return 0, nil
	}
	l := wire.Landed{First: r.next}
	for _, e := range entries[:n] {
		entry, err := r.b.log.ReadAt(e.Position, int(e.Size))
		if err != nil {
			if l.Count > 0 {
				break
			}
			return 0, r.lost(err)
		}
		size := int64(wire.ItemSize(len(entry.Envelope)) + wire.ItemSize(len(entry.Record)))
		// One landing may go beyond the bytes of the credit, else a large one
		// could never be sent.
		if l.Count > 0 && int64(len(l.Data))+size > min(bytes, landedBytes) {
			break
		}
		l.Data = wire.AppendItem(wire.AppendItem(l.Data, entry.Envelope), entry.Record)
		l.Count++
	}
	l.RawSize = uint32(len(l.Data))
	if err := r.send(ctx, wire.TypeLanded, l.Append(nil)); err != nil {
		return 0, err
	}
	r.next += uint64(l.Count)
	r.sent += uint64(len(l.Data))
	return int(l.Count), nil
}

// lost makes the error of a reader whose next landing is no longer kept: it
// asks again and is told the first offset that is, so that it knows of the gap.
func (r *reader) lost(err error) error {
	kind := KindInternal
	if errors.Is(err, commitlog.ErrTrimmed) {
		kind = KindBudget
	}
	return &Error{Op: "want", Kind: kind, Topic: r.key.topic, Group: r.key.group, Text: fmt.Sprintf("offset %d", r.next), Err: err}
}
