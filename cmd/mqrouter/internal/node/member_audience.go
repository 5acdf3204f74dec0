package node

import (
	"context"
	"sync"
)

// audience is the sessions that a master serves. They end with its reign: the node's
// listener lasts longer, and a session that stayed would hang on a broker that answers
// nothing any more, held for ever. The zero value admits nobody. It is safe for
// concurrent use.
type audience struct {
	mu       sync.Mutex
	reign    context.Context    // nil before the reign and after it; guarded by mu
	end      context.CancelFunc // likewise
	sessions sync.WaitGroup
}

// admit lets sessions in from now on.
func (a *audience) admit() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reign, a.end = context.WithCancel(context.Background())
}

// enter returns the context of a session, which ends with ctx and with the reign; leave
// is called when the session is over. ok is false while nobody is let in.
func (a *audience) enter(ctx context.Context) (_ context.Context, leave func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reign == nil {
		return ctx, nil, false
	}
	a.sessions.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(a.reign, cancel)
	return ctx, func() {
		stop()
		cancel()
		a.sessions.Done()
	}, true
}

// dismiss ends every session and waits until all are over; nobody is let in any more.
func (a *audience) dismiss() {
	a.mu.Lock()
	if a.reign != nil {
		a.end()
		a.reign, a.end = nil, nil
	}
	a.mu.Unlock()
	a.sessions.Wait()
}
