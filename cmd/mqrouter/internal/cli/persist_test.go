package cli

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mqrouter/mqrouter/internal/rocketmqclient"
	pb "github.com/mqrouter/mqrouter/internal/rocketmqpb"
)

// closer is a client that does nothing but say that it was closed.
type closer struct{ closed *int }

func (c closer) Close() error { *c.closed++; return nil }

// TestACallOutlivesItsFrontEnd: what is not answered, or refused for the moment, is tried
// again, by the same client first and then by a new one, until it is answered or the time
// is over; what is refused for good is not, and nothing is when nobody could be reached.
func TestACallOutlivesItsFrontEnd(t *testing.T) {
	lost := &rocketmqclient.OpError{Op: "SendMessage", Endpoint: "e", Err: errors.New("connection refused")}
	busy := &rocketmqclient.StatusError{Code: pb.Code_TOO_MANY_REQUESTS, Text: "no master"}
	refused := &rocketmqclient.StatusError{Code: pb.Code_TOPIC_NOT_FOUND, Text: "no such topic"}
	const always = 1000
	repeat := func(err error, n int) []error {
		list := make([]error, n)
		for i := range list {
			list[i] = err
		}
		return list
	}
	for _, c := range []struct {
		name         string
		opens, calls []error // one after the other, then all succeed
		made         int     // calls
		opened       int
		err          string
		took         time.Duration // at most
	}{
		{"answered", nil, nil, 1, 1, "", 0},
		{"one that is dead", nil, []error{lost}, 2, 1, "", pauseFirst},
		{"no master for a while", nil, repeat(busy, 4), 5, 3, "", time.Second},
		{"its client does not help", []error{nil, lost, nil}, []error{lost, lost}, 3, 3, "", time.Second},
		{"refused", nil, []error{refused}, 1, 1, "no such topic", 0},
		{"refused after it was lost", nil, []error{lost, refused}, 2, 1, "no such topic", pauseFirst},
		{"nobody is there", repeat(lost, always), nil, 0, 1, "connection refused", 0},
		{"a replica without a master", []error{busy, busy}, nil, 1, 3, "", time.Second},
		{"no master comes", repeat(busy, always), nil, 0, -1, "tries in 10s: connect to a:1: rocketmq status TOO_MANY_REQUESTS", 10 * time.Second},
		{"never answered", nil, repeat(lost, always), -1, -1, "tries in 10s: rocketmq SendMessage at e: connection refused", 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opened, closed, called := 0, 0, 0
				next := func(list *[]error) error {
					if len(*list) == 0 {
						return nil
					}
					err := (*list)[0]
					*list = (*list)[1:]
					return err
				}
				var told strings.Builder
				p := newPersistent([]string{"a:1"}, 10*time.Second, &told, func(context.Context, string) (closer, error) {
					opened++
					return closer{&closed}, next(&c.opens)
				})
				began := time.Now()
				made, err := p.do(t.Context(), func(context.Context, closer) error {
					called++
					return next(&c.calls)
				})
				took := time.Since(began)
				p.close()
				if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
					t.Errorf("%v; want %q", err, c.err)
				}
				if made != called || c.made >= 0 && made != c.made || c.opened >= 0 && opened != c.opened || took > c.took {
					t.Errorf("%d calls, it says %d, %d clients, %v; want %d, %d, at most %v", called, made, opened, took, c.made, c.opened, c.took)
				}
				if again := called+opened > 2; again != (told.Len() > 0) {
					t.Errorf("it said %q", &told)
				}
			})
		})
	}
}

// TestCallersShareAClient: of many callers at once, one opens a client for all, also when
// it fails all of them, and nobody gives up since another's client could not be opened
// for a while. Whoever is answered was called by a client that was not closed.
func TestCallersShareAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := &rocketmqclient.OpError{Op: "SendMessage", Endpoint: "e", Err: errors.New("connection refused")}
		began := time.Now()
		var opened, closed, told atomic.Int64
		down := func() bool { return opened.Load() > 0 && time.Since(began) < 3*time.Second }
		p := newPersistent([]string{"a:1"}, 10*time.Second, writer(func(b []byte) (int, error) { told.Add(1); return len(b), nil }), func(ctx context.Context, _ string) (*counted, error) {
			if down() {
				return nil, lost
			}
			opened.Add(1)
			return &counted{all: &closed}, nil
		})
		if err := p.reach(t.Context()); err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				for range 3 {
					if _, err := p.do(t.Context(), func(_ context.Context, c *counted) error {
						switch {
						case down():
							return lost
						case c.closed.Load():
							return rocketmqclient.ErrClosed
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		p.close()
		if opened.Load() != 2 || closed.Load() != 2 || told.Load() != 1 {
			t.Errorf("%d clients were opened and %d closed, it was told %d times; want 2, 2, 1", opened.Load(), closed.Load(), told.Load())
		}
	})
}

// TestACallThatItsCallerEndsIsNoFailure: nobody is told that it is made again, since it is
// not, and the client stays.
func TestACallThatItsCallerEndsIsNoFailure(t *testing.T) {
	closed := 0
	var told strings.Builder
	p := newPersistent([]string{"a:1"}, 10*time.Second, &told, func(context.Context, string) (closer, error) { return closer{&closed}, nil })
	for range 3 {
		ctx, end := context.WithCancel(t.Context())
		if _, err := p.do(ctx, func(ctx context.Context, _ closer) error { end(); return ctx.Err() }); !errors.Is(err, context.Canceled) {
			t.Errorf("the call ended with %v", err)
		}
	}
	if told.Len() > 0 || closed > 0 {
		t.Errorf("it said %q, and closed %d clients", &told, closed)
	}
	p.close()
}

// counted is a client that knows whether it was closed.
type counted struct {
	closed atomic.Bool
	all    *atomic.Int64
}

func (c *counted) Close() error { c.closed.Store(true); c.all.Add(1); return nil }

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
