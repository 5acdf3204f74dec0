package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/mqrouter/mqrouter/broadcast"
	"github.com/mqrouter/mqrouter/broker"
	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
	"github.com/mqrouter/mqrouter/zone"
)

// client configures a RocketMQ client of a zone.
func (w *world) clientConfig(z zone.Zone, name string, rng *rand.Rand) rocketmqclient.Config {
	info := w.top.FindZone(z)
	return rocketmqclient.Config{
		Endpoint: info.Groups[0].Nodes[0].Client, Dial: w.client(z).Dial, ClientID: name, Rand: bytesOf{rng}, Logger: w.log.With("client", name),
	}
}

// bytesOf is randomness as a reader.
type bytesOf struct{ *rand.Rand }

func (b bytesOf) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.Uint32())
	}
	return len(p), nil
}

// producer publishes one message after another, in one zone.
type producer struct {
	w    *world
	zone *zone.ZoneInfo
	name string
	p    *rocketmqclient.Producer
	seq  int
}

// newProducer connects, however long it takes; nil when ctx ended first.
func (w *world) newProducer(ctx context.Context, z zone.Zone, name string) *producer {
	rng := w.rng("producer " + name)
	for ctx.Err() == nil {
		p, err := rocketmqclient.NewProducer(ctx, w.clientConfig(z, name, rng))
		if err == nil {
			w.wg.Go(func() {
				<-w.ctx.Done()
				_ = p.Close() // it is always nil
			})
			return &producer{w: w, zone: w.top.FindZone(z), name: name, p: p}
		}
		wait(ctx, 200*time.Millisecond)
	}
	return nil
}

// wait sleeps; false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sending is a message to publish.
type sending struct {
	topic  string
	user   string // of transfer
	group  string // of steps: the message group, which is the user id
	to     string // of orders: a zone, or a city
	change *broadcast.Change
	all    bool // to every zone
	size   int
}

// steady publishes n messages, one each pause.
func (p *producer) steady(ctx context.Context, n int, pause time.Duration, what func(i int) sending) {
	for i := range n {
		p.publish(ctx, what(i))
		if !wait(ctx, pause) {
			return
		}
	}
}

// publish sends a message and notes what became of it.
func (p *producer) publish(ctx context.Context, s sending) *published {
	p.seq++
	m := &rocketmqclient.Message{Topic: s.topic, ID: fmt.Sprintf("%s-%d", p.name, p.seq), Properties: map[string]string{}}
	pub := &published{id: m.ID, topic: s.topic, from: p.zone.Name, city: p.zone.City.Name, stream: p.name, seq: p.seq, change: s.change}
	m.Body = []byte(m.ID + strings.Repeat(".", s.size))
	switch {
	case s.change != nil:
		f, err := s.change.Format()
		if err != nil {
			panic(err) // the world's own mistake
		}
		m.Keys, m.Properties, m.Body = []string{f.Key}, f.Properties, f.Body
		for _, c := range p.w.top.Cities {
			pub.to = append(pub.to, c.CZone.Name)
		}
	case s.all:
		for _, z := range p.w.top.Zones() {
			pub.to = append(pub.to, z.Name)
		}
		pub.order = "channel"
	case s.user != "":
		m.Properties["user"] = s.user
		shard, err := p.w.top.ShardOf(s.user)
		if err != nil {
			panic(err)
		}
		pub.order = "user " + s.user
		pub.to = []zone.Zone{p.w.top.ShardOwner(shard).Name}
	case s.group != "":
		m.MessageGroup = s.group
		shard, err := p.w.top.ShardOf(s.group)
		if err != nil {
			panic(err)
		}
		pub.order, pub.group = "message group "+s.group, s.group
		pub.to = []zone.Zone{p.w.top.ShardOwner(shard).Name}
	case s.to != "":
		m.Properties["to"] = s.to
		pub.to = []zone.Zone{p.w.top.FindDestination(s.to).Name}
	default:
		pub.to = []zone.Zone{p.zone.Name}
	}
	if s.change != nil {
		pub.order = "channel"
	}
	if len(p.zone.Groups) > 1 && s.group == "" {
		pub.order = "" // each group of the zone has a flow of its own
	}
	p.w.hist.begin(pub)
	r, err := p.p.Send(ctx, m)
	p.w.hist.end(pub, r.Text, err)
	return pub
}

// refused reports whether an error is the broker's answer that it has not stored
// the message. Most answers leave it open: a log that a failed sync has stopped
// may have it, and so may one that was only slow.
func refused(err error) bool {
	var st *rocketmqclient.StatusError
	return errors.As(err, &st) && st.Code == pb.Code_TOO_MANY_REQUESTS &&
		(strings.Contains(st.Text, broker.KindDiskFull.String()) || strings.Contains(st.Text, broker.KindBudget.String()))
}

