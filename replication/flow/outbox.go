package flow

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/loglimit"
	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/zone"
)

// lookEvery is the shortest time between two looks at the source's legs. A leg
// with an open session does not wait for it: its lane watches the flow itself.
const lookEvery = 5 * time.Millisecond

// OutboxOptions says what an Outbox sends and how. Source, Dialer and Rand are
// required.
type OutboxOptions struct {
	Source Source
	Dialer Dialer
	City   zone.City    // of the origin; destinations in it get no compressed batches
	Rand   *rand.Rand   // session ids and jitter; used by the Outbox alone
	Logger *slog.Logger // nil = none
	Meter  metric.Meter // nil = none
	Tracer trace.Tracer // nil = none; outbound spans of traced records
	Limits Limits
	// Idle returns the legs that have everything settled; their destinations are
	// asked from time to time whether they still have it. Nil = none are asked.
	Idle func() []Leg
}

// Outbox sends the flows of an origin: a lane for every leg that has something
// unsettled. Its methods are safe for concurrent use.
type Outbox struct {
	src     Source
	dialer  Dialer
	city    zone.City
	log     *slog.Logger
	lim     Limits
	met     *outboxMetrics
	tracer  *tracing.Tracer // nil = off
	encoder *zstd.Encoder
	cache   *packedCache
	library *library

	idle func() []Leg // may be nil

	kick    chan struct{} // capacity 1: a seal was asked for
	recheck chan struct{} // capacity 1: a destination has started anew

	mu     sync.Mutex
	rng    *rand.Rand               // guarded by mu
	lanes  map[Leg]*lane            // guarded by mu
	routes map[routeKey]*route      // guarded by mu; ways that are lost
	pulls  map[*lane]struct{}       // guarded by mu; sessions of ServePull
	checks verifier                 // guarded by mu
	seals  map[Leg][]chan sealReply // guarded by mu; who waits for a Sealed
}

type sealReply struct {
	through uint64
	err     error
}

// NewOutbox returns an Outbox that Run starts. It fails only when the meter
// refuses an instrument or the encoder its settings.
func NewOutbox(opt OutboxOptions) (*Outbox, error) {
	met, err := newOutboxMetrics(opt.Meter)
	if err != nil {
		return nil, err
	}
	tracer, err := tracing.New(opt.Tracer, opt.Meter)
	if err != nil {
		return nil, err
	}
	enc, err := newEncoder()
	if err != nil {
		return nil, err
	}
	o := &Outbox{
		src: opt.Source, dialer: opt.Dialer, city: opt.City, log: orDiscard(opt.Logger),
		lim: opt.Limits.withDefaults(), met: met, tracer: tracer, encoder: enc, rng: opt.Rand,
		idle: opt.Idle, kick: make(chan struct{}, 1), recheck: make(chan struct{}, 1), routes: make(map[routeKey]*route), lanes: make(map[Leg]*lane), pulls: make(map[*lane]struct{}), seals: make(map[Leg][]chan sealReply),
	}
	o.cache = newPackedCache(o.lim.CacheBytes)
	o.library = newLibrary(o)
	return o, nil
}

