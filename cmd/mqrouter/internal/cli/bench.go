package cli

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// Bounds of the latency histogram: 1 µs to 60 s in three significant digits.
const (
	histogramMax    = int64(time.Minute / time.Microsecond)
	histogramDigits = 3
)

func newBench(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure publishing, landing, the raw disk, resolving and recovery",
		Long: `Measure this machine. The figures mean little elsewhere: quote them next to
those of 'mqrouter bench raw' from the same disk.`,
	}
	c.AddCommand(newBenchPublish(e), newBenchFlow(e), newBenchLatency(e), newBenchRaw(e), newBenchResolve(e), newBenchRecovery(e), newBenchTopics(e))
	return c
}

// load is one run of publishers.
type load struct {
	Publishers int    `json:"publishers"`
	Batch      int    `json:"messages_per_request"`
	Size       int    `json:"body_bytes"`
	Body       string `json:"body"` // random or json

	duration time.Duration
	rate     int // messages a second over all publishers; 0: as fast as answers come
	messages int // after which it ends; 0: at the end of duration only
	kind     kindFlags
}

// loadResult is what a run measured. Latencies are of whole requests.
type loadResult struct {
	load
	Messages  uint64        `json:"messages"`
	Repeated  uint64        `json:"repeated"` // requests that were made again, each time counted
	Failed    uint64        `json:"failed"`
	PerSecond float64       `json:"per_second"`
	Mean      time.Duration `json:"mean"`
	P50       time.Duration `json:"p50"`
	P99       time.Duration `json:"p99"`
	Max       time.Duration `json:"max"`
	FirstFail string        `json:"first_failure,omitempty"`
}

type benchFlags struct {
	at         endpointFlags
	topic      string
	properties []string
	publishers []int
	batches    []int
	size       int
	body       string
	rate       int
	messages   int
	duration   time.Duration
	kind       kindFlags
}

func (b *benchFlags) declare(e *env, c *cobra.Command, topic string) {
	b.at.declare(c)
	e.fleetFlags(c)
	c.Flags().StringVar(&b.topic, "topic", topic, "topic")
	c.Flags().StringArrayVar(&b.properties, "property", nil, "user property NAME=VALUE of every message; NAME=A..B goes through the numbers")
	c.Flags().IntSliceVar(&b.publishers, "publishers", []int{1, 16, 256}, "publishers that wait for each answer; one run for each number")
	c.Flags().IntSliceVar(&b.batches, "batch", []int{1, 32}, "messages in a request; one run for each number")
	c.Flags().IntVar(&b.size, "size", 1024, "bytes of a body")
	c.Flags().StringVar(&b.body, "body", "random", "random (does not compress) or json (records of a kind)")
	c.Flags().IntVar(&b.rate, "rate", 0, "messages a second over all publishers; 0: as fast as the answers come")
	c.Flags().IntVar(&b.messages, "messages", 0, "messages after which a run ends before --duration; 0: it does not")
	c.Flags().DurationVar(&b.duration, "duration", 5*time.Second, "length of a run")
	b.kind.declare(c, time.Hour)
}

func (b *benchFlags) loads() ([]load, error) {
	if err := b.kind.check(); err != nil {
		return nil, err
	}
	var all []load
	for _, p := range b.publishers {
		for _, n := range b.batches {
			if p < 1 || n < 1 || b.size < 1 || b.duration <= 0 || b.rate < 0 || b.messages < 0 {
				return nil, usageError{errors.New("publishers, batch, size and duration must be above zero, rate and messages not below")}
			}
			if b.body != "random" && b.body != "json" {
				return nil, usageError{fmt.Errorf("--body %q: write random or json", b.body)}
			}
			all = append(all, load{Publishers: p, Batch: n, Size: b.size, Body: b.body, duration: b.duration, rate: b.rate, messages: b.messages, kind: b.kind})
		}
	}
	return all, nil
}

func newBenchPublish(e *env) *cobra.Command {
	var b benchFlags
	c := &cobra.Command{
		Use:   "publish",
		Short: "Measure acknowledged publishes through the RocketMQ 5 front end",
		Long: `Publish to a topic and wait for each answer. A transaction is a half message and
its commit: its time is that of both.

A request that nobody answers, or that is refused for the moment, is made again for
at most 30 seconds, by way of the brokers of the zone that live: the run goes on when
a master is killed. Its time counts from the first attempt, and the attempts that
were made again are counted; messages of which an answer was lost may be stored twice.`,
		Example: `  mqrouter bench publish --zone rz01 --publishers 256 --batch 32`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return b.run(c.Context(), e)
		},
	}
	b.declare(e, c, "orders")
	return c
}

