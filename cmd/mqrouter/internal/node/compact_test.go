package node

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broadcast/cache"
	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/disk"
	"github.com/mqrouter/mqrouter/replication/flow"
	"github.com/mqrouter/mqrouter/replication/wire"
	"github.com/mqrouter/mqrouter/zone"
	"github.com/mqrouter/mqrouter/zone/sample"
)

var seed = flag.Uint64("seed", 0, "run this seed of TestCompactedHistoryEndsAlike only; 0 = all")

// compactSeeds is how many histories are compared; MQROUTER_LONG compares 50
// times as many.
const compactSeeds = 12

// TestCompactedHistoryEndsAlike: whatever changes an origin made while a city was
// away, and in whatever order their versions came, the city's cache ends as one
// that saw them all, although it was sent fewer.
func TestCompactedHistoryEndsAlike(t *testing.T) {
	t.Parallel()
	if *seed != 0 {
		synctest.Test(t, func(t *testing.T) { compareHistories(t, *seed) })
		return
	}
	var compacted uint64
	seeds := uint64(compactSeeds)
	if os.Getenv("MQROUTER_LONG") != "" {
		seeds *= 50
	}
	for s := uint64(1); s <= seeds; s++ {
		synctest.Test(t, func(t *testing.T) { compacted += compareHistories(t, s) })
		if t.Failed() {
			t.Fatalf("-seed %d replays it", s)
		}
	}
	if compacted < seeds*100 {
		t.Fatalf("only %d records were left out in %d histories: the test shows nothing", compacted, seeds)
	}
}

// pair is an origin and the CZone of a city that may be away.
type pair struct {
	t    *testing.T
	topo *zone.Topology
	from *broker.Broker
	to   *broker.Broker
	disk *disk.Mem // of to

	mu    sync.Mutex
	inbox *flow.Inbox // nil: the city is away. Guarded by mu
	wg    sync.WaitGroup
	ctx   context.Context
}

// Open implements flow.Dialer.
func (p *pair) Open(_ context.Context, leg flow.Leg, _ uint64) (wire.Stream, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if leg.Group != "cz-sz-a" || p.inbox == nil {
		return nil, errors.New("no route")
	}
	a, b := flow.Pipe()
	in := p.inbox
	p.wg.Go(func() { _ = in.Serve(p.ctx, b) })
	return a, nil
}

