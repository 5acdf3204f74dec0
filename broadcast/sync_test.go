package broadcast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/cache"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// landings is a landing group in memory: what Want reads from.
type landings struct {
	mu       sync.Mutex
	store    record.Incarnation
	first    uint64 // below is trimmed
	entries  [][2][]byte
	grown    chan struct{}
	applied  uint64 // as the reader told
	sessions int
	wants    []wire.Want
	refuse   wire.Code          // not 0: no reader is served
	cut      context.CancelFunc // ends the present session
	most     uint64             // most landings that were sent and not applied
	mostData uint64             // likewise bytes
	trace    string             // what records carry from here on; empty: nothing
	wg       sync.WaitGroup
}

func newLandings(store record.Incarnation) *landings {
	return &landings{store: store, grown: make(chan struct{})}
}

// origin numbers the changes of a city.
type origin struct {
	flow    record.FlowID
	lineage record.LineageID
	epoch   uint64
	number  uint64
}

func newOrigin(group zone.Group) *origin {
	return &origin{flow: record.FlowID{Origin: group, Incarnation: 7, Target: "member", Channel: true, Class: zone.ClassUrgent}, lineage: 70, epoch: 1}
}

// land lands a message of an origin; nil is one of the landing group itself.
func (l *landings) land(t testing.TB, o *origin, keys []string, props map[string]string, body []byte) {
	t.Helper()
	r := &record.Record{Type: record.TypeMessage, Topic: "member", Keys: keys, Body: body, MessageID: fmt.Sprintf("m-%d", len(l.entries)), Stored: time.Now(), TraceContext: l.trace}
	for k, v := range props {
		r.Properties = append(r.Properties, record.Property{Key: k, Value: v})
	}
	rec, err := record.AppendRecord(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	var env []byte
	if o != nil {
		o.number++
		env, err = record.AppendEnvelope(nil, &record.Envelope{Flow: o.flow, Lineage: o.lineage, LineageEpoch: o.epoch, Number: o.number, Through: o.number,
			Outcome: record.OutcomeLanded, Landed: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, [2][]byte{env, rec})
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *landings) change(t testing.TB, o *origin, c broadcast.Change) {
	t.Helper()
	m, err := c.Format()
	if err != nil {
		t.Fatal(err)
	}
	l.land(t, o, []string{m.Key}, m.Properties, m.Body)
}

func (l *landings) set(t testing.TB, o *origin, key string, version uint64, value string) {
	t.Helper()
	l.change(t, o, broadcast.Change{Op: broadcast.OpSet, Key: key, Version: version, Value: []byte(value)})
}

// dial opens a session and serves it.
func (l *landings) dial(ctx context.Context) (wire.Stream, error) {
	a, b := flow.Pipe()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions++
	serve, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.cut = cancel
	l.wg.Go(func() {
		defer cancel()
		l.serve(serve, b)
	})
	return a, nil
}

func (l *landings) disconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut()
}

func send(ctx context.Context, s wire.Stream, t wire.Type, payload []byte) error {
	return s.Send(ctx, wire.Frame{Type: t, Session: 1, Payload: payload})
}

func (l *landings) serve(ctx context.Context, s wire.Stream) {
	defer s.Close(wire.CodeShutdown)
	f, err := s.Recv(ctx)
	if err != nil {
		return
	}
	w, err := wire.ParseWant(f.Payload)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.wants = append(l.wants, w)
	next := l.applied
	switch {
	case w.Incarnation == l.store && w.Offset <= uint64(len(l.entries)):
		next = w.Offset
	case w.Incarnation != 0 && w.Incarnation != l.store:
		next = 0
	}
	next = max(next, l.first)
	found := wire.Found{Group: "cz-sh-a", Incarnation: l.store, First: l.first, Next: next, Head: uint64(len(l.entries))}
	refuse := l.refuse
	l.mu.Unlock()
	if refuse != 0 {
		r := wire.Refuse{Code: refuse, Text: "no"}
		send(ctx, s, wire.TypeRefuse, r.Append(nil))
		return
	}
	if send(ctx, s, wire.TypeFound, found.Append(nil)) != nil {
		return
	}
	more := make(chan wire.Applied, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		defer cancel()
		for {
			f, err := s.Recv(ctx)
			if err != nil {
				return
			}
			a, err := wire.ParseApplied(f.Payload)
			if err != nil {
				return
			}
			l.mu.Lock()
			l.applied = max(l.applied, a.Offset)
			l.mu.Unlock()
			select {
			case more <- a:
			case <-ctx.Done():
				return
			}
		}
	})
	l.sendAll(ctx, s, next, more)
}

func (l *landings) sendAll(ctx context.Context, s wire.Stream, next uint64, more <-chan wire.Applied) {
	credit := wire.Applied{Credit: w0}
	var sent, done uint64
	sizes := map[uint64]uint64{}
	for {
		l.mu.Lock()
		grown := l.grown
		f := wire.Landed{First: next}
		for next < uint64(len(l.entries)) && next <= credit.Credit.Number && sent < credit.Credit.Bytes && f.Count < 100 {
			e := l.entries[next]
			size := uint64(wire.ItemSize(len(e[0])) + wire.ItemSize(len(e[1])))
			if f.Count > 0 && sent+size > credit.Credit.Bytes {
				break
			}
			f.Data = wire.AppendItem(wire.AppendItem(f.Data, e[0]), e[1])
			f.Count++
			sent += size
			sizes[next] = sent
			next++
		}
		l.most = max(l.most, next-min(next, credit.Offset))
		if credit.Offset > 0 {
			done = max(done, sizes[credit.Offset-1])
		}
		l.mostData = max(l.mostData, sent-done)
		l.mu.Unlock()
		if f.Count > 0 {
			f.RawSize = uint32(len(f.Data))
			if send(ctx, s, wire.TypeLanded, f.Append(nil)) != nil {
				return
			}
			continue
		}
		select {
		case <-grown:
		case credit = <-more:
		case <-ctx.Done():
			return
		}
	}
}

var w0 = wire.Credit{}

// reader is a Sync that runs.
type reader struct {
	*broadcast.Sync
	t    *testing.T
	stop func()
	gaps *[]broadcast.Gap
}

func startSync(t *testing.T, l *landings, a broadcast.Applier, change ...func(*broadcast.Options)) *reader {
	t.Helper()
	var gaps []broadcast.Gap
	o := broadcast.Options{City: "shanghai", Topic: "member", Subscription: "member-cache", Exclusive: true, Applier: a, Kind: "memory", Dial: l.dial,
		OnGap: func(g broadcast.Gap) { gaps = append(gaps, g) }, Rand: rand.New(rand.NewPCG(1, 2))}
	for _, fn := range change {
		fn(&o)
	}
	s, err := broadcast.NewSync(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	r := &reader{Sync: s, t: t, gaps: &gaps}
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		l.wg.Wait()
		if st := s.Status(); st.State != broadcast.StateStopped {
			t.Errorf("state %s after the end", st.State)
		}
	}
	return r
}

func want(t *testing.T, a broadcast.Applier, key, value string, version uint64) {
	t.Helper()
	e, err := a.Get(t.Context(), key)
	if err != nil || string(e.Value) != value || e.Found != (value != "") || e.Version != version {
		t.Errorf("%s is %+v (%q), %v; want %q of version %d", key, e, e.Value, err, value, version)
	}
}

// settle lets everything that can happen within the back-off happen.
func settle() {
	time.Sleep(3 * time.Second)
	synctest.Wait()
}

func TestSyncAppliesInOrderAndTellsWhatItDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, m := newLandings(5), cache.NewMemory(cache.MemoryOptions{})
		sh, hz := newOrigin("rz01-a"), newOrigin("rz03-a")
		l.set(t, sh, "k", 1, "a")
		l.set(t, hz, "k", 3, "c")
		l.set(t, sh, "k", 2, "b")
		r := startSync(t, l, m)
		defer r.stop()
		settle()
		want(t, m, "k", "c", 3)
		l.change(t, hz, broadcast.Change{Op: broadcast.OpDelete, Key: "k", Version: 4})
		l.set(t, nil, "own", 1, "no envelope")
		l.land(t, sh, []string{"k"}, map[string]string{broadcast.PropertyOp: "set", broadcast.PropertyVersion: "soon"}, []byte("bad"))
		l.land(t, sh, nil, nil, []byte("bad"))
		l.set(t, sh, "l", 1, "x")
		synctest.Wait()
		want(t, m, "k", "", 4)
		want(t, m, "own", "no envelope", 1)
		want(t, m, "l", "x", 1)
		st := r.Status()
		if st.State != broadcast.StateFollowing || st.Place.Offset != 8 || st.Lag != 0 || st.Head != 8 || st.Applied != 5 || st.Superseded != 1 ||
			st.Rejected != 2 || st.Gaps != 1 || st.Problem != "" || !strings.Contains(st.Reject, "m-6") {
			t.Errorf("status %+v", st)
		}
		for _, o := range []*origin{sh, hz} {
			if w, ok := st.Watermark(o.flow); !ok || w.Number != o.number || w.Lineage != o.lineage {
				t.Errorf("watermark of %s: %+v, want %d", o.flow.Origin, w, o.number)
			}
		}
		if len(*r.gaps) != 1 || (*r.gaps)[0].Kind != broadcast.GapFirstStart {
			t.Errorf("gaps %v", *r.gaps)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.applied != 8 {
			t.Errorf("the subscription stands at %d", l.applied)
		}
	})
}

func TestSyncGoesOnAfterEveryEndOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, m := newLandings(5), cache.NewMemory(cache.MemoryOptions{})
		o := newOrigin("rz01-a")
		var fail atomic.Bool
		fail.Store(true)
		r := startSync(t, l, m, func(op *broadcast.Options) {
			dial := op.Dial
			op.Dial = func(ctx context.Context) (wire.Stream, error) {
				if fail.Load() {
					return nil, errors.New("connection refused")
				}
				return dial(ctx)
			}
		})
		defer r.stop()
		settle()
		if st := r.Status(); st.State != broadcast.StateConnecting || st.Problem != "connection refused" {
			t.Errorf("status %+v", st)
		}
		fail.Store(false)
		for i := range uint64(30) {
			l.set(t, o, "k", i+1, fmt.Sprint(i))
			settle()
			if i%3 == 0 {
				l.disconnect()
			}
		}
		settle()
		want(t, m, "k", "29", 30)
		st := r.Status()
		if st.Applied != 30 || st.Superseded != 0 || st.Gaps != 1 || st.Problem != "" {
			t.Errorf("nothing is applied twice: %+v", st)
		}
		l.mu.Lock()
		l.refuse = wire.CodeUnknownGroup
		l.mu.Unlock()
		l.disconnect()
		settle()
		if st := r.Status(); !strings.Contains(st.Problem, "unknown-group") {
			t.Errorf("problem %q", st.Problem)
		}
		l.mu.Lock()
		n := l.sessions
		l.refuse = 0
		l.mu.Unlock()
		if n < 10 {
			t.Errorf("%d sessions", n)
		}
		l.set(t, o, "k", 31, "end")
		time.Sleep(501 * time.Millisecond) // no pause between attempts is longer
		synctest.Wait()
		want(t, m, "k", "end", 31)
	})
}

