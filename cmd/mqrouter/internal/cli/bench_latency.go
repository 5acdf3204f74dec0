package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// latencyResult is how long messages take from the call of send at one place to
// the return of receive at another. Both ends are this process: one clock.
type latencyResult struct {
	Rate     int           `json:"rate"` // asked for, messages a second
	Sent     uint64        `json:"sent"`
	Received uint64        `json:"received"`
	Mean     time.Duration `json:"mean"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Max      time.Duration `json:"max"`
	Publish  time.Duration `json:"publish_p50"`
	Older    uint64        `json:"older"` // messages of a backlog that were consumed first
}

// latencyTail is how long the receivers wait for what was sent last.
const latencyTail = 2 * time.Second

// stampBytes begin a body: the run, and when it was sent in nanoseconds of it.
const stampBytes = 16

// latencyRun is one run: its number tells its messages from older ones.
type latencyRun struct {
	group     string
	drainTime time.Duration

	number   uint64
	begin    time.Time
	sent     atomic.Uint64
	received atomic.Uint64
	older    atomic.Uint64 // messages of other runs and of other publishers that came

	mu      sync.Mutex
	arrived *hdrhistogram.Histogram // guarded by mu; µs
	answers *hdrhistogram.Histogram // guarded by mu; µs
}

func newBenchLatency(e *env) *cobra.Command {
	b := benchFlags{publishers: []int{8}, batches: []int{1}}
	var to endpointFlags
	var group string
	var drain time.Duration
	c := &cobra.Command{
		Use:   "latency",
		Short: "Measure how long messages take from send to receive",
		Long: `Publish at a steady rate in one zone and receive in another, as a consumer
group that has nothing else to do, and measure from the call of send to the
return of receive; of delayed messages from when they are due. What the group has not consumed yet there comes first: it is
consumed before the run, for as long as --drain, and when there is more, the
command fails: mqrouter group reset skips it.`,
		Example: `  mqrouter bench latency --zone rz01 --to rz04 --topic transfer --group transfer-credit --property userId=1065 --rate 1000`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if drain <= 0 {
				return usageError{errors.New("--drain must be more than 0")}
			}
			if b.rate < 1 || b.duration <= 0 || b.size < stampBytes || group == "" {
				return usageError{fmt.Errorf("--group, --rate and --duration must be given, --size be %d at least", stampBytes)}
			}
			if err := b.kind.check(); err != nil {
				return err
			}
			r, err := b.latency(c.Context(), e, &to, group, drain)
			if err != nil {
				return err
			}
			return e.show(r, func(w io.Writer) {
				t := newTable("RATE", "SENT", "RECEIVED", "MEAN", "P50", "P99", "MAX", "PUBLISH P50")
				t.row(r.Rate, r.Sent, r.Received, age(r.Mean), age(r.P50), age(r.P99), age(r.Max), age(r.Publish))
				t.print(w)
				fmt.Fprint(w, r.notes(group))
			})
		},
	}
	b.at.declare(c)
	e.fleetFlags(c)
	c.Flags().DurationVar(&drain, "drain", 10*time.Second, "how long to consume the group's backlog before the run")
	c.Flags().StringVar(&to.zone, "to", "", "receive from a broker of this zone")
	c.Flags().StringVar(&b.topic, "topic", "transfer", "topic")
	c.Flags().StringVar(&group, "group", "transfer-credit", "consumer group")
	c.Flags().StringArrayVar(&b.properties, "property", nil, "user property NAME=VALUE of every message; NAME=A..B goes through the numbers")
	c.Flags().IntVar(&b.size, "size", 1024, "bytes of a body")
	c.Flags().IntVar(&b.rate, "rate", 1000, "messages a second")
	c.Flags().DurationVar(&b.duration, "duration", 5*time.Second, "length of the run")
	b.kind.declare(c, time.Second)
	return c
}

// notes tells what the numbers leave out; nothing as a rule.
func (r *latencyResult) notes(group string) string {
	text := ""
	if r.Older > 0 {
		text += fmt.Sprintf("%s of a backlog of %s came first and do not count\n", count(int(r.Older), "message", "messages"), group)
	}
	if missed := r.Sent - min(r.Sent, r.Received); missed > 0 {
		text += fmt.Sprintf("%s did not arrive within %v: refused, still on their way, or consumed by somebody else of %s\n", count(int(missed), "message", "messages"), latencyTail, group)
	}
	return text
}

func (b *benchFlags) latency(ctx context.Context, e *env, to *endpointFlags, group string, drain time.Duration) (latencyResult, error) {
	from, err := b.at.resolve(ctx, e)
	if err != nil {
		return latencyResult{}, err
	}
	at, err := to.resolve(ctx, e)
	if err != nil {
		return latencyResult{}, err
	}
	props, err := cycle(b.properties)
	if err != nil {
		return latencyResult{}, usageError{err}
	}
	producer, err := rocketmqclient.NewProducer(ctx, b.at.signs(rocketmqclient.Config{Endpoint: from}), b.topic)
	if err != nil {
		return latencyResult{}, fmt.Errorf("connect to %s: %w", from, err)
	}
	defer producer.Close()
	consumer, err := rocketmqclient.NewSimpleConsumer(ctx, to.signs(rocketmqclient.Config{Endpoint: at}), group, time.Second, rocketmqclient.Subscription{Topic: b.topic})
	if err != nil {
		return latencyResult{}, fmt.Errorf("connect to %s: %w", at, err)
	}
	defer consumer.Close()

	r := &latencyRun{
		group: group, drainTime: drain,
		number: rand.Uint64(), begin: time.Now(),
		arrived: hdrhistogram.New(1, histogramMax, histogramDigits), answers: hdrhistogram.New(1, histogramMax, histogramDigits),
	}
	return r.run(ctx, b, producer, consumer, props)
}

// run sends for the duration and receives until everything is there, or nothing
// more comes.
func (r *latencyRun) run(ctx context.Context, b *benchFlags, p *rocketmqclient.Producer, c *rocketmqclient.SimpleConsumer, props []map[string]string) (latencyResult, error) {
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	// Receives go to the zone's brokers in turn: each needs one that waits there.
	brokers, err := c.Brokers(ctx, b.topic)
	if err != nil {
		return latencyResult{}, fmt.Errorf("bench: %w", err)
	}
	if err := r.drain(ctx, c, brokers); err != nil {
		return latencyResult{}, fmt.Errorf("bench: %w", err)
	}
	r.begin = time.Now()
	failed := make(chan error, 2*max(brokers, 1))
	var receivers, senders sync.WaitGroup
	for range cap(failed) {
		receivers.Go(func() { failed <- r.receive(receiving, c) })
	}
	l := load{Publishers: 8, Batch: 1, Size: b.size, Body: "random", rate: b.rate, kind: b.kind}
	sending, cancel := context.WithDeadline(ctx, r.begin.Add(b.duration))
	defer cancel()
	for i := range l.Publishers {
		senders.Go(func() { r.send(sending, l, uint64(i), b.topic, p, props) })
	}
	senders.Wait()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(latencyTail + b.kind.wait()); r.received.Load() < r.sent.Load() && time.Now().Before(end); {
		<-tick.C
	}
	stop()
	receivers.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return latencyResult{}, fmt.Errorf("bench: %w", err)
	}
	micro := func(v int64) time.Duration { return time.Duration(v) * time.Microsecond }
	h := r.arrived
	return latencyResult{
		Rate: b.rate, Sent: r.sent.Load(), Received: r.received.Load(),
		Mean: time.Duration(h.Mean() * float64(time.Microsecond)), P50: micro(h.ValueAtQuantile(50)), P99: micro(h.ValueAtQuantile(99)), Max: micro(h.Max()),
		Publish: micro(r.answers.ValueAtQuantile(50)), Older: r.older.Load(),
	}, nil
}

// drainers is how many receives consume a backlog at a time.
const drainers = 8

// drain consumes what the group has not consumed yet, until as many receives in a
// row as there are brokers find nothing: the receives go to the brokers in turn.
func (r *latencyRun) drain(ctx context.Context, c *rocketmqclient.SimpleConsumer, brokers int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.drainTime, errBacklog)
	defer cancel()
	var idle atomic.Int64 // receives in a row that found nothing
	var g errgroup.Group
	for range drainers {
		g.Go(func() error {
			for idle.Load() < int64(2*max(brokers, 1)) {
				list, err := c.Receive(ctx, 32, 30*time.Second)
				if err == nil && len(list) > 0 {
					idle.Store(0)
					r.older.Add(uint64(len(list)))
					err = c.Ack(ctx, list...)
				} else if err == nil {
					idle.Add(1)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	if errors.Is(context.Cause(ctx), errBacklog) {
		return fmt.Errorf("%w of %s: %s consumed in %v, and there are more; give a longer --drain, or skip them: mqrouter group reset %s --topic TOPIC --to latest",
			errBacklog, r.group, count(int(r.older.Load()), "message was", "messages were"), r.drainTime, r.group)
	}
	return err
}

// errBacklog ends a drain that takes too long.
var errBacklog = errors.New("an old backlog comes before the messages of the run")

// send publishes at the pace of the load until ctx ends. A failed send counts as
// sent and is missed at the other end.
func (r *latencyRun) send(ctx context.Context, l load, publisher uint64, topic string, p *rocketmqclient.Producer, props []map[string]string) {
	// The publishers take turns, so that the rate is even.
	shift := time.Duration(publisher) * time.Second / time.Duration(l.rate)
	pace, bodies := newPacer(l, r.begin.Add(shift)), newBodies(l, publisher)
	m := &rocketmqclient.Message{Topic: topic}
	one := [1]*rocketmqclient.Message{m}
	for turn := publisher; pace.wait(ctx) && ctx.Err() == nil; turn++ {
		m.Body, m.Properties = bodies.next(m.Body), props[turn%uint64(len(props))]
		sent := time.Since(r.begin)
		binary.LittleEndian.PutUint64(m.Body, r.number)
		binary.LittleEndian.PutUint64(m.Body[8:], uint64(sent+l.kind.wait()))
		l.kind.shape(m, turn)
		r.sent.Add(1)
		if results, err := l.kind.send(context.WithoutCancel(ctx), p, one[:]); err != nil || results[0].Err != nil {
			continue
		}
		r.note(r.answers, time.Since(r.begin)-sent)
	}
}

// receive consumes until ctx ends.
func (r *latencyRun) receive(ctx context.Context, c *rocketmqclient.SimpleConsumer) error {
	for {
		list, err := c.Receive(ctx, 32, 30*time.Second)
		now := time.Since(r.begin)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		for _, m := range list {
			if len(m.Body) < stampBytes || binary.LittleEndian.Uint64(m.Body) != r.number {
				r.older.Add(1)
				continue
			}
			r.note(r.arrived, now-time.Duration(binary.LittleEndian.Uint64(m.Body[8:])))
			r.received.Add(1)
		}
		if len(list) == 0 {
			continue
		}
		if err := c.Ack(ctx, list...); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (r *latencyRun) note(h *hdrhistogram.Histogram, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = h.RecordValue(max(d.Microseconds(), 1)) // over a minute: not a latency any more
}
