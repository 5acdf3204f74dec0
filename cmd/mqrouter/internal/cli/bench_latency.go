package cli

import (
	"context"
	crand "crypto/rand"
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

	"github.com/mqrouter/mqrouter/broker/timer"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
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

// stampBytes begin a body: the run, when it was sent in nanoseconds of it, and its number
// in it.
const stampBytes = 24

// latencyRun is one run: its number tells its messages from older ones.
type latencyRun struct {
	group     string
	drainTime time.Duration

	ids      *rocketmqclient.IDs
	number   uint64
	begin    time.Time
	sent     atomic.Uint64
	received atomic.Uint64
	older    atomic.Uint64 // messages of other runs and of other publishers that came

	mu      sync.Mutex
	came    timer.Set               // guarded by mu; numbers of messages
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
return of receive; of delayed messages from when they are due. What the group has
not consumed yet there comes first: it is consumed before the run, for as long as
--drain, and when there is more, the command fails: mqrouter group reset skips it.

What nobody answers is asked again for at most 30 seconds, by way of the brokers that
live. A message that comes twice counts once.`,
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
	props, err := cycle(b.properties)
	if err != nil {
		return latencyResult{}, usageError{err}
	}
	ids, err := rocketmqclient.NewIDs(crand.Reader)
	if err != nil {
		return latencyResult{}, err
	}
	producer, err := b.producer(ctx, e, rocketmqclient.Config{}, b.topic)
	if err != nil {
		return latencyResult{}, err
	}
	defer producer.close()
	consumer, err := to.consumer(ctx, e, group, b.topic)
	if err != nil {
		return latencyResult{}, err
	}
	defer consumer.close()

	r := &latencyRun{
		group: group, drainTime: drain,
		number: rand.Uint64(), begin: time.Now(), ids: ids,
		arrived: hdrhistogram.New(1, histogramMax, histogramDigits), answers: hdrhistogram.New(1, histogramMax, histogramDigits),
	}
	return r.run(ctx, b, producer, consumer, props)
}

// latencyConsumer is a consumer that outlives its brokers.
type latencyConsumer = persistent[*rocketmqclient.SimpleConsumer]

// consumer reaches a broker of the zone. The caller closes it.
func (p *endpointFlags) consumer(ctx context.Context, e *env, group, topic string) (*latencyConsumer, error) {
	addrs, err := p.addresses(ctx, e)
	if err != nil {
		return nil, err
	}
	secure, err := e.fleet.tls()
	if err != nil {
		return nil, err
	}
	c := newPersistent(addrs, benchPatience, e.errOut, func(ctx context.Context, addr string) (*rocketmqclient.SimpleConsumer, error) {
		return rocketmqclient.NewSimpleConsumer(ctx, p.signs(rocketmqclient.Config{Endpoint: addr, TLS: secure}), group, time.Second, rocketmqclient.Subscription{Topic: topic})
	})
	return c, c.reach(ctx)
}

// receive receives messages and acknowledges those that are there. What cannot be
// acknowledged any more, since its broker has died, comes again later.
func receive(ctx context.Context, c *latencyConsumer) (list []*rocketmqclient.Received, at time.Time, err error) {
	if _, err = c.do(ctx, func(ctx context.Context, c *rocketmqclient.SimpleConsumer) (err error) {
		list, err = c.Receive(ctx, 32, 30*time.Second)
		return err
	}); err != nil || len(list) == 0 {
		return nil, time.Time{}, err
	}
	at = time.Now()
	_, err = c.do(ctx, func(ctx context.Context, c *rocketmqclient.SimpleConsumer) error {
		err := c.Ack(ctx, list...)
		var refused *rocketmqclient.StatusError
		if errors.As(err, &refused) && refused.Code == pb.Code_INVALID_RECEIPT_HANDLE { // which a new master says
			return nil
		}
		return err
	})
	return list, at, err
}

// run sends for the duration and receives until everything is there, or nothing
// more comes.
func (r *latencyRun) run(ctx context.Context, b *benchFlags, p *persistent[*rocketmqclient.Producer], c *latencyConsumer, props []map[string]string) (latencyResult, error) {
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	// Receives go to the zone's brokers in turn: each needs one that waits there.
	var brokers int
	_, err := c.do(ctx, func(ctx context.Context, c *rocketmqclient.SimpleConsumer) (err error) {
		brokers, err = c.Brokers(ctx, b.topic)
		return err
	})
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
func (r *latencyRun) drain(ctx context.Context, c *latencyConsumer, brokers int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.drainTime, errBacklog)
	defer cancel()
	var idle atomic.Int64 // receives in a row that found nothing
	var g errgroup.Group
	for range drainers {
		g.Go(func() error {
			for idle.Load() < int64(2*max(brokers, 1)) {
				list, _, err := receive(ctx, c)
				if err != nil {
					return err
				}
				if len(list) == 0 {
					idle.Add(1)
					continue
				}
				idle.Store(0)
				r.older.Add(uint64(len(list)))
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
func (r *latencyRun) send(ctx context.Context, l load, publisher uint64, topic string, p *persistent[*rocketmqclient.Producer], props []map[string]string) {
	pace, bodies := newPacer(l, publisher, r.begin), newBodies(l, publisher)
	request := newRequest(&l.kind, topic, 1)
	m := request.messages[0]
	for turn := publisher; pace.wait(ctx) && ctx.Err() == nil; turn++ {
		m.Body, m.Properties = bodies.next(m.Body), props[turn%uint64(len(props))]
		sent := time.Since(r.begin)
		binary.LittleEndian.PutUint64(m.Body, r.number)
		binary.LittleEndian.PutUint64(m.Body[8:], uint64(sent+l.kind.wait()))
		binary.LittleEndian.PutUint64(m.Body[16:], r.sent.Add(1))
		l.kind.shape(m, turn)
		if request.send(context.WithoutCancel(ctx), p, r.ids); request.results[0].Err != nil {
			continue
		}
		r.note(r.answers, time.Since(r.begin)-sent)
	}
}

// receive consumes until ctx ends.
func (r *latencyRun) receive(ctx context.Context, c *latencyConsumer) error {
	for {
		list, at, err := receive(ctx, c)
		switch {
		case ctx.Err() != nil && len(list) == 0:
			return nil
		case err != nil && ctx.Err() == nil:
			return err
		}
		for _, m := range list {
			switch {
			case len(m.Body) < stampBytes || binary.LittleEndian.Uint64(m.Body) != r.number:
				r.older.Add(1)
			case r.first(binary.LittleEndian.Uint64(m.Body[16:])):
				r.note(r.arrived, at.Sub(r.begin)-time.Duration(binary.LittleEndian.Uint64(m.Body[8:])))
				r.received.Add(1)
			}
		}
	}
}

// first reports whether a message comes for the first time: one that was sent again, or
// could not be acknowledged, comes twice.
func (r *latencyRun) first(number uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.came.Add(number)
}

func (r *latencyRun) note(h *hdrhistogram.Histogram, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = h.RecordValue(max(d.Microseconds(), 1)) // over a minute: not a latency any more
}