func (p *pair) away(is bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inbox = nil
	if is {
		return
	}
	var err error
	if p.inbox, err = flow.NewInbox(flow.InboxOptions{Sink: p.to.Sink(), City: "shenzhen"}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) open(node zone.Node, fs disk.FS) *broker.Broker {
	p.t.Helper()
	b, err := broker.Open(p.t.Context(), broker.Options{FS: fs, Dir: "store", Node: p.topo.FindNode(node), Topology: p.topo,
		ChangeOf: changeOf, Limits: broker.Limits{SegmentBytes: 1 << 20}})
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// history makes random changes: few keys under two prefixes, versions that do not
// come in order and repeat, values that differ under one version.
type history struct {
	rng  *rand.Rand
	next uint64
}

func (h *history) change() broadcast.Change {
	h.next++
	key := fmt.Sprintf("%c/%d", 'a'+h.rng.IntN(2), h.rng.IntN(12))
	version := h.next/4 + uint64(h.rng.IntN(8)) + 1
	switch h.rng.IntN(12) {
	case 0:
		return broadcast.Change{Op: broadcast.OpDelete, Key: key, Version: version}
	case 1:
		if h.rng.IntN(4) == 0 {
			return broadcast.Change{Op: broadcast.OpFlushPrefix, Key: key[:2], Version: version}
		}
		return broadcast.Change{Op: broadcast.OpFlushPrefix, Key: key, Version: version}
	}
	c := broadcast.Change{Op: broadcast.OpSet, Key: key, Version: version, Value: []byte(strings.Repeat(fmt.Sprint(h.rng.IntN(3)), 100+h.rng.IntN(300)))}
	if h.rng.IntN(6) == 0 {
		c.TTL = time.Duration(1+h.rng.IntN(3)) * 24 * time.Hour
	}
	return c
}

func (p *pair) publish(i int, c broadcast.Change) error {
	p.t.Helper()
	m, err := c.Format()
	if err != nil {
		p.t.Fatal(err)
	}
	msg := broker.Message{Topic: p.from.Topology().FindTopic("member"), ID: fmt.Sprint("m", i), Queue: broker.AnyQueue,
		Keys: []string{m.Key}, Properties: m.Properties, Body: m.Body, Born: time.Now()}
	out := make([]broker.PublishResult, 1)
	if err := p.from.Publish(p.t.Context(), []broker.Message{msg}, out); err != nil {
		p.t.Fatal(err)
	}
	return out[0].Err
}

// settled waits until the city has everything that there is for it.
func (p *pair) settled() broker.OutgoingStatus {
	p.t.Helper()
	for range 1000 {
		synctest.Wait()
		for _, o := range p.from.Status().Outgoing {
			if o.Group == "cz-sz-a" && o.Cursor == o.Head {
				return o
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.t.Fatal("the flow did not settle")
	return broker.OutgoingStatus{}
}

func compareHistories(t *testing.T, seed uint64) uint64 {
	rng := rand.New(rand.NewPCG(seed, 3))
	text := strings.NewReplacer("budget: 256MiB", "budget: 64KiB", "at_budget: refuse", "at_budget: compact", "max_body: 1MiB", "max_body: 32KiB").Replace(string(sample.YAML))
	p := &pair{t: t, topo: parse(t, []byte(text)), disk: disk.NewMem()}
	var stop context.CancelFunc
	p.ctx, stop = context.WithCancel(context.Background())
	originDisk := disk.NewMem()
	p.from, p.to = p.open("rz02-a-1", originDisk), p.open("cz-sz-a-1", p.disk)
	out, err := flow.NewOutbox(flow.OutboxOptions{Source: p.from, Dialer: p, City: "shanghai", Rand: rand.New(rand.NewPCG(seed, 4))})
	if err != nil {
		t.Fatal(err)
	}
	p.wg.Go(func() { _ = out.Run(p.ctx) })
	defer func() {
		stop()
		p.wg.Wait()
		if err := errors.Join(p.from.Close(), p.to.Close()); err != nil {
			t.Error(err)
		}
	}()

	full, h := cache.NewMemory(cache.MemoryOptions{}), &history{rng: rng}
	var place broadcast.Place
	both := func(i int) {
		c := h.change()
		if err := p.publish(i, c); err != nil {
			if broker.KindOf(err) == broker.KindBudget {
				return // what is compacted does not fit: refused, and so nobody's change
			}
			t.Fatal(err)
		}
		c.Stored = time.Now()
		to := broadcast.Place{Group: "all", Incarnation: 1, Offset: place.Offset + 1}
		if _, err := full.Apply(t.Context(), &broadcast.Batch{Topic: "member", From: place, To: to, Changes: []broadcast.Change{c}, Now: time.Now(), Horizon: 24 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		place = to
	}
	p.away(false)
	early := rng.IntN(60)
	for i := range early {
		both(i)
	}
	p.settled()
	p.away(true)
	time.Sleep(time.Minute) // sessions end
	for i := range 300 + rng.IntN(300) {
		both(early + i)
	}
	p.away(false)
	leg := p.settled()
	if leg.Lost > 0 {
		t.Fatalf("%d records were lost where they are to be compacted", leg.Lost)
	}
	compareCaches(t, p, full)
	return leg.Compacted
}

// compareCaches fills a cache from the city's landings and compares it.
func compareCaches(t *testing.T, p *pair, full *cache.Memory) {
	t.Helper()
	got := cache.NewMemory(cache.MemoryOptions{})
	sync, err := broadcast.NewSync(broadcast.Options{City: "shenzhen", Topic: "member", Subscription: "member-cache", Exclusive: true, Applier: got,
		Rand: rand.New(rand.NewPCG(1, 1)),
		Dial: func(ctx context.Context) (wire.Stream, error) {
			a, b := flow.Pipe()
			p.wg.Go(func() {
				first, err := b.Recv(ctx)
				if err == nil {
					_ = p.to.ServeWant(ctx, b, first)
				}
			})
			return a, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan error, 1)
	go func() { done <- sync.Run(ctx) }()
	time.Sleep(5 * time.Second)
	synctest.Wait()
	st := sync.Status()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st.Gaps != 1 || st.Lag != 0 || st.Rejected != 0 { // one is the first start
		t.Fatalf("the reader of landings says %+v", st)
	}
	for i := range 2 {
		for j := range 12 {
			key := fmt.Sprintf("%c/%d", 'a'+i, j)
			a, errA := full.Get(t.Context(), key)
			b, errB := got.Get(t.Context(), key)
			if errA != nil || errB != nil || a.Found != b.Found || !bytes.Equal(a.Value, b.Value) || (a.Found && a.Version != b.Version) {
				t.Errorf("%s: the whole history ends with %v, version %d, %.9q; the compacted one with %v, version %d, %.9q (%v, %v)",
					key, a.Found, a.Version, a.Value, b.Found, b.Version, b.Value, errA, errB)
			}
		}
	}
}
