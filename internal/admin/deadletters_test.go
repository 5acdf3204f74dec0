package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

type fakeLetters struct {
	query   DeadLetterQuery
	replays []ReplayRequest
}

func (f *fakeLetters) Queues(context.Context) ([]DeadLetterQueue, error) {
	return []DeadLetterQueue{{Node: "n", Queue: "%DLQ%g", Held: 2}}, nil
}

func (f *fakeLetters) Letters(_ context.Context, q DeadLetterQuery) (DeadLetterPage, error) {
	f.query = q
	return DeadLetterPage{Next: 7}, nil
}

func (f *fakeLetters) Replay(_ context.Context, r ReplayRequest) ([]ReplayResult, error) {
	f.replays = append(f.replays, r)
	if len(r.Offsets) == 0 {
		return nil, &RequestError{Status: http.StatusBadRequest, Err: errors.New("no letters")}
	}
	return []ReplayResult{{Offset: r.Offsets[0], Outcome: "replayed"}}, nil
}

// handler is a server without a listener.
func handler(f *fakeLetters) (*Server, http.Handler) {
	s := &Server{log: slog.New(slog.NewTextHandler(io.Discard, nil)), metrics: http.NotFoundHandler(), searches: turns{max: maxSearches}, pages: turns{max: maxPages}}
	return s, s.routes(&Options{Node: fakeNode{}, DeadLetters: f})
}

func TestClientAndServerAgreeOnDeadLetters(t *testing.T) {
	f := &fakeLetters{}
	_, h := handler(f)
	srv := httptest.NewServer(h)
	defer srv.Close()
	addr, c := strings.TrimPrefix(srv.URL, "http://"), NewClient(nil, 5*time.Second)
	if list, err := c.DeadLetterQueues(t.Context(), addr); err != nil || len(list) != 1 || list[0].Queue != "%DLQ%g" {
		t.Errorf("%+v, %v", list, err)
	}
	want := DeadLetterQuery{Queue: "%DLQ%g|x y", From: 1 << 60, Limit: 3, MessageID: "id&=", Reason: "too-large", City: "c", Destination: "d",
		Tag: "t=&", Key: "k", Properties: []string{"a=b", "empty=", "eq=a=b"},
		Since: time.Unix(1e9, 5).UTC(), Until: time.Unix(2e9, 0).UTC(), Pending: true, Body: 256}
	if page, err := c.DeadLetters(t.Context(), addr, want); err != nil || page.Next != 7 || page.Letters == nil {
		t.Errorf("%+v, %v", page, err)
	}
	if !reflect.DeepEqual(f.query, want) {
		t.Errorf("the server read %+v, want %+v", f.query, want)
	}
	if got, err := c.Replay(t.Context(), addr, ReplayRequest{Queue: "q", Offsets: []uint64{4}}); err != nil || len(got) != 1 || got[0].Offset != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	var answer *AnswerError
	if _, err := c.Replay(t.Context(), addr, ReplayRequest{Queue: "q"}); !errors.As(err, &answer) || answer.Status != http.StatusBadRequest {
		t.Errorf("%v", err)
	}
}

// TestWritesAreGuarded: what changes something cannot be sent by a web page, by
// another method, by a node's certificate, or in any size.
func TestWritesAreGuarded(t *testing.T) {
	const good = `{"queue":"q","offsets":[1]}`
	for _, c := range []struct {
		what, method, kind, body string
		tls, operator            bool
		code                     int
	}{
		{"an operator on loopback", "POST", "application/json", good, false, false, 200},
		{"an operator over TLS", "POST", "application/json; charset=utf-8", good, true, true, 200},
		{"a node over TLS", "POST", "application/json", good, true, false, 403},
		{"a form of a web page", "POST", "text/plain", good, false, false, 415},
		{"no content type", "POST", "", good, false, false, 415},
		{"a GET", "GET", "application/json", good, false, false, 405},
		{"no JSON", "POST", "application/json", "offsets=1", false, false, 400},
		{"an unknown field", "POST", "application/json", `{"queue":"q","offsets":[1],"all":true}`, false, false, 400},
		{"too much", "POST", "application/json", `{"queue":"` + strings.Repeat("x", maxRequest) + `","offsets":[1]}`, false, false, 400},
	} {
		f := &fakeLetters{}
		s, h := handler(f)
		s.operator = func(*tls.ConnectionState) error {
			if c.operator {
				return nil
			}
			return errors.New("not an operator")
		}
		r := httptest.NewRequest(c.method, "http://127.0.0.1:5101/v1/dead-letters/replay", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		if c.tls {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.code || (len(f.replays) == 1) != (c.code == 200) {
			t.Errorf("%s: %d with %d replays, want %d: %s", c.what, w.Code, len(f.replays), c.code, w.Body)
		}
	}
}

func TestBadQueriesAreRefused(t *testing.T) {
	for _, q := range []string{"from=-1", "limit=many", "since=yesterday", "body=99999999999"} {
		_, h := handler(&fakeLetters{})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/v1/dead-letters?queue=q&"+q, nil))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", q, w.Code)
		}
	}
}

// TestAReboundNameIsRefused: a web page whose name leads to this machine neither
// changes anything nor reads what people sent, unless TLS says who asks.
func TestAReboundNameIsRefused(t *testing.T) {
	for _, c := range []struct {
		host string
		tls  bool
		code int
	}{
		{"127.0.0.1:5101", false, 200},
		{"127.0.0.1", false, 200},
		{"[::1]:5101", false, 200},
		{"[::1]", false, 200},
		{"localhost:5101", false, 200},
		{"evil.example:5101", false, 403},
		{"localhost.evil.example", false, 403},
		{"127.0.0.1.evil.example:5101", false, 403},
		{"node.example:5101", true, 200},
	} {
		f := &fakeLetters{}
		_, h := handler(f)
		ask := func(r *http.Request) int {
			r.Host = c.host
			r.Header.Set("Content-Type", "application/json")
			if c.tls {
				r.TLS = &tls.ConnectionState{}
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		read := ask(httptest.NewRequest("GET", "/v1/dead-letters?queue=q", nil))
		write := ask(httptest.NewRequest("POST", "/v1/dead-letters/replay", strings.NewReader(`{"queue":"q","offsets":[1]}`)))
		if read != c.code || write != c.code || (len(f.replays) == 1) != (c.code == 200) {
			t.Errorf("%s, TLS %v: %d for a read and %d for a write, want %d; %d replays", c.host, c.tls, read, write, c.code, len(f.replays))
		}
	}
}
