package broadcast

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/mqrouter/mqrouter/internal/tracing"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
)

// Limits of a Sync and their defaults.
const (
	DefaultHorizon      = 24 * time.Hour
	DefaultBatchChanges = 512
	DefaultBatchBytes   = 1 << 20 // of envelopes and records
	DefaultWindow       = 8192    // landings that may wait here
	DefaultWindowBytes  = 8 << 20 // of them; one landing alone may have more
	DefaultCheck        = time.Second
	maxBackoff          = 500 * time.Millisecond // full jitter; between any two attempts
	maxBatchChanges     = 2048                   // a script of Redis passes no more arguments on
	findTimeout         = 5 * time.Second        // for the answer to Want
)

// Options tell a Sync what to do. The zero value of what is not required takes
// the default.
type Options struct {
	City         zone.City          // for logs and metrics
	Topic        zone.Topic         // required
	Subscription zone.ConsumerGroup // consumer group with cache: true; required
	// Exclusive says that the topic's channel has no other topic: then numbers
	// that never came are a gap.
	Exclusive bool
	Applier   Applier // required
	Kind      string  // of the applier, for people: redis, memory

	// Dial opens a session with the broker group of this city's CZone that owns
	// the channel's slot. It is called again after every end of a session, with
	// back-off. Required.
	Dial func(ctx context.Context) (wire.Stream, error)

	Horizon      time.Duration // how long deletes are remembered
	BatchChanges int
	BatchBytes   int
	Window       int
	WindowBytes  int
	Check        time.Duration // how often an idle cache is asked whether it still stands where it stood

	// KeepStale keeps cached values after a gap; the default is to drop them all,
	// so that nobody reads what may be out of date.
	KeepStale bool
	// OnGap is told of each gap, by Run's goroutine; nil: nobody. It must not block.
	OnGap func(Gap)

	Rand   *rand.Rand   // used by Run's goroutine alone; nil takes a random seed
	Logger *slog.Logger // nil: none
	Meter  metric.Meter // nil: none
	Tracer trace.Tracer // nil: none; spans of traced changes
}

func (o *Options) validate() error {
	var errs []error
	need := func(missing bool, what string) {
		if missing {
			errs = append(errs, fmt.Errorf("broadcast: sync: %s is missing", what))
		}
	}
	need(o.Topic == "", "the topic")
	need(o.Subscription == "", "the subscription")
	need(o.Applier == nil, "the applier")
	need(o.Dial == nil, "the dial function")
	fill(&o.Horizon, DefaultHorizon)
	fill(&o.BatchChanges, DefaultBatchChanges)
	o.BatchChanges = min(o.BatchChanges, maxBatchChanges)
	fill(&o.BatchBytes, DefaultBatchBytes)
	fill(&o.Window, DefaultWindow)
	fill(&o.WindowBytes, DefaultWindowBytes)
	fill(&o.Check, DefaultCheck)
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

func fill[T int | time.Duration](v *T, fallback T) {
	if *v <= 0 {
		*v = fallback
	}
}

// Sync reads the landings of a topic in its city and applies them to a cache. A
// slow or dead cache holds nobody but this reader, and memory stays within the
// window.
type Sync struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	tracer  *tracing.Tracer // nil = off
	board   board

	// Only Run's goroutine.
	place Place
	marks *Marks
}

// NewSync checks the options. Nothing happens before Run.
func NewSync(o Options) (*Sync, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Sync{o: o, marks: NewMarks(nil), log: o.Logger.With("city", string(o.City), "topic", string(o.Topic))}
	var err error
	if s.metrics, err = newMetrics(o.Meter, s); err != nil {
		return nil, err
	}
	if s.tracer, err = tracing.New(o.Tracer, o.Meter); err != nil {
		return nil, err
	}
	s.board.status = Status{Kind: o.Kind, Topic: o.Topic, State: StateConnecting}
	return s, nil
}

// Run reads and applies until ctx ends, and returns nil then: whatever fails is
// tried again. It is called once.
func (s *Sync) Run(ctx context.Context) error {
	if err := s.metrics.observe(s); err != nil {
		return err
	}
	defer s.metrics.stop()
	last := ""
	for ctx.Err() == nil {
		err := s.session(ctx)
		if ctx.Err() != nil {
			break
		}
		s.board.failed(err)
		if text := err.Error(); text != last {
			s.log.Warn("reading of landings was interrupted; it goes on", "err", err)
			last = text
		}
		pause(ctx, s.jitter())
	}
	s.board.state(StateStopped)
	return nil
}

// jitter returns a pause of at most maxBackoff.
func (s *Sync) jitter() time.Duration {
	return time.Duration(s.o.Rand.Int64N(int64(maxBackoff)) + 1)
}

// gap drops what may be stale, then tells.
func (s *Sync) gap(ctx context.Context, g Gap) error {
	g.Topic, g.At = s.o.Topic, time.Now()
	if g.Stale() && !s.o.KeepStale {
		err := s.patiently(ctx, func() error { return s.o.Applier.Flush(ctx, s.o.Horizon) })
		if err != nil {
			return err
		}
		g.Flushed = true
	}
	s.metrics.gap(ctx, g)
	s.board.gap(g)
	if g.Stale() {
		s.log.Error("changes are missing", "gap", g.String(), "flushed", g.Flushed)
	} else {
		s.log.Info("the cache begins empty: what is older than the log is filled from the source")
	}
	if s.o.OnGap != nil {
		s.o.OnGap(g)
	}
	return nil
}

// patiently repeats what the cache failed to do, until it succeeds, is no longer
// where it was, or ctx ends.
func (s *Sync) patiently(ctx context.Context, do func() error) error {
	logged := false
	for {
		err := do()
		var moved *MovedError
		if err == nil || errors.As(err, &moved) || ctx.Err() != nil {
			if logged && err == nil {
				s.log.Info("the cache answers again")
			}
			s.board.cache(nil)
			return err
		}
		s.metrics.failure(ctx)
		s.board.cache(err)
		if !logged {
			logged = true
			s.log.Warn("the cache does not take changes; they wait in the log", "err", err)
		}
		if !pause(ctx, s.jitter()) {
			return ctx.Err()
		}
	}
}
