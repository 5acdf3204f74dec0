package flow

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// peer is an origin played by hand.
type peer struct {
	t       *testing.T
	ctx     context.Context
	stream  wire.Stream
	session uint64
	served  chan error // capacity 1: what Serve returned
}

func testFlow(lane uint8) record.FlowID {
	return record.FlowID{Origin: "a", Incarnation: 5, Target: "b", Class: zone.ClassBulk, Lane: lane}
}

func testOpen(lane uint8) wire.Open {
	return wire.Open{Flow: testFlow(lane), City: "B", Group: "b", OriginCity: "A", Lineage: table(0xa, 1), Oldest: 1, Head: 1000}
}

// dialIn opens a session by hand; what is nil stays unsent.
func dialIn(t *testing.T, ctx context.Context, in *Inbox, session uint64, open *wire.Open) *peer {
	a, b := Pipe()
	p := &peer{t: t, ctx: ctx, stream: a, session: session, served: make(chan error, 1)}
	go func() { p.served <- in.Serve(ctx, b) }()
	if open != nil {
		p.send(wire.TypeOpen, open.Append(nil))
	}
	return p
}

func (p *peer) send(t wire.Type, payload []byte) {
	p.frame(wire.Frame{Type: t, Session: p.session, Class: zone.ClassBulk, Payload: payload})
}

func (p *peer) frame(f wire.Frame) {
	// The other end may have closed already; the answer says so.
	_ = p.stream.Send(p.ctx, f)
}

// expect returns the next frame of the type, passing over Acks and replies of
// other types.
func (p *peer) expect(t wire.Type) []byte {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	for {
		f, err := p.stream.Recv(ctx)
		if err != nil {
			p.t.Fatalf("no %s frame: %v", t, err)
		}
		if f.Type == t {
			return f.Payload
		}
	}
}

