package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
)

// The pauses before a call is made again: a broker group has another master within some
// seconds.
const (
	pauseFirst = 50 * time.Millisecond
	pauseMost  = time.Second
)

// persistent is a client of the RocketMQ protocol that outlives the front end which it
// talks to. A call that nobody answers, or that is refused for the moment, is made again
// until it has taken within: by the same client, which passes over an endpoint that does
// not answer and asks for its routes anew, and by way of the next of the addresses when
// that does not help either. The caller closes it.
type persistent[T io.Closer] struct {
	addrs  []string // the next to be tried is first
	within time.Duration
	open   func(ctx context.Context, addr string) (T, error)
	errOut io.Writer // is told when a call is made again

	client T
	opened bool // client is one
	failed int  // calls in a row that the client failed
}

// do calls f until it succeeds, or fails for good, and returns how often it was called.
// What f does has to bear a repetition: the answer to a call may be what was lost.
func (p *persistent[T]) do(ctx context.Context, f func(ctx context.Context, client T) error) (calls int, err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	pause := pauseFirst
	for tries := 1; ; tries++ {
		var called bool
		again := err
		if called, err = p.try(ctx, f); called {
			calls++
		}
		if err == nil {
			return calls, nil
		}
		if ctx.Err() != nil && again != nil {
			err = again // it says more than that the time was over
		}
		if final(err) || !called && calls == 0 && unreached(err) {
			return calls, err
		}
		if tries == 1 {
			fmt.Fprintf(p.errOut, "trying again for %v: %v\n", p.within, err)
		}
		select {
		case <-ctx.Done():
			return calls, fmt.Errorf("after %d tries in %v: %w", tries, time.Since(began).Round(time.Millisecond), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, pauseMost)
	}
}

// try calls f once, or fails to reach anybody to call.
func (p *persistent[T]) try(ctx context.Context, f func(ctx context.Context, client T) error) (called bool, err error) {
	if !p.opened {
		client, tried, err := firstOf(ctx, p.within, p.addrs, p.open)
		if err != nil {
			return false, err
		}
		p.client, p.opened, p.failed = client, true, 0
		p.addrs = append(p.addrs[tried:len(p.addrs):len(p.addrs)], p.addrs[:tried]...)
	}
	if err = f(ctx, p.client); err == nil {
		p.failed = 0
	} else if p.failed++; p.failed > 1 && !final(err) {
		p.close()
	}
	return true, err
}

func (p *persistent[T]) close() {
	if p.opened {
		p.client.Close()
		p.opened = false
	}
}

// unreached reports whether an attempt to connect was answered by none of the addresses:
// they are wrong, or all are down.
func unreached(err error) bool {
	var refused *rocketmqclient.StatusError
	return !errors.As(err, &refused)
}
