package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

type fakeWaiting struct {
	query  WaitingQuery
	orders []WaitingOrder
	by     string
}

func (f *fakeWaiting) List(_ context.Context, q WaitingQuery) (WaitingPage, error) {
	f.query = q
	return WaitingPage{Next: "1-2"}, nil
}

func (f *fakeWaiting) Order(_ context.Context, by string, o WaitingOrder) ([]OrderResult, error) {
	f.by, f.orders = by, append(f.orders, o)
	if o.Why == "" || len(o.Messages) == 0 {
		return nil, &RequestError{Status: http.StatusBadRequest, Err: errors.New("no reason")}
	}
	return []OrderResult{{Handle: o.Messages[0].Handle, Outcome: "done"}}, nil
}

func waitingHandler(f *fakeWaiting) http.Handler {
	s, _ := handler(&fakeLetters{})
	return s.routes(&Options{Node: fakeNode{}, Waiting: f})
}

func TestClientAndServerAgreeOnWaiting(t *testing.T) {
	f := &fakeWaiting{}
	srv := httptest.NewServer(waitingHandler(f))
	defer srv.Close()
	addr, c := strings.TrimPrefix(srv.URL, "http://"), NewClient(nil, 5*time.Second)
	want := WaitingQuery{Kind: KindDelayed, From: "7-9", Limit: 3, Topic: "t&=", MessageID: "id x", Since: time.Unix(1e9, 5).UTC(), Until: time.Unix(2e9, 0).UTC(),
		DueFrom: time.Unix(3e9, 0).UTC(), DueUntil: time.Unix(4e9, 0).UTC(), Gone: true, Unreadable: true}
	if page, err := c.Waiting(t.Context(), addr, want); err != nil || page.Next != "1-2" || page.Messages == nil {
		t.Errorf("%+v, %v", page, err)
	}
	if !reflect.DeepEqual(f.query, want) {
		t.Errorf("the server read %+v, want %+v", f.query, want)
	}
	var answer *AnswerError
	if _, err := c.Waiting(t.Context(), addr, WaitingQuery{Kind: "all"}); !errors.As(err, &answer) || answer.Status != http.StatusBadRequest {
		t.Errorf("a kind that is none: %v", err)
	}
	order := WaitingOrder{What: OrderDrop, Why: "w", Operator: "alice@host", Messages: []WaitingNamed{{"t", "h"}, {"", strings.Repeat("h", 2000)}}}
	if list, err := c.Order(t.Context(), addr, order); err != nil || len(list) != 1 || list[0].Handle != "h" {
		t.Errorf("%+v, %v", list, err)
	}
	if !reflect.DeepEqual(f.orders, []WaitingOrder{order}) || !strings.HasPrefix(f.by, "alice@host (127.0.0.1:") {
		t.Errorf("the server read %+v of %q", f.orders, f.by)
	}
	if _, err := c.Order(t.Context(), addr, WaitingOrder{}); !errors.As(err, &answer) || answer.Status != http.StatusBadRequest {
		t.Errorf("an order without a reason: %v", err)
	}
	resp, err := srv.Client().Post(srv.URL+"/v1/waiting/order", "text/plain", strings.NewReader(`{"what":"drop","why":"w"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnsupportedMediaType || len(f.orders) != 2 {
		t.Errorf("a form: status %d, %d orders", resp.StatusCode, len(f.orders))
	}
}

// FuzzWaitingQuery reads queries of any form.
func FuzzWaitingQuery(f *testing.F) {
	f.Add(WaitingQuery{Kind: KindUndecided, From: "1-2", Limit: 4, Topic: "t", Since: time.Unix(1e9, 0), Gone: true}.values().Encode())
	f.Add("kind=delayed&limit=-1&since=now")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		q, err := parseWaitingQuery(v)
		if err != nil {
			return
		}
		again, err := parseWaitingQuery(q.values())
		for _, at := range []*time.Time{&q.Since, &q.Until, &q.DueFrom, &q.DueUntil, &again.Since, &again.Until, &again.DueFrom, &again.DueUntil} {
			*at = at.UTC()
		}
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%+v became %+v, %v", q, again, err)
		}
	})
}

// FuzzWaitingOrder sends orders of any form: they are served, or refused with a status
// that says whose fault it is.
func FuzzWaitingOrder(f *testing.F) {
	f.Add(`{"what":"drop","why":"w","messages":[{"topic":"t","handle":"h"}]}`)
	f.Add(`{"what":"drop","messages":[]}`)
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequest("POST", "http://127.0.0.1/v1/waiting/order", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		waitingHandler(&fakeWaiting{}).ServeHTTP(w, r)
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
}