func (p *peer) accept() wire.Accept {
	p.t.Helper()
	a, err := wire.ParseAccept(p.expect(wire.TypeAccept))
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

func (p *peer) refusal() wire.Refuse {
	p.t.Helper()
	r, err := wire.ParseRefuse(p.expect(wire.TypeRefuse))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func encoded(t *testing.T, tag string) []byte {
	b, err := record.AppendRecord(nil, &record.Record{
		Type: record.TypeMessage, Topic: "t", Kind: zone.KindNormal, Class: zone.ClassBulk, Target: "b", MessageID: "m", Tag: tag,
		Stored: epoch0, Born: epoch0,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func batchOf(t *testing.T, first uint64, count uint32) wire.Batch {
	b := wire.Batch{First: first, Count: count, Lineage: 0xa, LineageEpoch: 1, Path: []zone.City{"A"}}
	rec := encoded(t, "ok")
	for range count {
		b.Data = wire.AppendItem(b.Data, rec)
	}
	b.RawSize = uint32(len(b.Data))
	return b
}

// alone runs fn with one Inbox and its sink.
func alone(t *testing.T, lim Limits, fn func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sink := newMemSink(rand.New(rand.NewPCG(1, 1)), "b")
		in, err := NewInbox(InboxOptions{Sink: sink, City: "B", Limits: lim})
		if err != nil {
			t.Fatal(err)
		}
		go sink.run(ctx)
		fn(t, ctx, in, sink)
		cancel()
		synctest.Wait()
	})
}

func TestInboxRefusesWhatDoesNotFit(t *testing.T) {
	batch := func(fn func(b *wire.Batch)) func(*testing.T, *peer, wire.Accept) {
		return func(t *testing.T, p *peer, _ wire.Accept) {
			b := batchOf(t, 1, 3)
			fn(&b)
			p.send(wire.TypeBatch, b.Append(nil))
		}
	}
	for _, tc := range []struct {
		name string
		open func(o *wire.Open)
		then func(*testing.T, *peer, wire.Accept)
		code wire.Code
	}{
		{"another group", func(o *wire.Open) { o.Group = "c" }, nil, wire.CodeUnknownGroup},
		{"another city", func(o *wire.Open) { o.City = "C" }, nil, wire.CodeWrongIdentity},
		{"another target", func(o *wire.Open) { o.Flow.Target = "c" }, nil, wire.CodeUnknownGroup},
		{"another class", func(o *wire.Open) { o.Flow.Class = zone.ClassUrgent }, nil, wire.CodeMalformed},
		{"no incarnation", func(o *wire.Open) { o.Flow.Incarnation = 0 }, nil, wire.CodeMalformed},
		{"forbidden city", func(o *wire.Open) { o.Residency = []zone.City{"A"} }, nil, wire.CodeResidency},
		{"broken table", func(o *wire.Open) { o.Lineage = table(0xa, 5, 0xb, 2) }, nil, wire.CodeMalformed},
		{"beyond the next", nil, batch(func(b *wire.Batch) { b.First = 2 }), wire.CodeMalformed},
		{"another lineage", nil, batch(func(b *wire.Batch) { b.Lineage = 0xb }), wire.CodeDiverged},
		{"another epoch", nil, batch(func(b *wire.Batch) { b.LineageEpoch = 2 }), wire.CodeDiverged},
		{"more records than said", nil, batch(func(b *wire.Batch) { b.Count = 2 }), wire.CodeMalformed},
		{"fewer records than said", nil, batch(func(b *wire.Batch) { b.Count = 4 }), wire.CodeMalformed},
		{"more records than bytes", nil, batch(func(b *wire.Batch) { b.Count = 65000 }), wire.CodeMalformed},
		{"not compressed after all", nil, batch(func(b *wire.Batch) { b.Codec = wire.CodecZstd }), wire.CodeMalformed},
		{"unknown codec", nil, batch(func(b *wire.Batch) { b.Codec = 9 }), wire.CodeUnsupported},
		{"a dictionary", nil, batch(func(b *wire.Batch) { b.Dictionary = 1 }), wire.CodeUnsupported},
		{"bytes beyond the credit", nil, func(t *testing.T, p *peer, a wire.Accept) {
			b := wire.Batch{First: 1, Count: 1, Lineage: 0xa, LineageEpoch: 1, Data: make([]byte, a.Credit.Bytes+1)}
			b.RawSize = uint32(len(b.Data))
			p.send(wire.TypeBatch, b.Append(nil))
		}, wire.CodeMalformed},
		{"a bomb", nil, func(t *testing.T, p *peer, a wire.Accept) {
			b := wire.Batch{First: 1, Count: 1, Lineage: 0xa, LineageEpoch: 1, Codec: wire.CodecZstd, RawSize: wire.MaxRawSize, Data: []byte{1}}
			p.send(wire.TypeBatch, b.Append(nil))
		}, wire.CodeMalformed},
		{"a number beyond the credit", nil, func(t *testing.T, p *peer, a wire.Accept) {
			g := wire.Gap{First: 1, Through: a.Credit.Number + 1, Lineage: 0xa, LineageEpoch: 1}
			p.send(wire.TypeGap, g.Append(nil))
		}, wire.CodeMalformed},
		{"a reader's frame", nil, func(t *testing.T, p *peer, _ wire.Accept) { p.send(wire.TypeWant, nil) }, wire.CodeUnsupported},
		{"an unknown frame", nil, func(t *testing.T, p *peer, _ wire.Accept) { p.send(200, nil) }, wire.CodeUnsupported},
		{"a required flag", nil, func(t *testing.T, p *peer, _ wire.Accept) {
			p.frame(wire.Frame{Type: wire.TypeProbe, Flags: 0x8000, Session: p.session, Class: zone.ClassBulk})
		}, wire.CodeUnsupported},
		{"a frame of another class", nil, func(t *testing.T, p *peer, _ wire.Accept) {
			p.frame(wire.Frame{Type: wire.TypeProbe, Session: p.session, Class: zone.ClassUrgent})
		}, wire.CodeMalformed},
		{"seal of another flow", nil, func(t *testing.T, p *peer, _ wire.Accept) {
			s := wire.Seal{Flow: testFlow(3)}
			p.send(wire.TypeSeal, s.Append(nil))
		}, wire.CodeMalformed},
	} {
		alone(t, Limits{}, func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink) {
			o := testOpen(0)
			if tc.open != nil {
				tc.open(&o)
			}
			p := dialIn(t, ctx, in, 7, &o)
			if tc.then != nil {
				tc.then(t, p, p.accept())
			}
			if r := p.refusal(); r.Code != tc.code {
				t.Errorf("%s: %v %q, want %v", tc.name, r.Code, r.Text, tc.code)
			}
			if err := <-p.served; codeOf(err) != tc.code {
				t.Errorf("%s: Serve returned %v", tc.name, err)
			}
			if sink.most != 0 || in.MemoryInUse() != 0 {
				t.Errorf("%s: %d bytes landed, %d still reserved", tc.name, sink.most, in.MemoryInUse())
			}
		})
	}
}

func TestInboxFirstFrameMustBeOpenAndComeInTime(t *testing.T) {
	alone(t, Limits{}, func(t *testing.T, ctx context.Context, in *Inbox, _ *memSink) {
		p := dialIn(t, ctx, in, 7, nil)
		p.send(wire.TypeProbe, nil)
		if r := p.refusal(); r.Code != wire.CodeUnsupported {
			t.Errorf("refused with %v", r.Code)
		}
		<-p.served
		q := dialIn(t, ctx, in, 8, nil)
		began := time.Now()
		if err := <-q.served; !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("a silent stream ended with %v after %v", err, time.Since(began))
		}
	})
}

func TestInboxAnswersDuplicatesWithTheirOutcome(t *testing.T) {
	alone(t, Limits{}, func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink) {
		o := testOpen(0)
		p := dialIn(t, ctx, in, 7, &o)
		p.accept()
		b := wire.Batch{First: 1, Count: 3, Lineage: 0xa, LineageEpoch: 1}
		for _, tag := range []string{"ok", "bad", "ok"} {
			b.Data = wire.AppendItem(b.Data, encoded(t, tag))
		}
		b.RawSize = uint32(len(b.Data))
		for range 2 {
			p.send(wire.TypeBatch, b.Append(nil))
			for {
				a, err := wire.ParseAck(p.expect(wire.TypeAck))
				if err != nil {
					t.Fatal(err)
				}
				if len(a.Outcomes) == 0 {
					continue
				}
				if a.Through != 3 || a.Outcomes[0].First != 2 || a.Outcomes[0].Through != 2 || a.Outcomes[0].Outcome != record.OutcomeParked {
					t.Errorf("answered %+v", a)
				}
				break
			}
		}
		over := batchOf(t, 2, 4) // two of four are new
		p.send(wire.TypeBatch, over.Append(nil))
		time.Sleep(time.Second)
		if log, faults := sink.logOf(o.Flow); len(log) != 5 || len(faults) > 0 {
			t.Errorf("%d numbers settled, want 5; %v", len(log), faults)
		}
		p.send(wire.TypeEnd, (&wire.End{}).Append(nil))
		if err := <-p.served; err != nil {
			t.Errorf("an agreed end returned %v", err)
		}
		// The next session hears of the outcome from Accept.
		q := dialIn(t, ctx, in, 8, &o)
		if a := q.accept(); a.Next != 6 || len(a.Outcomes) != 1 || a.Outcomes[0].First != 2 || a.Last.Number != 5 {
			t.Errorf("accepted with %+v", a)
		}
	})
}

