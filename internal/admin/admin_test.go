package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
)

type fakeNode struct{ ready bool }

func (f fakeNode) Status() Status {
	return Status{Node: "rz01-a", Role: "broker", Ready: f.ready, Reasons: []string{"replaying the log"}}
}
func (fakeNode) Topology() []byte { return []byte("deployment: sample\n") }
func (fakeNode) Find(_ context.Context, id string) ([]Sighting, error) {
	if id == "none" {
		return nil, nil
	}
	return []Sighting{{Node: "rz01-a", Topic: id}}, nil
}
func (fakeNode) CacheGet(_ context.Context, key string) (CacheEntry, error) {
	if key == "a/b?c" || key == ".." {
		return CacheEntry{Key: key, Found: true, Version: 1<<63 + 1}, nil
	}
	return CacheEntry{}, ErrNotServed
}

func serve(t *testing.T, n Node) string {
	t.Helper()
	meters, err := NewMeters()
	if err != nil {
		t.Fatal(err)
	}
	counter, err := meters.Meter("test").Int64Counter("mqrouter.test", metric.WithUnit("{thing}"))
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	s, err := Listen(t.Context(), Options{Addr: "127.0.0.1:0", Node: n, Metrics: meters.Handler(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s.Addr()
}

func body(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestReadyzGivesTheReasons(t *testing.T) {
	code, text := body(t, "http://"+serve(t, fakeNode{})+"/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(text, "replaying the log") {
		t.Errorf("not ready: got %d %q", code, text)
	}
	if code, _ := body(t, "http://"+serve(t, fakeNode{ready: true})+"/readyz"); code != http.StatusOK {
		t.Errorf("ready: got %d", code)
	}
}

func TestMetricsShowTheNodesMeters(t *testing.T) {
	code, text := body(t, "http://"+serve(t, fakeNode{})+"/metrics")
	if code != http.StatusOK || !strings.Contains(text, "mqrouter_test_total 3") {
		t.Errorf("metrics: got %d\n%s", code, text)
	}
}

func TestClientReadsWhatTheNodeShows(t *testing.T) {
	addr := serve(t, fakeNode{ready: true})
	c := NewClient(nil, 5*time.Second)
	if s, err := c.Status(t.Context(), addr); err != nil || s.Node != "rz01-a" || !s.Ready {
		t.Errorf("Status: %+v, %v", s, err)
	}
	if b, err := c.Topology(t.Context(), addr); err != nil || string(b) != "deployment: sample\n" {
		t.Errorf("Topology: %q, %v", b, err)
	}
	if f, err := c.Find(t.Context(), addr, "01AB"); err != nil || len(f) != 1 || f[0].Topic != "01AB" {
		t.Errorf("Find: %+v, %v", f, err)
	}
	if f, err := c.Find(t.Context(), addr, "none"); err != nil || f == nil || len(f) != 0 {
		t.Errorf("Find of nothing: %#v, %v", f, err)
	}
	for _, key := range []string{"a/b?c", ".."} {
		if e, err := c.CacheGet(t.Context(), addr, key); err != nil || !e.Found || e.Key != key || e.Version != 1<<63+1 {
			t.Errorf("CacheGet %q: %+v, %v", key, e, err)
		}
	}
	var answer *AnswerError
	if _, err := c.CacheGet(t.Context(), addr, "x"); !errors.As(err, &answer) || answer.Status != http.StatusNotFound {
		t.Errorf("CacheGet on a node without a cache: %v", err)
	}
}

func TestListenRefusesAnOpenAddressWithoutMutualTLS(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", "[::]:0", ":0", "example.com:1", "nonsense"} {
		if s, err := Listen(t.Context(), Options{Addr: addr, Node: fakeNode{}}); err == nil {
			s.ln.Close()
			t.Errorf("Listen(%q) was allowed", addr)
		}
	}
}

// slowNode searches until it is told to stop by the request's context.
type slowNode struct {
	fakeNode
	entered chan struct{}
	left    *atomic.Int64
}

func (n slowNode) Find(ctx context.Context, _ string) ([]Sighting, error) {
	n.entered <- struct{}{}
	<-ctx.Done()
	n.left.Add(1)
	return nil, ctx.Err()
}

// TestSearchesAreBoundedAndJoined holds the search slots, asks for one more, and
// stops the server under them.
func TestSearchesAreBoundedAndJoined(t *testing.T) {
	n := slowNode{entered: make(chan struct{}), left: new(atomic.Int64)}
	meters, err := NewMeters()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(t.Context(), Options{Addr: "127.0.0.1:0", Node: n, Metrics: meters.Handler(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	asking, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	c := NewClient(nil, time.Minute)
	var asked sync.WaitGroup
	for range maxSearches {
		asked.Go(func() { _, _ = c.Find(asking, s.Addr(), "id") }) // it is cut off
		<-n.entered
	}
	var answer *AnswerError
	if _, err := c.Find(t.Context(), s.Addr(), "id"); !errors.As(err, &answer) || answer.Status != http.StatusServiceUnavailable {
		t.Errorf("one search too many: %v; want 503", err)
	}
	if _, err := c.Status(t.Context(), s.Addr()); err != nil {
		t.Errorf("status beside the searches: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if left := n.left.Load(); left != maxSearches {
		t.Errorf("Run returned with %d of %d searches ended", left, maxSearches)
	}
	asked.Wait()
}