func orDiscard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// Run sends until ctx ends, then ends all sessions and returns nil. It is
// called once.
func (o *Outbox) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { o.library.run(ctx) })
	exited := make(chan *lane)
	pause := time.NewTimer(0)
	defer pause.Stop()
	var changed <-chan struct{} // nil while pausing
	verify := time.NewTicker(verifyTick)
	defer verify.Stop()
	start := func(leg Leg, verify bool) {
		l := o.newLane(leg)
		l.verify.Store(verify)
		wg.Go(func() {
			l.run(ctx)
			o.routeFound(l, true)
			select {
			case exited <- l:
			case <-ctx.Done():
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			o.failSeals(ctx.Err())
			return nil
		case <-pause.C:
			changed = o.src.LegsChanged()
		case <-changed:
			changed = nil
			pause.Reset(lookEvery)
		case <-o.kick:
		case <-verify.C:
			for _, leg := range o.verifies() {
				start(leg, true)
			}
			continue
		case <-o.recheck:
			for _, leg := range o.verifies() {
				start(leg, true)
			}
			continue
		case l := <-exited:
			o.mu.Lock()
			delete(o.lanes, l.leg)
			o.mu.Unlock()
		}
		// Every case looks: a record may have come while its lane was leaving.
		for _, leg := range o.wanted() {
			start(leg, false)
		}
	}
}

// wanted returns the legs that need a lane and have none.
func (o *Outbox) wanted() []Leg {
	legs := o.src.Legs()
	o.mu.Lock()
	defer o.mu.Unlock()
	for leg := range o.seals {
		legs = append(slices.Clip(legs), leg)
	}
	var wanted []Leg
	named := make(map[Leg]bool, len(legs))
	for _, leg := range legs {
		if o.lanes[leg] == nil && !named[leg] {
			wanted = append(wanted, leg)
		}
		named[leg] = true
	}
	for leg, l := range o.lanes {
		l.unwanted.Store(!named[leg])
	}
	return wanted
}

func (o *Outbox) newLane(leg Leg) *lane {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := &lane{
		o: o, leg: leg, src: o.src, lim: &o.lim, met: o.met.leg(leg), near: leg.City == o.city,
		rng: rand.New(rand.NewPCG(o.rng.Uint64(), o.rng.Uint64())), path: []zone.City{o.city},
		back: backoff{max: o.lim.MaxBackoff}, sealC: make(chan struct{}, 1), gaps: loglimit.Limit{Lines: 5, Window: repeatLog},
		log: o.log.With("group", string(leg.Group), "city", string(leg.City), "flow", FlowName(leg.Flow)),
	}
	l.status = LegStatus{Leg: leg, State: StateOpening, Since: time.Now()}
	if len(o.seals[leg]) > 0 {
		l.sealC <- struct{}{}
	}
	o.lanes[leg] = l
	return l
}

// Seal asks the destination of a leg to refuse everything above its settled
// prefix for ever, and returns that prefix. It waits until the destination has
// answered, however long that takes, or ctx ends. The source's records above
// the prefix stay unsettled; the caller routes them anew.
func (o *Outbox) Seal(ctx context.Context, leg Leg) (through uint64, err error) {
	c := make(chan sealReply, 1)
	o.mu.Lock()
	o.seals[leg] = append(o.seals[leg], c)
	l := o.lanes[leg]
	o.mu.Unlock()
	signal(o.kick)
	if l != nil {
		signal(l.sealC)
	}
	select {
	case r := <-c:
		return r.through, r.err
	case <-ctx.Done():
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.seals[leg], c); i >= 0 {
		o.seals[leg] = slices.Delete(o.seals[leg], i, i+1)
		if len(o.seals[leg]) == 0 {
			delete(o.seals, leg)
		}
	}
	return 0, ctx.Err()
}

// signal wakes a loop that reads c, which has capacity 1.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sealWanted reports whether somebody waits for the leg's seal.
func (o *Outbox) sealWanted(leg Leg) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.seals[leg]) > 0
}

// sealDone answers everybody who waits for the leg's seal.
func (o *Outbox) sealDone(leg Leg, through uint64) {
	o.mu.Lock()
	waiting := o.seals[leg]
	delete(o.seals, leg)
	o.mu.Unlock()
	for _, c := range waiting {
		c <- sealReply{through: through} // capacity 1, one answer each
	}
}

func (o *Outbox) failSeals(err error) {
	o.mu.Lock()
	all := o.seals
	o.seals = make(map[Leg][]chan sealReply)
	o.mu.Unlock()
	for _, waiting := range all {
		for _, c := range waiting {
			c <- sealReply{err: err}
		}
	}
}