func TestD4_InboxNewestSessionSupersedes(t *testing.T) {
	alone(t, Limits{}, func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink) {
		o := testOpen(0)
		sink.set(func(m *memSink) { m.delay = 500 * time.Millisecond })
		p := dialIn(t, ctx, in, 7, &o)
		p.accept()
		b := batchOf(t, 1, 3)
		p.send(wire.TypeBatch, b.Append(nil))
		synctest.Wait()
		q := dialIn(t, ctx, in, 8, &o)
		began := time.Now()
		a := q.accept()
		if a.Next != 4 {
			t.Errorf("the newer session begins at %d, want 4: the older one's landings count", a.Next)
		}
		if time.Since(began) != 500*time.Millisecond {
			t.Errorf("the newer session waited %v for the older one's landings", time.Since(began))
		}
		if err := <-p.served; !errors.Is(err, errSuperseded) {
			t.Errorf("the older session ended with %v", err)
		}
		late := batchOf(t, 4, 3)
		p.send(wire.TypeBatch, late.Append(nil))
		stray := late.Append(nil)
		q.frame(wire.Frame{Type: wire.TypeBatch, Session: 7, Class: zone.ClassBulk, Payload: stray})
		time.Sleep(5 * time.Second)
		if got := sink.Resume(o.Flow).Settled; got != 3 {
			t.Errorf("settled %d from frames of another session", got)
		}
	})
}

func TestInboxWaitsABoundedTimeForOlderLandings(t *testing.T) {
	alone(t, Limits{}, func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink) {
		o := testOpen(0)
		sink.set(func(m *memSink) { m.delay = time.Hour })
		p := dialIn(t, ctx, in, 7, &o)
		p.accept()
		b := batchOf(t, 1, 3)
		p.send(wire.TypeBatch, b.Append(nil))
		synctest.Wait()
		q := dialIn(t, ctx, in, 8, &o)
		if r := q.refusal(); r.Code != wire.CodeHeld || r.RetryAfter == 0 {
			t.Errorf("refused with %+v", r)
		}
	})
}