func TestSyncTellsHolesAndDropsWhatMayBeStale(t *testing.T) {
	for _, keep := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, m := newLandings(5), cache.NewMemory(cache.MemoryOptions{})
			o := newOrigin("rz01-a")
			l.set(t, o, "k", 1, "a")
			l.set(t, o, "l", 1, "b")
			r := startSync(t, l, m, func(op *broadcast.Options) { op.KeepStale = keep })
			defer r.stop()
			settle()
			l.set(t, o, "l", 2, "before")
			o.number += 2 // two changes that never land here
			l.set(t, o, "m", 1, "after")
			synctest.Wait()
			want(t, m, "m", "after", 1)
			if keep {
				want(t, m, "k", "a", 1)
				want(t, m, "l", "before", 2)
			} else {
				want(t, m, "k", "", 1)
				want(t, m, "l", "", 2)
			}
			g := (*r.gaps)[len(*r.gaps)-1]
			if len(*r.gaps) != 2 || g.Kind != broadcast.GapNumbers || g.Missing != (broadcast.Range{First: 4, Through: 5}) || g.Flow != o.flow || g.Flushed == keep {
				t.Errorf("gaps %+v", *r.gaps)
			}
			if st := r.Status(); st.Gaps != 2 || len(st.LastGaps) != 2 || st.Place.Offset != 4 {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// absent lands numbers of an origin without records.
func (l *landings) absent(t testing.TB, o *origin, n uint64, outcome record.Outcome, reason record.Reason) {
	t.Helper()
	env, err := record.AppendEnvelope(nil, &record.Envelope{Flow: o.flow, Lineage: o.lineage, LineageEpoch: o.epoch, Number: o.number + 1, Through: o.number + n,
		Outcome: outcome, Reason: reason, Landed: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	o.number += n
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, [2][]byte{env, nil})
	close(l.grown)
	l.grown = make(chan struct{})
}

// TestK1_CutBacklogFlushesTheCache: a city whose backlog was cut is told at once,
// without waiting for a later change to show the hole, also where topics share a
// channel; what is merely not for it is no gap.
func TestK1_CutBacklogFlushesTheCache(t *testing.T) {
	for _, exclusive := range []bool{true, false} {
		for _, c := range []struct {
			outcome record.Outcome
			reason  record.Reason
			gap     bool
		}{
			{record.OutcomeGap, record.ReasonBudget, true},
			{record.OutcomeGap, record.ReasonTrimmed, true},
			{record.OutcomeParked, record.ReasonCorrupt, true},
			{record.OutcomeParked, record.ReasonResidency, false},
			{record.OutcomeSkipped, record.ReasonCompacted, false},
			{record.OutcomeSkipped, record.ReasonExcluded, false},
			{99, 99, true},
		} {
			synctest.Test(t, func(t *testing.T) {
				l, m := newLandings(5), cache.NewMemory(cache.MemoryOptions{})
				o := newOrigin("rz01-a")
				l.set(t, o, "k", 1, "stale")
				r := startSync(t, l, m, func(op *broadcast.Options) { op.Exclusive = exclusive })
				defer r.stop()
				settle()
				l.absent(t, o, 10, c.outcome, c.reason)
				settle()
				if !c.gap {
					want(t, m, "k", "stale", 1)
				} else {
					want(t, m, "k", "", 1)
					g := (*r.gaps)[len(*r.gaps)-1]
					if g.Kind != broadcast.GapDeclared || g.Missing != (broadcast.Range{First: 2, Through: 11}) || g.Flow != o.flow || !g.Flushed {
						t.Errorf("gap %+v", g)
					}
				}
				l.set(t, o, "l", 1, "after")
				settle()
				want(t, m, "l", "after", 1)
				gaps := 1 // the first start
				if c.gap {
					gaps++
				}
				st := r.Status()
				if w, ok := st.Watermark(o.flow); !ok || w.Number != 12 || st.Gaps != uint64(gaps) || st.Rejected != 0 {
					t.Errorf("outcome %d, reason %d: watermark %+v, status %+v", c.outcome, c.reason, w, st)
				}
			})
		}
	}
}

func TestSyncTellsWhenLandingsAreTrimmedOrTheGroupIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, m := newLandings(5), cache.NewMemory(cache.MemoryOptions{})
		o := newOrigin("rz01-a")
		r := startSync(t, l, m)
		l.set(t, o, "k", 1, "a")
		settle()
		r.stop()
		for i := range uint64(5) {
			l.set(t, o, "k", i+2, "b")
		}
		l.first = 4
		r = startSync(t, l, m)
		settle()
		want(t, m, "k", "b", 6)
		if g := *r.gaps; len(g) != 1 || g[0].Kind != broadcast.GapTrimmed || g[0].Missing.Len() != 3 || !g[0].Flushed {
			t.Errorf("gaps %+v", g)
		}
		r.stop()
		// The store of the landing group is made anew; the origins send again what
		// they have, and the marks see that nothing is missing.
		again, fresh := newLandings(6), newOrigin("rz01-a")
		for i := range uint64(7) {
			again.set(t, fresh, "k", i+1, "c")
		}
		r = startSync(t, again, m)
		settle()
		want(t, m, "k", "c", 7)
		if len(*r.gaps) != 0 {
			t.Errorf("gaps %+v", *r.gaps)
		}
		if p, err := m.Load(t.Context(), "member"); err != nil || p.Place.Incarnation != 6 || p.Place.Offset != 7 {
			t.Errorf("stands at %+v, %v", p, err)
		}
		r.stop()
		other := newLandings(8)
		late := newOrigin("rz01-a")
		late.number = 9 // 8 and 9 never land there
		other.set(t, late, "k", 9, "d")
		r = startSync(t, other, m)
		settle()
		if g := *r.gaps; len(g) != 1 || g[0].Kind != broadcast.GapNumbers || g[0].Missing != (broadcast.Range{First: 8, Through: 9}) {
			t.Errorf("gaps %+v", g)
		}
		r.stop()
	})
}

