package flow

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/replication/record"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the simulation with this seed only, and log")
	seedsFlag = flag.Uint64("seeds", simSeeds, "run the simulation with this many seeds")
)

// world is one origin, three destinations (one of them the origin's own
// group) and the net between them.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	ctx   context.Context
	log   *slog.Logger
	lim   Limits
	src   *memSource
	sinks map[zone.Group]*memSink
	net   *simNet
	uni   []record.FlowID
	all   []record.FlowID

	mu     sync.Mutex
	dests  map[zone.Group]*process // guarded by mu; nil = down
	inbox  map[zone.Group]*Inbox   // guarded by mu
	origin *process
	outbox *Outbox
	wg     sync.WaitGroup // ghosts
	faults []string

	originRestored bool
	watch          func(leg Leg, s wire.Stream) wire.Stream // stands around every stream that the origin opens; may be nil
	dictionary     *dictionary                              // of topic "t" at every start of the origin; nil = none
}

// process is what dies together.
type process struct {
	cancel context.CancelFunc
	ctx    context.Context
	wg     sync.WaitGroup
}

func start(ctx context.Context) *process {
	p := &process{}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

func (p *process) kill() {
	p.cancel()
	p.wg.Wait()
}

func newWorld(t *testing.T, ctx context.Context, seed uint64, lim Limits) *world {
	w := &world{
		t: t, ctx: ctx, rng: rand.New(rand.NewPCG(seed, 1)), log: slog.New(slog.DiscardHandler), lim: lim,
		sinks: map[zone.Group]*memSink{}, dests: map[zone.Group]*process{}, inbox: map[zone.Group]*Inbox{},
	}
	if *seedFlag != 0 {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	w.src = newMemSource(rand.New(rand.NewPCG(seed, 2)))
	w.net = &simNet{rng: rand.New(rand.NewPCG(seed, 3)), delay: 15 * time.Millisecond, streams: map[*simEnd]bool{}, serve: w.serve, record: true}
	inc := record.Incarnation(w.rng.Uint64() | 1)
	for lane := range uint8(2) {
		id := record.FlowID{Origin: "a", Incarnation: inc, Target: "b", Class: zone.ClassBulk, Lane: lane}
		w.src.addFlow(id, Leg{Flow: id, City: "B", Group: "b"})
		w.uni = append(w.uni, id)
	}
	ch := record.FlowID{Origin: "a", Incarnation: inc, Target: "ch", Channel: true, Class: zone.ClassUrgent}
	w.src.addFlow(ch, Leg{ch, "A", "a"}, Leg{ch, "B", "b"}, Leg{ch, "C", "c"})
	w.all = append(w.uni, ch)
	for i, g := range []zone.Group{"a", "b", "c"} {
		w.sinks[g] = newMemSink(rand.New(rand.NewPCG(seed, 10+uint64(i))), g)
	}
	for g := range w.sinks {
		w.startDest(g)
	}
	w.src.onMoved = w.checkSettle
	w.src.restart()
	w.startOrigin()
	return w
}

func (w *world) fault(format string, args ...any) {
	w.mu.Lock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
	w.mu.Unlock()
}

// checkSettle fails when the origin takes a number for settled that its
// destination never committed. w.src.mu is held.
func (w *world) checkSettle(leg Leg, s Settlement) {
	f, c := w.src.flows[leg.Flow], w.src.legs[leg]
	sink := w.sinks[leg.Group]
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for n := c.settled + 1; n <= s.Through; n++ {
		row, _ := markAt(f.lineage, n)
		if !sink.ever[everKey{leg.Flow, row.ID, n}] {
			w.fault("%s to %s: %d settled, but not committed there", FlowName(leg.Flow), leg.Group, n)
		}
	}
}

func (w *world) serve(leg Leg, s wire.Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, in := w.dests[leg.Group], w.inbox[leg.Group]
	if p == nil {
		go s.Close(wire.CodeNoRoute)
		return
	}
	p.wg.Go(func() { _ = in.Serve(p.ctx, s) })
}

// Open implements Dialer: the origin's own group is reached by a pipe.
func (w *world) Open(ctx context.Context, leg Leg, session uint64) (wire.Stream, error) {
	var s wire.Stream
	var err error
	if leg.Group == "a" {
		a, b := Pipe()
		w.serve(leg, b)
		s = a
	} else if s, err = w.net.Open(ctx, leg, session); err != nil {
		return nil, err
	}
	if w.watch != nil {
		s = w.watch(leg, s)
	}
	return s, nil
}

func (w *world) startDest(g zone.Group) {
	in, err := NewInbox(InboxOptions{Sink: w.sinks[g], City: city(g), Logger: w.log.With("at", string(g)), Limits: w.lim})
	if err != nil {
		w.t.Fatal(err)
	}
	p := start(w.ctx)
	p.wg.Go(func() { w.sinks[g].run(p.ctx) })
	w.mu.Lock()
	w.dests[g], w.inbox[g] = p, in
	w.mu.Unlock()
}

func city(g zone.Group) zone.City { return zone.City(g[0] - 'a' + 'A') }

func (w *world) stopDest(g zone.Group) {
	w.mu.Lock()
	p := w.dests[g]
	w.dests[g] = nil
	w.mu.Unlock()
	p.kill()
	w.sinks[g].crash()
}

func (w *world) startOrigin() {
	o, err := NewOutbox(OutboxOptions{
		Source: w.src, Dialer: w, City: "A", Rand: rand.New(rand.NewPCG(w.rng.Uint64(), 4)),
		Logger: w.log.With("at", "origin"), Limits: w.lim,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.dictionary != nil {
		o.library.topic([]byte("t"), time.Now()).current.Store(w.dictionary)
	}
	p := start(w.ctx)
	p.wg.Go(func() { _ = o.Run(p.ctx) })
	w.origin, w.outbox = p, o
}

// publish appends a few records somewhere.
func (w *world) publish() {
	id := w.all[w.rng.IntN(len(w.all))]
	for range 1 + w.rng.IntN(20) {
		tag, size := "ok", w.rng.IntN(300)
		switch w.rng.IntN(40) {
		case 0:
			tag = "bad"
		case 1:
			size = 40 << 10
		}
		switch {
		case id.Channel && w.rng.IntN(10) == 0:
			w.src.publish(id, tag, size, "A", "B")
		default:
			w.src.publish(id, tag, size)
		}
	}
}

// fault schedule: one step of trouble.
func (w *world) trouble() {
	g := []zone.Group{"a", "b", "c"}[w.rng.IntN(3)]
	sink, dir := w.sinks[g], w.rng.IntN(2)
	switch w.rng.IntN(14) {
	case 0:
		w.net.reset(0.5, false)
	case 1:
		w.net.reset(0.3, true)
	case 2:
		w.net.set(func() { w.net.down = !w.net.down })
	case 3:
		w.net.set(func() {
			if w.net.still[dir] == nil {
				w.net.still[dir] = make(chan struct{})
			} else {
				close(w.net.still[dir])
				w.net.still[dir] = nil
			}
		})
	case 4:
		w.net.haunt(w.ctx, &w.wg)
	case 5:
		sink.set(func(m *memSink) { m.delay = time.Duration(w.rng.IntN(200)) * time.Millisecond })
	case 6:
		sink.set(func(m *memSink) {
			if m.held == nil {
				m.held = &HeldError{Code: wire.CodeHeld, Err: fmt.Errorf("disk full")}
			} else {
				m.held = nil
			}
		})
	case 7:
		sink.set(func(m *memSink) { m.failNext = true })
	case 8:
		w.stopDest(g)
		w.startDest(g)
	case 9:
		w.origin.kill()
		w.src.restart()
		w.startOrigin()
	case 10:
		w.src.mu.Lock()
		w.src.failing = !w.src.failing
		w.src.mu.Unlock()
	case 11:
		w.net.set(func() { w.net.delay = time.Duration(1+w.rng.IntN(80)) * time.Millisecond })
	default:
		w.publish()
	}
}

// heal ends all trouble.
func (w *world) heal() {
	w.net.set(func() {
		w.net.down, w.net.delay, w.net.rate, w.net.record = false, 15*time.Millisecond, 0, false
		for i, c := range w.net.still {
			if c != nil {
				close(c)
				w.net.still[i] = nil
			}
		}
	})
	for _, s := range w.sinks {
		s.set(func(m *memSink) { m.held, m.failNext, m.delay = nil, false, time.Millisecond })
	}
	w.src.mu.Lock()
	w.src.failing = false
	w.src.mu.Unlock()
}

// quiet waits, in simulated time, until every leg is settled.
func (w *world) quiet(limit time.Duration) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if len(w.src.Legs()) == 0 {
			return true
		}
	}
	return false
}

func (w *world) stop() {
	w.origin.kill()
	for _, g := range []zone.Group{"a", "b", "c"} {
		w.stopDest(g)
	}
	w.wg.Wait()
	time.Sleep(5 * time.Second) // simulated: timers of ended streams
}

// TestFlowSurvivesFaults runs a schedule of faults for each seed. A seed fixes
// the schedule and every random choice, not the order in which goroutines that
// are ready at one simulated instant run: a rare failure may need -count.
func TestFlowSurvivesFaults(t *testing.T) {
	seeds := make([]uint64, 0, *seedsFlag)
	for s := range *seedsFlag {
		seeds = append(seeds, s+1)
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { simulate(t, seed) }) })
	}
}