func TestInboxAcksNothingThatIsNotCommitted(t *testing.T) {
	alone(t, Limits{}, func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink) {
		o := testOpen(0)
		sink.set(func(m *memSink) { m.delay = 3 * time.Second })
		p := dialIn(t, ctx, in, 7, &o)
		p.accept()
		b := batchOf(t, 1, 3)
		p.send(wire.TypeBatch, b.Append(nil))
		began := time.Now()
		for {
			a, err := wire.ParseAck(p.expect(wire.TypeAck))
			if err != nil {
				t.Fatal(err)
			}
			if a.Through == 0 {
				continue
			}
			if took := time.Since(began); took < 3*time.Second {
				t.Errorf("ack of %d after %v, the commit takes 3 s", a.Through, took)
			}
			return
		}
	})
}

func TestInboxOneFlowCannotTakeAllMemory(t *testing.T) {
	lim := Limits{MemoryBytes: 4 << 20, MinWindow: 256 << 10, MaxWindow: 64 << 20}
	alone(t, lim, func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink) {
		sink.limit = lim.MemoryBytes
		greedy := testOpen(0)
		p := dialIn(t, ctx, in, 100, &greedy)
		credit := p.accept().Credit
		next := uint64(1)
		for sent := uint64(0); sent < 12<<20; {
			b := batchOf(t, next, 512)
			for credit.Bytes < sent+uint64(b.RawSize) || credit.Number < next+511 {
				a, err := wire.ParseAck(p.expect(wire.TypeAck))
				if err != nil {
					t.Fatal(err)
				}
				credit = a.Credit
			}
			p.send(wire.TypeBatch, b.Append(nil))
			sent += uint64(b.RawSize)
			next += 512
		}
		st := in.Status()[0]
		if st.Window <= lim.MinWindow || st.Window > lim.MemoryBytes*3/4 {
			t.Errorf("window %d of a flow that uses all it gets, memory %d", st.Window, lim.MemoryBytes)
		}
		// Others still get their share, up to the bound; then they are told to
		// come back.
		refusals := 0
		var idle *peer
		for lane := range uint8(40) {
			o := testOpen(lane + 1)
			q := dialIn(t, ctx, in, 200+uint64(lane), &o)
			synctest.Wait()
			f, err := q.stream.Recv(ctx)
			switch {
			case err != nil:
				t.Fatal(err)
			case f.Type == wire.TypeRefuse:
				if r, _ := wire.ParseRefuse(f.Payload); r.Code != wire.CodeTooMany || r.RetryAfter == 0 {
					t.Errorf("refused with %+v", r)
				}
				refusals++
			case lane < 4:
				idle = q
				if a, _ := wire.ParseAccept(f.Payload); a.Credit.Bytes < uint64(lim.MinWindow) {
					t.Errorf("lane %d gets %d bytes", lane, a.Credit.Bytes)
				}
			}
		}
		if got := in.MemoryInUse(); got > lim.MemoryBytes || refusals == 0 || refusals > 36 {
			t.Errorf("%d of %d bytes reserved, %d of 40 refused", got, lim.MemoryBytes, refusals)
		}
		// Those that hold memory without using it are asked to move, the small ones
		// too: together they may hold all of it.
		time.Sleep(3 * time.Second)
		p.expect(wire.TypeDrain)
		idle.expect(wire.TypeDrain)
	})
}

func TestInboxReportsHeldInProbes(t *testing.T) {
	alone(t, Limits{}, func(t *testing.T, ctx context.Context, in *Inbox, sink *memSink) {
		sink.set(func(m *memSink) { m.held = &HeldError{Code: wire.CodeTopologyBehind, Err: errors.New("epoch 9")} })
		o := testOpen(0)
		p := dialIn(t, ctx, in, 7, &o)
		if a := p.accept(); a.Credit.Bytes != 0 {
			t.Errorf("credit %+v from a held destination", a.Credit)
		}
		probe := wire.Probe{Nonce: 3, SentAt: 4, Head: 1001}
		p.send(wire.TypeProbe, probe.Append(nil))
		r, err := wire.ParseProbeReply(p.expect(wire.TypeProbeReply))
		if err != nil || r.Nonce != 3 || r.SentAt != 4 || r.Held != wire.CodeTopologyBehind || r.Text == "" {
			t.Errorf("answered %+v, %v", r, err)
		}
		synctest.Wait()
		if st := in.Status()[0]; st.Held != wire.CodeTopologyBehind || st.Head != 1001 {
			t.Errorf("status %+v", st)
		}
		sink.set(func(m *memSink) { m.held = nil })
		if a, err := wire.ParseAck(p.expect(wire.TypeAck)); err != nil || a.Credit.Bytes == 0 {
			t.Errorf("no credit after it takes records again: %+v, %v", a, err)
		}
	})
}