// faulty is a cache that fails, is slow, or answers that it failed although it
// did not.
type faulty struct {
	broadcast.Applier
	mu      sync.Mutex
	down    bool
	liar    int // so many successes are told as failures
	batches []int
}

var errDown = errors.New("cache is down")

func (f *faulty) set(fn func(*faulty)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f)
}

func (f *faulty) Load(ctx context.Context, t zone.Topic) (broadcast.Progress, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return broadcast.Progress{}, errDown
	}
	return f.Applier.Load(ctx, t)
}

func (f *faulty) Apply(ctx context.Context, b *broadcast.Batch) (broadcast.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return broadcast.Result{}, errDown
	}
	r, err := f.Applier.Apply(ctx, b)
	if err == nil && f.liar > 0 {
		f.liar--
		return broadcast.Result{}, errDown
	}
	f.batches = append(f.batches, len(b.Changes))
	return r, err
}

func TestSyncHoldsOnlyItselfWhileTheCacheIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newLandings(5), &faulty{Applier: cache.NewMemory(cache.MemoryOptions{})}
		o := newOrigin("rz01-a")
		r := startSync(t, l, f, func(op *broadcast.Options) { op.Window, op.WindowBytes, op.BatchChanges = 50, 10_000, 20 })
		defer r.stop()
		settle()
		f.set(func(f *faulty) { f.down = true })
		for i := range uint64(1000) {
			l.set(t, o, fmt.Sprintf("k%d", i), 1, strings.Repeat("x", 100))
		}
		settle()
		st := r.Status()
		if st.State != broadcast.StateHeld || st.Problem != errDown.Error() || st.Lag == 0 || st.Place.Offset != 0 {
			t.Errorf("status %+v", st)
		}
		l.mu.Lock()
		most, data, applied := l.most, l.mostData, l.applied
		l.mu.Unlock()
		if most == 0 || most > 51 || data > 11_000 || applied != 0 {
			t.Errorf("%d landings and %d bytes were sent ahead, %d told as applied", most, data, applied)
		}
		f.set(func(f *faulty) { f.down, f.liar = false, 3 })
		settle()
		want(t, f, "k999", strings.Repeat("x", 100), 1)
		if st := r.Status(); st.State != broadcast.StateFollowing || st.Problem != "" || st.Lag != 0 || st.Applied != 1000 || st.Superseded != 0 || st.Regressed != 0 {
			t.Errorf("status %+v", st)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if slices.Max(f.batches) > 20 {
			t.Errorf("batches %v", f.batches)
		}
	})
}

