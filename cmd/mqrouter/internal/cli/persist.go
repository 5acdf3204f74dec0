package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
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
// that does not help either. It is safe for concurrent use by callers that share the
// client. The caller closes it when no call is under way.
type persistent[T io.Closer] struct {
	within time.Duration
	open   func(ctx context.Context, addr string) (T, error)
	errOut io.Writer // is told when calls are made again

	opening chan struct{} // full while a client is opened; whoever filled it has addrs
	addrs   []string      // the next to be tried is first

	mu     sync.Mutex
	client T    // guarded by mu
	life   int  // guarded by mu; how many clients were opened
	opened bool // guarded by mu; client is one
	failed int  // guarded by mu; calls in a row that the client failed
	told   bool // guarded by mu; that calls are made again, since one succeeded
}

func newPersistent[T io.Closer](addrs []string, within time.Duration, errOut io.Writer, open func(ctx context.Context, addr string) (T, error)) *persistent[T] {
	return &persistent[T]{addrs: addrs, within: within, open: open, opening: make(chan struct{}, 1), errOut: errOut}
}

// reach opens the client, so that a wrong address fails at once.
func (p *persistent[T]) reach(ctx context.Context) error {
	_, err := p.do(ctx, func(context.Context, T) error { return nil })
	return err
}

// do calls f until it succeeds, or fails for good, and returns how often it was called.
// What f does has to bear a repetition: the answer to a call may be what was lost.
func (p *persistent[T]) do(ctx context.Context, f func(ctx context.Context, client T) error) (calls int, err error) {
	began, caller := time.Now(), ctx
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	pause := pauseFirst
	for tries := 1; ; tries++ {
		var client T
		var life int
		again := err
		client, life, err = p.current(ctx)
		if err == nil {
			calls++
			err = f(ctx, client)
			if err == nil || caller.Err() == nil { // else the caller has ended the call
				p.judge(life, err)
			}
		}
		if err == nil {
			return calls, nil
		}
		if ctx.Err() != nil && again != nil {
			err = again // it says more than that the time was over
		}
		if final(err) || life == 0 && unreached(err) {
			return calls, err
		}
		if tries == 1 && caller.Err() == nil {
			p.tell(err)
		}
		select {
		case <-ctx.Done():
			return calls, fmt.Errorf("after %d tries in %v: %w", tries, time.Since(began).Round(time.Millisecond), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, pauseMost)
	}
}

// current returns the client, opening one if there is none, and which one it is: the
// number of clients that were opened until now, also with an error.
func (p *persistent[T]) current(ctx context.Context) (client T, life int, err error) {
	if client, life, opened := p.present(); opened {
		return client, life, nil
	}
	select {
	case p.opening <- struct{}{}:
		defer func() { <-p.opening }()
	case <-ctx.Done():
		_, life, _ := p.present()
		return client, life, ctx.Err()
	}
	if client, life, opened := p.present(); opened { // by another caller
		return client, life, nil
	}
	client, tried, err := firstOf(ctx, p.within, p.addrs, p.open)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		return client, p.life, err
	}
	p.addrs = append(p.addrs[tried:len(p.addrs):len(p.addrs)], p.addrs[:tried]...)
	p.client, p.opened, p.failed, p.life = client, true, 0, p.life+1
	return client, p.life, nil
}

func (p *persistent[T]) present() (client T, life int, opened bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client, p.life, p.opened
}

// judge notes what became of a call, and parts with a client that fails them.
func (p *persistent[T]) judge(life int, err error) {
	p.mu.Lock()
	if life != p.life || !p.opened {
		p.mu.Unlock()
		return
	}
	gone := false
	if err == nil {
		p.failed, p.told = 0, false
	} else if p.failed++; p.failed > 1 && !final(err) {
		p.opened, gone = false, true
	}
	client := p.client
	p.mu.Unlock()
	if gone {
		client.Close()
	}
}

// tell says that calls are made again, once until one succeeds.
func (p *persistent[T]) tell(err error) {
	p.mu.Lock()
	told := p.told
	p.told = true
	p.mu.Unlock()
	if !told {
		fmt.Fprintf(p.errOut, "trying again for %v: %v\n", p.within, err)
	}
}

func (p *persistent[T]) close() {
	if client, _, opened := p.present(); opened {
		client.Close()
		p.mu.Lock()
		p.opened = false
		p.mu.Unlock()
	}
}

// unreached reports whether an attempt to connect was answered by none of the addresses:
// they are wrong, or all are down.
func unreached(err error) bool {
	var refused *rocketmqclient.StatusError
	return !errors.As(err, &refused)
}