func (b *benchFlags) run(ctx context.Context, e *env) error {
	loads, err := b.loads()
	if err != nil {
		return err
	}
	props, err := cycle(b.properties)
	if err != nil {
		return usageError{err}
	}
	var results []loadResult
	for _, l := range loads {
		r, err := b.publish(ctx, e, l, props)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	return e.show(results, func(w io.Writer) { printLoads(w, results) })
}

func printLoads(w io.Writer, results []loadResult) {
	t := newTable("PUBLISHERS", "PER REQUEST", "BODY", "MSG/S", "MEAN", "P50", "P99", "MAX", "REPEATED", "FAILED")
	for _, r := range results {
		failed := fmt.Sprint(r.Failed)
		if r.FirstFail != "" {
			failed += ": " + r.FirstFail
		}
		t.row(r.Publishers, r.Batch, size(uint64(r.Size)), fmt.Sprintf("%.0f", r.PerSecond), age(r.Mean), age(r.P50), age(r.P99), age(r.Max), r.Repeated, failed)
	}
	t.print(w)
}

// connections returns how many connections carry so many publishers: HTTP/2
// shares one well, and more than a few only cost memory.
func connections(publishers int) int { return min(max(publishers/128, 1), 8) }

// tally counts what became of messages.
type tally struct {
	stored, repeated, failed atomic.Uint64
	first                    atomic.Pointer[string] // the first failure
}

// add counts one request, which was made so often.
func (t *tally) add(calls int, results []rocketmqclient.SendResult) {
	if calls > 1 {
		t.repeated.Add(uint64(calls - 1))
	}
	var err error
	stored := uint64(0)
	for i := range results {
		if results[i].Err != nil {
			err = results[i].Err
			t.failed.Add(1)
			continue
		}
		stored++
	}
	t.stored.Add(stored)
	if err != nil {
		text := err.Error()
		t.first.CompareAndSwap(nil, &text)
	}
}

// publish makes one run.
func (b *benchFlags) publish(ctx context.Context, e *env, l load, props []map[string]string) (loadResult, error) {
	producer, err := b.producer(ctx, e, rocketmqclient.Config{Connections: connections(l.Publishers), RequestTimeout: benchPatience}, b.topic)
	if err != nil {
		return loadResult{}, err
	}
	defer producer.close()
	ids, err := rocketmqclient.NewIDs(crand.Reader)
	if err != nil {
		return loadResult{}, err
	}
	return l.run(ctx, producer, ids, b.topic, props), nil
}

// producer reaches a broker. The caller closes it.
func (b *benchFlags) producer(ctx context.Context, e *env, cfg rocketmqclient.Config, topics ...string) (*persistent[*rocketmqclient.Producer], error) {
	addrs, err := b.at.addresses(ctx, e)
	if err != nil {
		return nil, err
	}
	if cfg.TLS, err = e.fleet.tls(); err != nil {
		return nil, err
	}
	p := b.at.producer(addrs, cfg, benchPatience, e.errOut, topics...)
	return p, p.reach(ctx)
}

func (l load) run(ctx context.Context, producer *persistent[*rocketmqclient.Producer], ids *rocketmqclient.IDs, topic string, props []map[string]string) loadResult {
	r := loadResult{load: l}
	var count tally
	var begun atomic.Int64
	parts := make([]*hdrhistogram.Histogram, l.Publishers)
	begin := time.Now()
	run, cancel := context.WithDeadline(ctx, begin.Add(l.duration))
	defer cancel()
	var wg sync.WaitGroup
	for i := range parts {
		parts[i] = hdrhistogram.New(1, histogramMax, histogramDigits)
		wg.Go(func() {
			pace, bodies, turn := newPacer(l, uint64(i), begin), newBodies(l, uint64(i)), i
			request := newRequest(&l.kind, topic, l.Batch)
			for run.Err() == nil && pace.wait(run) {
				if n := begun.Add(int64(l.Batch)); l.messages > 0 && n > int64(l.messages) {
					return
				}
				for _, m := range request.messages {
					m.Body, m.Properties = bodies.next(m.Body), props[turn%len(props)]
					l.kind.shape(m, uint64(turn))
					turn++
				}
				sent := time.Now()
				calls := request.send(ctx, producer, ids)
				parts[i].RecordValue(max(time.Since(sent).Microseconds(), 1)) //nolint:errcheck // below a minute: see benchPatience
				count.add(calls, request.results)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	all := parts[0]
	for _, p := range parts[1:] {
		all.Merge(p)
	}
	r.Messages, r.Repeated, r.Failed, r.PerSecond = count.stored.Load(), count.repeated.Load(), count.failed.Load(), float64(count.stored.Load())/took.Seconds()
	micro := func(v int64) time.Duration { return time.Duration(v) * time.Microsecond }
	r.Mean, r.P50, r.P99, r.Max = time.Duration(all.Mean()*float64(time.Microsecond)), micro(all.ValueAtQuantile(50)), micro(all.ValueAtQuantile(99)), micro(all.Max())
	if p := count.first.Load(); p != nil {
		r.FirstFail = *p
	}
	return r
}

// maxCycle bounds the numbers of a property in a load.
const maxCycle = 10_000

// cycle returns the properties of the messages of a load, which take turns: one
// set, or one for each number of a value A..B. At most one property may be such.
func cycle(list []string) ([]map[string]string, error) {
	props, err := parseProperties(list)
	if err != nil {
		return nil, err
	}
	sets := []map[string]string{props}
	for name, value := range props {
		from, to, ok := strings.Cut(value, "..")
		first, err1 := strconv.ParseUint(from, 10, 32)
		last, err2 := strconv.ParseUint(to, 10, 32)
		switch {
		case !ok || err1 != nil || err2 != nil:
			continue
		case len(sets) > 1 || last < first || last-first >= maxCycle:
			return nil, fmt.Errorf("--property %s=%s: one property may have numbers A..B, at most %d of them", name, value, maxCycle)
		}
		sets = sets[:0]
		for n := first; n <= last; n++ {
			one := maps.Clone(props)
			one[name] = strconv.FormatUint(n, 10)
			sets = append(sets, one)
		}
	}
	return sets, nil
}

// bodies makes the bodies of one publisher, each different.
type bodies struct {
	json   bool
	size   int
	noise  *rand.ChaCha8
	number uint64
}

func newBodies(l load, publisher uint64) *bodies {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], publisher)
	return &bodies{json: l.Body == "json", size: l.Size, noise: rand.NewChaCha8(seed), number: publisher << 32}
}

// next makes a body in the memory of an earlier one, which may be nil.
func (b *bodies) next(body []byte) []byte {
	if !b.json {
		body = slices.Grow(body[:0], b.size)[:b.size]
		b.noise.Read(body) //nolint:errcheck // never fails
		return body
	}
	for body = body[:0]; len(body) < b.size; {
		b.number++
		n := b.noise.Uint64()
		body = fmt.Appendf(body, `{"transfer":"%016x","payer":%d,"payee":%d,"amount":%d.%02d,"currency":"CNY","sequence":%d},`,
			n, 10_000_000+n%9_000_000, 10_000_000+(n>>24)%9_000_000, (n>>48)%10_000, n%100, b.number)
	}
	return body[:b.size]
}

// pacer spaces the requests of one publisher; the zero interval does not wait.
type pacer struct {
	next     time.Time
	interval time.Duration
}

// newPacer returns the pacer of the publisher, counted from 0. Publishers take turns,
// so that the rate is even: in step they would measure how a burst of them waits.
func newPacer(l load, publisher uint64, begin time.Time) *pacer {
	p := &pacer{next: begin}
	if l.rate > 0 {
		turn := float64(time.Second) * float64(l.Batch) / float64(l.rate)
		p.interval = time.Duration(turn * float64(l.Publishers))
		p.next = begin.Add(time.Duration(turn * float64(publisher)))
	}
	return p
}

// wait blocks until the next request is due; false when ctx ended first.
func (p *pacer) wait(ctx context.Context) bool {
	if p.interval == 0 {
		return true
	}
	d := time.Until(p.next)
	p.next = p.next.Add(p.interval)
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