// traffic publishes at random until ctx ends.
func (p *producer) traffic(ctx context.Context, pause time.Duration) {
	rng := p.w.rng("traffic " + p.name)
	var zones []string
	for _, z := range p.w.top.Zones() {
		zones = append(zones, string(z.Name))
	}
	for wait(ctx, time.Duration(1+rng.Int64N(2*int64(pause)))) {
		for range 1 + rng.IntN(3) {
			s := sending{size: rng.IntN(400)}
			if rng.IntN(30) == 0 {
				s.size = 20_000 + rng.IntN(40_000)
			}
			switch k := rng.IntN(10); {
			case k < 4:
				s.topic, s.user = "transfer", strconv.Itoa(1000+rng.IntN(100))
			case k < 6:
				s.topic, s.to = "orders", zones[rng.IntN(len(zones))]
			case k < 7:
				s.topic = "notes"
			case k < 8 && p.w.top.FindTopic("rules") != nil:
				s.topic, s.all = "rules", true
			default:
				s.topic, s.change = "member", p.w.hist.change(rng)
			}
			p.publish(ctx, s)
		}
	}
}

// consumer receives for a consumer group in a zone, and acknowledges most.
type consumer struct {
	w     *world
	zone  *zone.ZoneInfo
	group string
	topic string
	name  string
	wait  time.Duration // that a receive waits for a message
}

// consume runs until ctx ends. careless is the chance that a message is not
// acknowledged.
func (c *consumer) consume(ctx context.Context, careless float64) {
	rng := c.w.rng("consumer " + c.name)
	for ctx.Err() == nil {
		sc, err := rocketmqclient.NewSimpleConsumer(ctx, c.w.clientConfig(c.zone.Name, c.name, rng), c.group, 5*time.Second,
			rocketmqclient.Subscription{Topic: c.topic})
		if err != nil {
			c.w.log.Warn("consumer", "client", c.name, "err", err)
			wait(ctx, 300*time.Millisecond)
			continue
		}
		for ctx.Err() == nil {
			c.once(ctx, sc, rng, careless)
		}
		_ = sc.Close() // it is always nil
	}
}

func (c *consumer) once(ctx context.Context, sc *rocketmqclient.SimpleConsumer, rng *rand.Rand, careless float64) {
	lives := c.lives()
	got, err := sc.ReceiveWait(ctx, 16, 10*time.Second, c.wait)
	if err != nil {
		c.w.log.Warn("receive", "client", c.name, "err", err)
		wait(ctx, 200*time.Millisecond)
		return
	}
	after := c.lives()
	var ack []*rocketmqclient.Received
	for _, m := range got {
		d := &delivered{id: m.MessageID, topic: m.Topic, zone: c.zone.Name, group: c.group, broker: m.Broker,
			queue: m.QueueID, offset: m.Offset, attempt: m.Attempt, life: lives[m.Broker]}
		if lives[m.Broker] != after[m.Broker] {
			d.life = -1 // of one of two stores
		}
		d.acked = careless == 0 || rng.Float64() >= careless
		c.w.hist.deliver(d)
		if d.acked {
			ack = append(ack, m)
		}
	}
	if len(ack) > 0 {
		_ = sc.Ack(ctx, ack...) // what is not acknowledged comes again
	}
}

// lives returns the lives of the zone's stores by name of the group.
func (c *consumer) lives() map[string]int64 {
	out := map[string]int64{}
	for _, g := range c.zone.Groups {
		out[string(g.Name)] = c.w.nodes[g.Nodes[0].Name].life.Load()
	}
	return out
}

// consumers starts a consumer for each group in each zone where it consumes.
func (w *world) consumers(ctx context.Context, careless float64) {
	for _, z := range w.top.Zones() {
		for _, name := range []zone.ConsumerGroup{"transfer-credit", "orders-pack", "notes-read", "member-watch", "rules-watch", "steps-work"} {
			g := w.top.FindConsumerGroup(name)
			if g == nil || !w.top.ConsumedIn(g, z) {
				continue
			}
			c := &consumer{w: w, zone: z, group: string(name), topic: string(g.Topics[0].Name), name: string(name) + "@" + string(z.Name), wait: 5 * time.Second}
			if len(z.Groups) > 1 {
				c.wait = time.Second // one broker is asked after the other
			}
			w.wg.Go(func() { c.consume(ctx, careless) })
		}
	}
}

// reader reads a key of the city's cache again and again and notes what it sees.
func (w *world) readCaches(ctx context.Context) {
	for _, c := range w.top.Cities {
		s := w.caches[c.Name]
		if s == nil {
			continue
		}
		w.wg.Go(func() {
			for wait(ctx, 100*time.Millisecond) {
				for _, key := range w.hist.keys {
					if e, err := s.Get(ctx, key); err == nil {
						w.hist.read(c.Name, key, &e, s)
					}
				}
			}
		})
	}
}
