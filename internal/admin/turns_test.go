package admin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// largePage is a page that no socket's buffers hold.
const largePage = 12 << 20

// TestSlowReadersKeepNoOperatorOut: as many as there are places ask for a page and do not
// read it, and as many send half an order. Then metrics, pages of the log and orders are
// served to those who read.
func TestSlowReadersKeepNoOperatorOut(t *testing.T) {
	page := strings.Repeat("x", largePage)
	s, err := Listen(t.Context(), Options{
		Addr: "127.0.0.1:0", Node: fakeNode{}, DeadLetters: largeLetters{}, Logger: slog.New(slog.DiscardHandler),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.http.WriteTimeout = time.Hour // or it would make room in the end
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ask := func(request string) {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
	}
	for range maxSearches {
		ask("POST /v1/dead-letters/replay HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
	}
	await(t, "the halves of orders are read", func() error {
		if n := s.conns.serves(); n < maxSearches {
			return fmt.Errorf("%d requests are served", n)
		}
		return nil
	})
	if n := taken(&s.searches); n > 0 {
		t.Errorf("%d orders of which a half has come have places", n)
	}
	for range maxPages {
		ask("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	}
	for range maxSearches {
		ask("GET /v1/dead-letters?queue=q HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	}
	await(t, "all are served", func() error {
		if p, l := taken(&s.pages), taken(&s.searches); p < maxPages || l < maxSearches {
			return fmt.Errorf("%d pages of metrics, %d of dead letters", p, l)
		}
		return nil
	})
	for _, path := range []string{"/metrics", "/v1/dead-letters?queue=q"} {
		await(t, path, func() error {
			resp, err := http.Get("http://" + s.Addr() + path)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err == nil && len(b) < largePage {
				err = fmt.Errorf("%s: %.100s", resp.Status, b)
			}
			return err
		})
	}
}

type largeLetters struct{ DeadLetters }

func (largeLetters) Letters(context.Context, DeadLetterQuery) (DeadLetterPage, error) {
	return DeadLetterPage{Letters: []DeadLetter{{Body: make([]byte, largePage)}}}, nil
}

// serves is how many connections have a request.
func (c *conns) serves() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.line.Front(); e != nil; e = e.Next() {
		if e.Value.(*connection).busy {
			n++
		}
	}
	return n
}

// taken is how many places are.
func taken(t *turns) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.in.Len()
}

// await repeats check until it returns nil, for minutes if need be.
func await(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestWorkKeepsItsPlace: an answer that has been on its way for too long makes room, the
// longest first, and one that is not begun does not.
func TestWorkKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns{max: 3}
		take := func() *turn { return all.take(httptest.NewRecorder()) }
		works, second, first := take(), take(), take()
		if take() != nil {
			t.Error("one more than there may be has a place, and all work")
		}
		for _, w := range []*turn{first, second} {
			_, _ = w.Write([]byte("x"))
			time.Sleep(slowAfter / 2)
		}
		if _, _ = first.Write(nil); take() == nil || first.at != nil || second.at == nil {
			t.Error("the answer that has been on its way for longest keeps its place")
		}
		if take() != nil {
			t.Error("an answer that has just begun made room")
		}
		time.Sleep(slowAfter / 2)
		if take() == nil || second.at != nil || works.at == nil {
			t.Error("the second answer keeps its place")
		}
		for _, w := range []*turn{works, first, second, first} {
			w.leave()
		}
		if n := taken(&all); n != 2 {
			t.Errorf("%d places are taken, want the two of the newcomers", n)
		}
	})
}