func simulate(t *testing.T, seed uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lim := Limits{BatchNumbers: 16, BatchBytes: 8 << 10, MemoryBytes: 256 << 10, MinWindow: 16 << 10, MaxWindow: 64 << 10, NumberWindow: 64, InFlight: 8}
	w := newWorld(t, ctx, seed, lim)
	if seed%2 == 0 {
		w.dictionary = simDictionary(t)
	}
	for _, s := range w.sinks {
		s.limit = lim.MemoryBytes
	}
	var restores []func()
	for range 60 {
		time.Sleep(time.Duration(w.rng.IntN(200)) * time.Millisecond)
		w.publish()
		switch g := []zone.Group{"b", "c"}[w.rng.IntN(2)]; w.rng.IntN(30) {
		case 0: // the destination's store is lost
			w.stopDest(g)
			w.sinks[g].wipe()
			w.startDest(g)
		case 1:
			restores = append(restores, w.destRestore(g))
		case 2:
			restores = append(restores, w.originRestore())
		case 3:
			if len(restores) > 0 { // once each
				i := w.rng.IntN(len(restores))
				restores[i]()
				restores = append(restores[:i:i], restores[i+1:]...)
			}
		case 4:
			id := w.all[w.rng.IntN(len(w.all))]
			w.src.trim(id, 1+uint64(w.rng.Int64N(int64(w.headOf(id))+1)))
		default:
			w.trouble()
		}
	}
	w.heal()
	time.Sleep(6 * time.Second) // streams that fell silent are found by the watchdog
	for _, id := range w.all {
		w.src.publish(id, "ok", 10)
	}
	if !w.quiet(60 * time.Second) {
		for _, st := range w.outbox.Status() {
			t.Logf("leg: %+v", st)
		}
		t.Errorf("not everything settled")
	} else {
		w.check()
	}
	w.stop()
	w.report(seed)
}

func (w *world) headOf(id record.FlowID) uint64 {
	o, _ := w.src.Origin(id)
	return o.Head
}

// destRestore takes a copy of a destination; the function puts it back.
func (w *world) destRestore(g zone.Group) func() {
	restore := w.sinks[g].snapshot()
	return func() {
		w.stopDest(g)
		restore()
		w.startDest(g)
	}
}

func (w *world) originRestore() func() {
	restore := w.src.snapshot()
	return func() {
		w.origin.kill()
		restore()
		w.originRestored = true
		w.src.restart()
		w.startOrigin()
	}
}

func (w *world) report(seed uint64) {
	for g, s := range w.sinks {
		for _, f := range s.faults {
			w.faults = append(w.faults, fmt.Sprintf("%s: %s", g, f))
		}
	}
	for i, f := range w.faults {
		if i < 10 {
			w.t.Errorf("%s", f)
		}
	}
	if w.t.Failed() {
		w.t.Errorf("replay with: go test ./replication/flow -run TestFlowSurvivesFaults -count 30 -seed %d", seed)
	}
}
