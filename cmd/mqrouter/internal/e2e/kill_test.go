package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// publisher publishes one message after another, each exactly once: a failed
// send is not repeated, so that a message with two places was doubled by the
// system.
type publisher struct {
	mu     sync.Mutex
	acked  map[string]bool // guarded by mu: message ids
	failed map[string]bool // guarded by mu: without an answer, or refused
}

func (p *publisher) counts() (acked, failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.acked), len(p.failed)
}

// run publishes to a user of the other city until ctx ends.
func (p *publisher) run(ctx context.Context, t *testing.T, endpoint string, every time.Duration) {
	producer, err := rocketmqclient.NewProducer(ctx, rocketmqclient.Config{Endpoint: endpoint, RequestTimeout: 3 * time.Second}, "transfer")
	if err != nil {
		t.Errorf("producer: %v", err)
		return
	}
	defer producer.Close()
	ids, err := rocketmqclient.NewIDs(rand.Reader)
	if err != nil {
		t.Errorf("ids: %v", err)
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m := &rocketmqclient.Message{Topic: "transfer", ID: ids.Next(), Body: fmt.Appendf(nil, "pay %d", i),
			Properties: map[string]string{"userId": fmt.Sprint(1000 + 10*i + 7)}}
		_, err := producer.Send(context.WithoutCancel(ctx), m)
		p.mu.Lock()
		if err == nil {
			p.acked[m.ID] = true
		} else {
			p.failed[m.ID] = true
		}
		p.mu.Unlock()
	}
}

// places collects where each message id was seen: broker, queue and offset.
type places map[string]map[string]bool

// drain receives until every acknowledged id was seen and nothing comes any more.
func (p places) drain(t *testing.T, endpoint string, acked map[string]bool) {
	t.Helper()
	consumer, err := rocketmqclient.NewSimpleConsumer(t.Context(), rocketmqclient.Config{Endpoint: endpoint}, "credit", time.Second, rocketmqclient.Subscription{Topic: "transfer"})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	eventually(t, "every acknowledged message is received", 2*time.Minute, func() error {
		got, err := consumer.Receive(t.Context(), 32, 30*time.Second)
		if err != nil {
			return err
		}
		for _, m := range got {
			if p[m.MessageID] == nil {
				p[m.MessageID] = map[string]bool{}
			}
			p[m.MessageID][fmt.Sprintf("%s[%d]@%d", m.Broker, m.QueueID, m.Offset)] = true
			if err := consumer.Ack(t.Context(), m); err != nil {
				return err
			}
		}
		missing := 0
		for id := range acked {
			if p[id] == nil {
				missing++
			}
		}
		if missing > 0 || len(got) > 0 {
			return fmt.Errorf("%d of %d acknowledged messages are missing", missing, len(acked))
		}
		return nil
	})
}

// TestSIGTERMOfARouterIsNotNoticed stops routers gracefully, one at a time:
// no publish fails, and traffic goes on over the other one.
func TestSIGTERMOfARouterIsNotNoticed(t *testing.T) {
	c := newCluster(t)
	c.upAll()
	p := &publisher{acked: map[string]bool{}, failed: map[string]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { p.run(ctx, t, c.nodes["rz-a-1"].client, 5*time.Millisecond) })
	for _, name := range []string{"rt-a1", "rt-b1"} {
		from, _ := p.counts()
		c.nodes[name].running.stop(t, 30*time.Second)
		eventually(t, "publishes go on", time.Minute, func() error {
			if acked, _ := p.counts(); acked < from+100 {
				return fmt.Errorf("%d acknowledged since", acked-from)
			}
			return nil
		})
	}
	stop()
	wg.Wait()
	places{}.drain(t, c.nodes["rz-b-1"].client, p.acked)
	if _, failed := p.counts(); failed > 0 {
		t.Errorf("%d publishes failed", failed)
	}
}
