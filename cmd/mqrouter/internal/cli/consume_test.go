package cli

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// zoneOfBrokers is a consumer whose receives ask one broker after the other. Only the last
// one has messages.
type zoneOfBrokers struct{ brokers, asked, held, acked int }

func (z *zoneOfBrokers) ReceiveWait(ctx context.Context, limit int, _, await time.Duration) ([]*rocketmqclient.Received, error) {
	if z.asked++; z.asked%z.brokers == 0 && z.held > 0 {
		n := min(limit, z.held)
		z.held -= n
		messages := make([]*rocketmqclient.Received, n)
		for i := range messages {
			messages[i] = &rocketmqclient.Received{MessageID: "m"}
		}
		return messages, nil
	}
	select {
	case <-time.After(await):
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (z *zoneOfBrokers) Ack(_ context.Context, ms ...*rocketmqclient.Received) error {
	z.acked += len(ms)
	return nil
}

// TestConsumeLooksAtEachBrokerBeforeItWaits: a message at another broker of the zone than
// the one that is asked first comes soon, and a zone that has nothing is asked seldom.
func TestConsumeLooksAtEachBrokerBeforeItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zoneOfBrokers{brokers: 3, held: 20}
		p := &consumeFlags{count: 20, wait: time.Minute}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), p.wait)
		defer cancel()
		if err := p.loop(ctx, &env{out: io.Discard, errOut: io.Discard}, z); err != nil || z.acked != 20 {
			t.Errorf("%v, %d acknowledged; want 20", err, z.acked)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("messages of the third broker came after %v; want at most a second", took)
		}
		idle := &zoneOfBrokers{brokers: 3}
		quiet, end := context.WithCancel(t.Context()) // a person's Ctrl-C
		time.AfterFunc(10*time.Minute, end)
		if err := (&consumeFlags{wait: time.Minute}).loop(quiet, &env{out: io.Discard, errOut: io.Discard}, idle); err != nil || idle.asked > 200 {
			t.Errorf("%v, asked %d times in ten minutes; want at most 200", err, idle.asked)
		}
	})
}