// swap is a cache that is exchanged for another one, as a fail-over does.
type swap struct {
	mu  sync.Mutex
	now broadcast.Applier
}

func (s *swap) to(a broadcast.Applier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = a
}
func (s *swap) present() broadcast.Applier {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}
func (s *swap) Load(ctx context.Context, t zone.Topic) (broadcast.Progress, error) {
	return s.present().Load(ctx, t)
}
func (s *swap) Apply(ctx context.Context, b *broadcast.Batch) (broadcast.Result, error) {
	return s.present().Apply(ctx, b)
}
func (s *swap) Flush(ctx context.Context, h time.Duration) error { return s.present().Flush(ctx, h) }
func (s *swap) Get(ctx context.Context, key string) (broadcast.Entry, error) {
	return s.present().Get(ctx, key)
}

func TestSyncRefillsACacheThatFellBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := newLandings(5), &swap{now: cache.NewMemory(cache.MemoryOptions{})}
		o := newOrigin("rz01-a")
		l.set(t, o, "k", 1, "a")
		// The replica has the first landing.
		replica := cache.NewMemory(cache.MemoryOptions{})
		r := startSync(t, l, replica)
		settle()
		r.stop()
		r = startSync(t, l, s)
		defer r.stop()
		for i := range uint64(9) {
			l.set(t, o, fmt.Sprintf("k%d", i), 1, "b")
		}
		settle()
		s.to(replica)
		settle() // nothing lands: the idle check notices
		for i := range 9 {
			want(t, replica, fmt.Sprintf("k%d", i), "b", 1)
		}
		if st := r.Status(); st.Regressed != 1 || st.Gaps != 1 || st.Place.Offset != 10 || st.State != broadcast.StateFollowing {
			t.Errorf("status %+v", st)
		}
		empty := cache.NewMemory(cache.MemoryOptions{})
		s.to(empty)
		l.set(t, o, "k", 2, "c") // the next batch notices
		settle()
		want(t, empty, "k", "c", 2)
		want(t, empty, "k5", "b", 1)
		if st := r.Status(); st.Regressed != 2 || st.Gaps != 2 || st.LastGaps[1].Kind != broadcast.GapFirstStart {
			t.Errorf("status %+v", st)
		}
	})
}

func TestTwoReadersOfOneCacheDoNoHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := cache.NewMemory(cache.MemoryOptions{})
		l := newLandings(5)
		twin := &landings{store: 5, grown: make(chan struct{})}
		a, b := newOrigin("rz01-a"), newOrigin("rz01-a")
		r1, r2 := startSync(t, l, m), startSync(t, twin, m)
		defer r1.stop()
		defer r2.stop()
		for i := range uint64(200) {
			l.set(t, a, fmt.Sprintf("k%d", i%10), i+1, fmt.Sprint(i))
			twin.set(t, b, fmt.Sprintf("k%d", i%10), i+1, fmt.Sprint(i))
			if i%50 == 0 {
				settle()
			}
		}
		settle()
		for i := range uint64(10) {
			want(t, m, fmt.Sprintf("k%d", i), fmt.Sprint(190+i), 191+i)
		}
		p, err := m.Load(t.Context(), "member")
		if err != nil || p.Place.Offset != 200 || len(p.Marks) != 1 || p.Marks[0].Number != 200 {
			t.Errorf("stands at %+v, %v", p, err)
		}
		for _, r := range []*reader{r1, r2} {
			if st := r.Status(); st.Place.Offset != 200 || st.Regressed != 0 {
				t.Errorf("status %+v", st)
			}
		}
	})
}

func TestSyncSurvivesAnythingThatAServerSends(t *testing.T) {
	landed := func(l wire.Landed) wire.Frame { return wire.Frame{Type: wire.TypeLanded, Payload: l.Append(nil)} }
	found := wire.Found{Group: "g", Incarnation: 5}
	ok := wire.Frame{Type: wire.TypeFound, Payload: found.Append(nil)}
	for name, frames := range map[string][]wire.Frame{
		"garbage for found": {{Type: wire.TypeFound, Payload: []byte{1}}},
		"no store":          {{Type: wire.TypeFound, Payload: (&wire.Found{Group: "g"}).Append(nil)}},
		"ack for found":     {{Type: wire.TypeAck}},
		"bad refuse":        {{Type: wire.TypeRefuse}},
		"garbage landed":    {ok, {Type: wire.TypeLanded, Payload: []byte{1}}},
		"a hole":            {ok, landed(wire.Landed{First: 3, Count: 1, RawSize: 1, Data: []byte{0}})},
		"cut data":          {ok, landed(wire.Landed{Count: 1, RawSize: 1, Data: []byte{9}})},
		"compressed":        {ok, landed(wire.Landed{Count: 1, Codec: wire.CodecZstd, RawSize: 9, Data: []byte{1}})},
		"end":               {ok, {Type: wire.TypeEnd}},
		"batch":             {ok, {Type: wire.TypeBatch}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLandings(5)
				sessions := 0
				r := startSync(t, l, cache.NewMemory(cache.MemoryOptions{}), func(o *broadcast.Options) {
					o.Dial = func(ctx context.Context) (wire.Stream, error) {
						a, b := flow.Pipe()
						sessions++
						for _, f := range frames {
							if err := b.Send(ctx, f); err != nil {
								t.Error(err)
							}
						}
						return a, nil
					}
				})
				settle()
				r.stop()
				if sessions < 4 {
					t.Errorf("%d sessions", sessions)
				}
				if st := r.Status(); st.Problem == "" || st.Applied != 0 {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// TestOneBadLandingStopsNothing damages landings in each part: each is a gap,
// what comes behind is applied.
func TestOneBadLandingStopsNothing(t *testing.T) {
	for name, damage := range map[string]func(e *[2][]byte){
		"envelope": func(e *[2][]byte) { e[0][len(e[0])-1] ^= 1 },
		"header":   func(e *[2][]byte) { e[1][20] ^= 1 },
		"body":     func(e *[2][]byte) { e[1][len(e[1])-1] ^= 1 },
		"nothing":  func(e *[2][]byte) { e[1] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, m := newLandings(5), cache.NewMemory(cache.MemoryOptions{})
				o := newOrigin("rz01-a")
				l.set(t, o, "k", 1, "a")
				l.set(t, o, "k", 2, "b")
				damage(&l.entries[1])
				l.set(t, o, "l", 1, "c")
				r := startSync(t, l, m)
				defer r.stop()
				settle()
				want(t, m, "k", "", 1)
				want(t, m, "l", "c", 1)
				g := *r.gaps
				if len(g) < 2 || g[1].Kind != broadcast.GapDamaged || g[1].Missing.First != 2 || !g[1].Flushed {
					t.Errorf("gaps %v", g)
				}
				if st := r.Status(); st.Rejected != 1 || st.Place.Offset != 3 || st.State != broadcast.StateFollowing {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

func TestNewSyncNamesWhatIsMissing(t *testing.T) {
	_, err := broadcast.NewSync(broadcast.Options{})
	for _, what := range []string{"topic", "subscription", "applier", "dial"} {
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q is not in %v", what, err)
		}
	}
}
